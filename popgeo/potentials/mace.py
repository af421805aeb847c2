"""MACE at fixed shape: batches for MACE's training loop, MACE's losses over real rows, and a training step as a module.

Needs `mace-torch`: pip install mace-torch. In a script:

    loader = fixed_size_loader(items, num_nodes=512, num_edges=12_000, batch_size=24, shuffle=True)
    for batch in loader:                                       # a batch of MACE's DataLoader, with masks
        output = model(batch.to_dict(), training=True)
        loss = RealMeanLoss(loss_fn)(pred=output, ref=batch)
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Batch, Data
from typing_extensions import Unpack

from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.masks import MASKS
from popgeo.potentials.edge_pairs import OPPOSITE, PairwiseLayers, note_opposite_edges, opposite_in_batch
from popgeo.potentials.evaluator import Evaluator, EvaluatorArguments, places_in, with_unit_shift
from popgeo.potentials.padding import PotentialArguments, PotentialLoader, Structures, slots_per_real, where_real
from popgeo.potentials.tensor_product import SumOfProducts
from popgeo.potentials.wrong_items import check_edges, require_names

try:
    from mace.data import AtomicData, Configuration
    from mace.tools import AtomicNumberTable
    from mace.tools.torch_geometric import Batch as BatchOfMACE
except ImportError as error:
    raise ImportError("popgeo.potentials.mace needs MACE: pip install mace-torch.") from error

_RENAMED = {"positions": "pos", "shifts": "edge_shift", "unit_shifts": "unit_shift"}
_OF_ATOMS = ("forces", "charges", "density_coefficients")
_OF_STRUCTURES = (
    *("head", "weight", "energy", "stress", "virials", "dipole", "polarizability", "elec_temp", "total_charge"),
    *("total_spin", "rcell", "volume", "fermi_level", "external_field"),
    *(f"{name}_weight" for name in ("energy", "forces", "stress", "virials", "dipole", "charges", "polarizability")),
)
_LEVELS = {OPPOSITE: "edge", **dict.fromkeys(_OF_ATOMS, "node"), **dict.fromkeys(_OF_STRUCTURES, "graph")}
_CELLS = ("cell", "rcell")
_ARGUMENTS = {"forces": "compute_force", "virials": "compute_virials", "stress": "compute_stress"}
_MEANS = dict.fromkeys(("energy_weight", "stress_weight", "virials_weight"), "graphs_mask")
_MEANS |= {"forces_weight": "nodes_mask"}
"""For each weight, the mask over which its loss term is averaged."""


def fixed_size_loader(
    items: Any, *, cutoff: float | None = None, **kwargs: Unpack[PotentialArguments]
) -> PotentialLoader:
    """Return a loader that yields MACE's own batches of `AtomicData`, all with one shape.

    The batches equal those of MACE's `DataLoader`, with `nodes_mask`, `edges_mask` and `graphs_mask`. Batches of a list
    also have the opposite of each edge (`edge_pairs.py`), so that `in_one_pass` makes weights once for both. In padding
    every weight is 0. `energy_weight`, `stress_weight`, `virials_weight` and `forces_weight` of real structures are
    multiplied by slots per real row, so that MACE's weighted losses are means over real rows. Losses that are not
    proportional to these weights (Huber, L1L2, dipoles) need `RealMeanLoss`, which takes any loss.

    Args:
        items: A list of `AtomicData`, or any dataset of them that MACE reads.
        cutoff: The model's `r_max`. Padding edges are longer, and the edges of some items are counted, because they may
            have been listed with a shorter cutoff. Default: the longest edge of the first 100 items.
        kwargs: `num_nodes`, `num_edges`, `batch_size`, `shuffle` and others; see `PotentialLoader`.

    Raises:
        ValueError: an item is not an `AtomicData`, was made with a different table of species, or lacks edges within
            the cutoff; or `PotentialLoader` raises.
    """
    num_species = Structures(items, _checked)[0].node_attrs.shape[1]
    graphs = Structures(items, partial(as_graph, num_species=num_species)).in_memory()
    note_opposite_edges(graphs)
    if cutoff is None:
        cutoff = max([1.0, *(_longest(graphs[number]) for number in range(min(len(graphs), 100)))])
    else:
        check_edges(graphs, cutoff)
    of_mace = partial(as_batch, num_species=num_species)
    kwargs["levels"] = _LEVELS
    return PotentialLoader(graphs, of_mace, cutoff=cutoff, species=0, **kwargs)


def as_graph(item: Any, *, num_species: int) -> Data:
    """Convert an `AtomicData` to a graph with the attribute names of `popgeo.potentials.padding`.

    Raises:
        ValueError: the item is not an `AtomicData`, or an atom has no species of the table.
    """
    attributes = _checked(item).node_attrs
    if attributes.shape[1] != num_species:
        raise ValueError(
            f"node_attrs has {attributes.shape[1]} species, but {num_species} in structure 0. Make all items with "
            f"one table of atomic numbers."
        )
    if not ((attributes == 0) | (attributes == 1)).all() or not (attributes.sum(dim=1) == 1).all():
        raise ValueError("an atom of node_attrs has no species, or several. Make it with to_one_hot.")
    graph = Data(z=attributes.argmax(dim=1))
    for name, value in item.to_dict().items():
        if name != "node_attrs" and isinstance(value, Tensor):
            value = value[None] if value.dim() == 0 or name in _CELLS else value
            graph[_RENAMED.get(name, name)] = value
    return graph


def _checked(item: Any) -> Any:
    """Return the item after a check that it is one `AtomicData`."""
    if not (hasattr(item, "node_attrs") and hasattr(item, "unit_shifts")):
        raise ValueError(
            f"it is a {type(item).__name__}, not an AtomicData of MACE. Make it with mace.data.AtomicData.from_config, "
            f"or use its own framework's loader in popgeo.potentials."
        )
    if "ptr" in item:
        raise ValueError(f"it is a batch of {len(item.ptr) - 1} structures. Pass them one by one.")
    return item


def _longest(graph: Data) -> float:
    """Return the length of a graph's longest edge."""
    source, target = graph.edge_index
    vectors = graph.pos[target] - graph.pos[source] + graph.edge_shift
    return float(vectors.norm(dim=1).max()) if len(vectors) else 0.0


def as_batch(batch: Batch, *, num_species: int) -> Any:
    """Convert a batch with the contract of `popgeo.potentials.padding` to MACE's batch."""
    fields = dict(batch.to_dict())
    for name, ours in _RENAMED.items():
        fields[name] = fields.pop(ours)
    fields |= opposite_in_batch(batch)
    fields["node_attrs"] = torch.eye(num_species, dtype=batch.pos.dtype, device=batch.pos.device)[fields.pop("z")]
    padding = ~batch.graphs_mask
    if "volume" in fields:
        fields["volume"] = torch.where(padding, torch.linalg.det(batch.cell), fields["volume"])
    if "rcell" in fields:
        cube = torch.eye(3, dtype=batch.cell.dtype, device=batch.cell.device)  # the cell of padding, up to its width
        reciprocal = 2 * torch.pi * cube / batch.cell[-1, 0, 0]
        fields["rcell"] = torch.where(padding[:, None, None], reciprocal, fields["rcell"])
    for name in _CELLS:
        if name in fields:
            fields[name] = fields[name].reshape(-1, 3)
    for name, mask in _MEANS.items():
        if name in fields:
            fields[name] = fields[name] * slots_per_real(fields[mask], fields[name].dtype)
    made = BatchOfMACE(**fields)
    made.num_nodes = len(batch.nodes_mask)
    return made


def example_batch(model: Any, sizes: FixedSizeOptions) -> Any:
    """Return a batch of two atoms and padding with these sizes, as `fixed_size_loader` makes it, without any data.

    Args:
        model: The model, with its cutoff and atomic numbers.
        sizes: The sizes of the batch.
    """
    number, cutoff, like = int(model.atomic_numbers[0]), float(model.r_max), next(model.parameters())
    places, before = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, cutoff / 2]]), torch.get_default_dtype()
    pair = Configuration(np.array([number, number]), places, properties={}, property_weights={})
    table = AtomicNumberTable(model.atomic_numbers.tolist())
    torch.set_default_dtype(like.dtype)  # the type of MACE's data
    try:
        item = AtomicData.from_config(pair, z_table=table, cutoff=cutoff, heads=getattr(model, "heads", None))
    finally:
        torch.set_default_dtype(before)
    counts: Any = {"num_nodes": sizes.num_nodes, "num_edges": sizes.num_edges, "batch_size": sizes.num_graphs}
    return next(iter(fixed_size_loader([item], cutoff=cutoff, **counts)))


def evaluator(model: Any, head: str | None = None, **kwargs: Unpack[EvaluatorArguments]) -> Evaluator:
    """Return an evaluator for a MACE model, with the model's cutoff and atomic numbers.

    Args:
        model: The model, compiled or not.
        head: Name of one of the model's `heads`. Default: the only head, or the head with the name "default".
        kwargs: `num_nodes`, `num_edges`, `num_graphs`, `skin` and others; see `EvaluatorArguments`.

    Raises:
        ValueError: the model does not have this head, or has several and no head was chosen.
    """
    numbers, like = model.atomic_numbers.cpu(), next(model.parameters())
    heads = list(getattr(model, "heads", ["Default"]))
    names = {"default"} if len(heads) > 1 else {heads[0].lower()}
    chosen = [place for place, name in enumerate(heads) if name == head or (head is None and name.lower() in names)]
    if len(chosen) != 1:
        raise ValueError(f"The head is {head!r}; the model has {heads}. Pass one of these as head.")

    def evaluate(batch: Any) -> Mapping[str, Tensor]:
        batch.positions.requires_grad_()  # a compiled model of MACE leaves this to the caller
        fields = batch.to_dict()
        if len(heads) > 1:  # without it MACE takes the first head
            fields["head"] = fields["batch"].new_full((len(fields["cell"]) // 3,), chosen[0])
        return model(fields, compute_stress=True)

    return Evaluator(
        evaluate,
        as_graph=lambda graph: with_unit_shift(graph.update({"z": places_in(numbers, graph.z.cpu()).to(like.device)})),
        as_batch=partial(as_batch, num_species=len(numbers)),
        cutoff=float(model.r_max),
        species=0,
        **EvaluatorArguments(dtype=like.dtype, device=like.device) | kwargs,
    )


class RealMeanLoss(nn.Module):
    """A wrapper of any MACE loss that averages over real structures, atoms and components.

    The loss gets errors of 0 for padding. It is called once with errors of structures and once with errors of atoms, to
    separate its terms. It must therefore be a sum of means that are 0 without errors, as MACE's losses are.

    Args:
        loss_fn: Called as `loss_fn(ref=batch, pred=output)`.
    """

    def __init__(self, loss_fn: Callable[..., Tensor]) -> None:
        super().__init__()
        self.loss_fn = loss_fn

    def forward(self, ref: Any, pred: Mapping[str, Any], ddp: bool | None = None) -> Tensor:
        """Return the loss of a batch. A batch without masks gets the plain loss."""
        if "nodes_mask" not in ref:
            return self.loss_fn(ref=ref, pred=pred, ddp=ddp)
        plain = copy.copy(ref)
        for name, mask in _MEANS.items():
            if name in ref:
                plain[name] = ref[name] / slots_per_real(ref[mask])
        total: Any = 0.0
        for mask in ("graphs_mask", "nodes_mask"):
            of_one_kind = {name: _with_errors_of(mask, ref, name, value) for name, value in pred.items()}
            loss = self.loss_fn(ref=plain, pred=of_one_kind, ddp=ddp)
            total = total + slots_per_real(ref[mask], loss.dtype) * loss
        return total

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loss_fn!r})"


def _with_errors_of(mask: str, ref: Any, name: str, value: Any) -> Any:
    """Return the prediction in a mask's real rows and the target in all other rows, so that errors there are 0."""
    if not isinstance(value, Tensor) or name not in ref or ref[name].shape != value.shape:
        return value
    if mask != ("nodes_mask" if name in _OF_ATOMS else "graphs_mask"):
        return ref[name]
    return where_real(ref[mask], value, ref[name])


class TrainingStep(nn.Module):
    """A training step of MACE as one module, from a batch to its loss, for `popgeo.compile_step` or `torch.compile`.

        step = popgeo.compile_step(TrainingStep(model, loss_fn), optimizer)
        loss = step(**batch.to_dict())

    Args:
        model: Any model of MACE, with or without TorchScript.
        loss_fn: A loss of MACE, or a `RealMeanLoss`.
        outputs: Whether the loss needs "forces", "virials" and "stress".
    """

    def __init__(
        self, model: nn.Module, loss_fn: nn.Module, outputs: Mapping[str, bool] = MappingProxyType({"forces": True})
    ) -> None:
        super().__init__()
        self.model, self.loss_fn = model, loss_fn if isinstance(loss_fn, RealMeanLoss) else RealMeanLoss(loss_fn)
        self.asked = {argument: bool(outputs.get(name)) for name, argument in _ARGUMENTS.items()}

    def example_batch(self, sizes: FixedSizeOptions) -> dict[str, Tensor]:
        """Return the arguments of a call for a batch with these sizes; see `example_batch` of this module."""
        return example_batch(self.model, sizes).to_dict()

    def forward(self, **tensors: Tensor) -> Tensor:
        """Return the loss of a batch. The arguments are `**batch.to_dict()`.

        Raises:
            ValueError: the batch is from a different loader, or its table of species differs from the model's.
        """
        require_names(tensors, ("node_attrs", "positions", *MASKS.values()), "mace")
        numbers: Any = self.model.atomic_numbers
        if tensors["node_attrs"].shape[1] != len(numbers):
            raise ValueError(
                f"node_attrs has {tensors['node_attrs'].shape[1]} species and the model {len(numbers)}. Make the items "
                f"with the model's table of atomic numbers, {numbers.tolist()}."
            )
        pred = self.model(dict(tensors), training=True, **self.asked)
        with _StructuresByIndex(tensors["batch"]):
            return self.loss_fn(ref=BatchOfMACE(**tensors), pred=pred)


class _StructuresByIndex(TorchFunctionMode):
    """A mode that replaces `repeat_interleave` over structures, which has no fixed shape, by an `index_select`."""

    def __init__(self, owner: Tensor) -> None:
        super().__init__()
        self.owner = owner

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.repeat_interleave and len(args) == 2 and not kwargs:
            return args[0].index_select(0, self.owner)
        return function(*args, **(kwargs or {}))


def in_one_pass(model: nn.Module) -> nn.Module:
    """Fuse the convolutions of a MACE model into one pass that gathers, multiplies and sums; return the same model.

    Weights, results and the names in `state_dict` stay the same. The model can be trained, also in eager mode. If a
    batch has the opposite of each edge, the network for the edges' weights runs once per pair; then only one thread at
    a time may call the model.

    Raises:
        ValueError: the model is not of MACE, or a convolution is not a weighted product by channels, as with
            cuEquivariance.
    """
    blocks: Any = getattr(model, "interactions", None)
    if blocks is None:
        raise ValueError(f"There are no interactions of MACE in this {type(model).__name__}.")
    new = [block for block in blocks if not isinstance(block.conv_tp, _Convolution)]
    if new:
        once = PairwiseLayers(model)
        for block in new:
            block.conv_tp, block.conv_fusion = _Convolution(block.conv_tp), True
            # The weights of an edge are a function of its length only.
            if getattr(block.conv_tp_weights, "hs", [0])[0] == block.edge_feats_irreps.num_irreps:
                once.add(block.conv_tp_weights)
    return model


class _Convolution(SumOfProducts):
    """The fused convolution, with the arguments that MACE passes."""

    def forward(self, node_feats: Tensor, edge_attrs: Tensor, tp_weights: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        """Return the sums of products, [num_nodes, irreps_out.dim]."""
        return super().forward(node_feats, edge_attrs, tp_weights, *edge_index)
