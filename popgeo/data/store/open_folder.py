"""Opens the folder of a store: every array is mapped, and nothing is read but the manifest."""

import sys
from pathlib import Path

import torch_geometric.data
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from popgeo.data.axes import GRAPHS, Attribute, Axis
from popgeo.data.columns import Columns
from popgeo.data.store.manifest import ArrayFile, Manifest, damaged_files, read_manifest
from popgeo.data.store.mapped import map_file
from popgeo.data.store.stored_list import StoredList


def open_folder(folder: Path, verify: bool) -> Columns:
    """The columns of a store on disk.

    Raises:
        ValueError: the folder is no store, a file is damaged, or the class of its graphs is not known.
    """
    manifest = read_manifest(folder)
    if verify and (damaged := damaged_files(folder, manifest)):
        raise ValueError(
            f"{folder} is damaged: the checksums of {damaged} differ. Copy these files again, or write the store again."
        )

    def opened(file: ArrayFile) -> Tensor:
        return map_file(folder / file.file, file.torch_dtype, file.shape)

    pointers = {axis: opened(file) for axis, file in manifest.row_pointers}
    _check_pointers(folder, manifest, pointers)
    attributes = []
    for entry in manifest.attributes:
        values, axis = opened(entry.values), entry.axis
        increments = None if entry.increments is None else opened(entry.increments)
        attributes.append(
            Attribute(
                store=entry.store,
                name=entry.name,
                axis=GRAPHS if entry.is_json else axis,
                values=StoredList(values, pointers.pop(axis)) if entry.is_json else values,
                dim=entry.dim,
                increments=increments,
            )
        )
    return Columns(
        data_cls=_class_of(manifest.data_class),
        node_types=manifest.node_types,
        edge_types=manifest.edge_types,
        attributes=tuple(attributes),
        row_pointers=pointers,
        states_num_nodes=frozenset(manifest.states_num_nodes),
        row_ends=None if manifest.row_ends is None else {key: opened(file) for key, file in manifest.row_ends},
    )


def _check_pointers(folder: Path, manifest: Manifest, pointers: dict[Axis, Tensor]) -> None:
    """Checks that every row pointer ends where the rows do."""
    files = dict(manifest.row_pointers)
    rows = {entry.axis: entry.values.shape[entry.dim] for entry in manifest.attributes}
    for axis, pointer in pointers.items():
        total = rows.get(axis, int(pointer[-1]))
        if len(pointer) != manifest.num_graphs + 1 or int(pointer[0]) != 0 or int(pointer[-1]) != total:
            raise ValueError(
                f"{folder / files[axis].file} is damaged: it ends at row {int(pointer[-1]):,} of {total:,}. Copy the "
                f"file again, or write the store again."
            )


def _class_of(name: str) -> type:
    """The class of the graphs: PyG's own, or one that has been imported already; nothing is imported on its behalf."""
    module, _, cls = name.rpartition(".")
    found = getattr(torch_geometric.data, cls, None) if module.startswith("torch_geometric.data.") else None
    found = found or getattr(sys.modules.get(module), cls, None)
    if not (isinstance(found, type) and issubclass(found, (Data, HeteroData))):
        raise ValueError(f"The graphs of the store are of class {name}. Import {module} before opening it.")
    return found
