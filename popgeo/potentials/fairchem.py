"""fairchem's potentials, such as UMA, at fixed shape: batches of `AtomicData` with padding that changes no result.

    edge_index       vectors are pos[edge_index[0]] - pos[edge_index[1]] + cell_offsets @ cell
    cell_offsets     unit_shift, in the type of the positions
    natoms, nedges   atoms and edges of each structure, padding included
    energy, ...      inf for padding, fairchem's sign of a missing target, so that its losses and metrics leave padding
                     out, and their means count real rows only

A model of fairchem takes these edges if it is made with `otf_graph=False`. Otherwise it makes edges in each step, and
their number changes each time.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from typing_extensions import Unpack

from popgeo.convert.periodic_pairs import list_pairs
from popgeo.potentials.evaluator import Evaluator, EvaluatorArguments
from popgeo.potentials.padding import PotentialArguments, PotentialLoader, Structures, where_real

_RENAMED = {"atomic_numbers": "z", "cell_offsets": "unit_shift"}
_COUNTED_AGAIN = ("natoms", "nedges", "batch")
_LEVELS = {"charge": "graph", "spin": "graph", "energy": "graph", "stress": "graph", "dataset": "graph"}
_LEVELS |= {"fixed": "node", "tags": "node", "forces": "node"}
_INPUTS = ("pos", "cell", "unit_shift")  # floating-point attributes that are not targets


def fixed_size_loader(
    items: Any,
    *,
    cutoff: float,
    dataset: str | None = None,
    max_num_elements: int = 100,
    **kwargs: Unpack[PotentialArguments],
) -> PotentialLoader:
    """Return a loader that yields batches of `AtomicData` with one shape, for fairchem's training loop and models.

    Args:
        items: Structures as `AtomicData`, or with the names of `popgeo.convert.read_atoms`, such as a store of
            `popgeo convert`. Missing edges are listed here, with vesin.
        cutoff: The model's cutoff, in angstrom.
        dataset: Name of the dataset, for structures without one.
        max_num_elements: The model's `max_num_elements`: atomic numbers are below it.
        kwargs: `num_nodes`, `num_edges`, `batch_size`, `shuffle` and others; see `PotentialLoader`.

    Raises:
        ValueError: a structure has an atom that the model does not know, or edges that do not reach the cutoff; the
            message has its number. Or `PotentialLoader` raises.
    """
    as_graph = partial(structure_as_graph, cutoff=cutoff, dataset=dataset, max_num_elements=max_num_elements)
    graphs = Structures(items, as_graph).in_memory()
    kwargs["levels"] = {**_LEVELS, **(kwargs.get("levels") or {})}
    return PotentialLoader(graphs, as_atomic_data, cutoff=cutoff, species=1, **kwargs)


def structure_as_graph(item: Any, cutoff: float, dataset: str | None = None, max_num_elements: int = 100) -> Data:
    """Convert one structure to a graph with the attribute names of `padding.py`.

    Raises:
        ValueError: see `fixed_size_loader`.
    """
    graph = _from_atomic_data(item) if "atomic_numbers" in item else _from_store(item)
    if dataset is not None and "dataset" not in graph:
        graph.dataset = dataset
    if int(graph.z.max()) >= max_num_elements or int(graph.z.min()) < 1:
        raise ValueError(
            f"it has the atomic number {int(graph.z.max())}; the model knows 1 to {max_num_elements - 1}. Leave the "
            f"structure out, or pass the model's max_num_elements."
        )
    steps = torch.linalg.pinv(graph.cell[0].double())
    found, shift = list_pairs(graph.pos.double().numpy(), graph.cell[0].double().numpy(), graph.pbc[0].numpy(), cutoff)
    if graph.edge_index is None or not graph.num_edges:
        graph.edge_index, graph.unit_shift = found, (shift @ steps).round().to(graph.pos.dtype)
    elif graph.num_edges < found.shape[1]:
        _require_reach(graph, found, shift, cutoff)
    return graph


def _from_atomic_data(item: Any) -> Data:
    """Convert an `AtomicData` to a graph with the attribute names of `padding.py`."""
    if len(item["natoms"]) != 1:
        raise ValueError(f"it is a batch of {len(item['natoms'])} structures. Pass them one by one.")
    values = {_RENAMED.get(name, name): value for name, value in item if name not in _COUNTED_AGAIN}
    return Data(**{name: value[0] if isinstance(value, list) else value for name, value in values.items()})


def _from_store(item: Any) -> Data:
    """Convert a structure as fairchem converts `Atoms`: complete missing cell vectors, and make stress a matrix."""
    from ase.geometry import complete_cell

    cell = torch.from_numpy(complete_cell(item.cell[0].double().numpy()))
    zeros = torch.zeros_like(item.z)
    graph = Data(z=item.z, pos=item.pos, cell=cell.to(item.pos.dtype)[None], pbc=item.pbc, fixed=zeros, tags=zeros)
    graph.sid = str(item.get("sid", ""))
    for name in ("charge", "spin"):
        graph[name] = item[name].long() if name in item else torch.zeros(1, dtype=torch.int64)
    for name in ("energy", "forces", "dataset"):
        if name in item:
            graph[name] = item[name]
    if "stress" in item:
        graph.stress = item.stress[:, [0, 5, 4, 5, 1, 3, 4, 3, 2]].reshape(1, 3, 3)
    graph.edge_index = item.get("edge_index")
    if graph.edge_index is not None:
        graph.unit_shift = (item.edge_shift.double() @ torch.linalg.pinv(cell)).round().to(item.pos.dtype)
    return graph


def _require_reach(graph: Data, found: Tensor, shift: Tensor, cutoff: float) -> None:
    """Raise if edges were listed with a shorter cutoff than the model's. Lists of nearest neighbors are allowed."""
    source, destination = graph.pos[graph.edge_index].double()
    longest = float((source - destination + graph.unit_shift.double() @ graph.cell[0].double()).norm(dim=1).max())
    source, destination = graph.pos[found].double()
    within = int(((source - destination + shift).norm(dim=1) <= longest * (1 + 1e-6)).sum())
    if within == graph.num_edges:
        raise ValueError(
            f"its edges reach {longest:.3g} angstrom and the model {cutoff:g}: {found.shape[1] - within} edges are "
            f"missing. List them up to the model's cutoff, or pass structures without edges."
        )


def as_atomic_data(batch: Batch) -> Any:
    """Convert a batch with the contract of `padding.py` to fairchem's batch with masks.

    Raises:
        ImportError: fairchem-core is not installed.
    """
    try:
        from fairchem.core.datasets.atomic_data import AtomicData
    except ImportError as error:
        raise ImportError(f"fairchem's batches need {error.name}: pip install fairchem-core.") from error
    nodes, graphs = batch.nodes_mask, batch.graphs_mask
    nedges = torch.bincount(batch.batch[batch.edge_index[1]], minlength=len(graphs))
    values: dict[str, Any] = {"natoms": batch.ptr.diff(), "nedges": nedges}
    for name, value in batch:
        if name == "sid":
            value = [one if real else "" for one, real in zip(value, graphs.tolist(), strict=True)]
        elif isinstance(value, Tensor) and value.is_floating_point() and name not in _INPUTS:
            value = where_real(nodes if len(value) == len(nodes) else graphs, value, torch.inf)
        values[name] = value
    values.pop("ptr")
    return AtomicData.from_dict(values | {theirs: values.pop(ours) for theirs, ours in _RENAMED.items()})


def evaluator(
    model: Callable[[Any], Mapping[str, Tensor]],
    cutoff: float,
    *,
    dataset: str | None = None,
    max_num_elements: int = 100,
    **kwargs: Unpack[EvaluatorArguments],
) -> Evaluator:
    """Return an evaluator for a fairchem model.

    Args:
        model: A backbone and its heads, with `otf_graph=False`. Called with a batch, it returns `energy`, `forces` and
            `stress` by name.
        cutoff: The model's cutoff, in angstrom.
        dataset: Name of the dataset, for models that need it.
        max_num_elements: The model's `max_num_elements`: atomic numbers are below it.
        kwargs: `num_nodes`, `num_edges`, `num_graphs`, `skin` and others; see `EvaluatorArguments`.
    """
    as_graph = partial(structure_as_graph, cutoff=cutoff, dataset=dataset, max_num_elements=max_num_elements)
    own: Any = {"cutoff": cutoff, "species": 1, "levels": _LEVELS}
    return Evaluator(model, as_graph=as_graph, as_batch=as_atomic_data, **own, **kwargs)
