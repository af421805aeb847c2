"""The HDF5 files of MACE, read without links to other files and within the size of the file."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from popgeo.convert.open_file import OpenFile
from popgeo.convert.packed_files import most_unpacked

_BYTES_PER_ATOM = 1 << 16  # largest size of a dataset


def open_hdf5(path: Path) -> OpenFile:
    """Open a file of MACE's `preprocess_data`: batches with a group per structure.

    Raises:
        ValueError: the file has other groups, a group with two names, or a link to a different file.
    """
    import h5py

    with h5py.File(path, "r") as file:
        names = [name for name in file if name.startswith("config_batch_")]
        if not names:
            raise ValueError(f"it has {sorted(file)[:8]}, not the groups config_batch_0, ... of MACE")
        batches = [_own(file, f"config_batch_{number}") for number in range(len(names))]
        if len({h5py.h5o.get_info(batch.id).addr for batch in batches}) < len(batches):
            raise ValueError("it has a group under several names")
        starts = [0, *accumulate(map(len, batches))]
        return OpenFile(starts[-1], partial(_read, path, starts), dict(_attributes(file)))


def _read(path: Path, starts: Sequence[int], index: int) -> Any:
    import h5py
    from ase import Atoms

    with h5py.File(path, "r") as file:
        batch = bisect_right(starts, index) - 1
        group = _own(_own(file, f"config_batch_{batch}"), f"config_{index - starts[batch]}")
        parts = [group, *(_own(group, one) if one in {*group} else {} for one in ("properties", "property_weights"))]
        left = [most_unpacked(size := path.stat().st_size), size]
        known, labels, weights = (_values(part, left, _own(group, "atomic_numbers").size) for part in parts)
        units = {f"{name}_unit": value for part in parts[:2] for name in part
                 for key, value in _attributes(_own(part, name)) if "unit" in key.lower()}  # fmt: skip
    given = {name: known.pop(name, None) for name in ("positions", "cell", "pbc")}
    atoms = Atoms(known.pop("atomic_numbers"), **given)
    weights = {f"config_{name.lower()}_weight": value for name, value in weights.items() if name in labels}
    atoms.info = {**known, **labels, **weights, **units}
    return atoms


def _own(group: Any, name: str) -> Any:
    """Return the member of a group with this name, if it is in this file.

    Raises:
        ValueError: the member is a link, perhaps to a different file.
        KeyError: the group has no such member.
    """
    import h5py

    if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise ValueError(f"its {name!r} is a link, perhaps to another file. Put the values into this file.")
    return group[name]


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the HDF5 attributes of a group or dataset, except lists of texts, which may expand a short file."""
    for name in owner.attrs:
        entry = owner.attrs.get_id(name)
        if entry.shape in ((), (1,)) or (entry.shape is not None and not entry.dtype.hasobject):
            yield name, owner.attrs[name]


def _values(group: Mapping[str, Any], left: list[int], num_atoms: int) -> dict[str, Any]:
    """Return the values of the datasets of a group, without the value "None".

    Args:
        group: The group.
        left: The remaining bytes to read, and the remaining bytes of texts; both are updated.
        num_atoms: The number of atoms of the structure.

    Raises:
        ValueError: a dataset is outside of the file, or declares more bytes than the file can have.
    """
    import h5py

    found = {}
    for name in group:
        if not isinstance(one := _own(group, name), h5py.Dataset):
            continue
        if one.external or one.is_virtual:
            raise ValueError(f"its {name!r} is stored in another file. Put the values into this file.")
        if one.nbytes > min(max(num_atoms, 1) * _BYTES_PER_ATOM, left[0]):
            raise ValueError(f"its {name!r} declares {one.nbytes:,} bytes for {num_atoms:,} atoms.")
        left[0] -= one.nbytes
        value = _texts(name, one, left) if one.dtype.hasobject else one[()]
        value = value.decode() if isinstance(value, bytes) else value
        if not (isinstance(value, str) and value == "None"):
            found[name] = value
    return found


def _texts(name: str, one: Any, left: list[int]) -> Any:
    """Return texts of variable length; several texts may share one place in the file.

    Raises:
        ValueError: the texts are longer than the file, or the values are not texts.
    """
    import h5py
    import numpy as np

    if h5py.check_string_dtype(one.dtype) is None:
        raise ValueError(f"its {name!r} holds neither numbers nor texts. Leave it out.")
    texts = np.empty(one.shape, object)
    for place in np.ndindex(one.shape):
        texts[place] = one[place]
        left[1] -= len(texts[place])
        if left[1] < 0:
            raise ValueError(f"its {name!r} has longer texts than the file.")
    return texts[()]
