"""NequIP at fixed shape: `AtomicDataDict` batches of one shape, for a script or for the YAML of `nequip-train`.

Needs `nequip`: pip install nequip. In the YAML, where batches and training are configured:

    data:
      train_dataloader:
        _target_: popgeo.potentials.nequip.fixed_size_loader
        cutoff: ${cutoff_radius}
        num_nodes: 512
        num_edges: 12000
        batch_size: 24
        shuffle: true
    training_module:
      _target_: popgeo.potentials.nequip.FixedSizeLightningModule    # or FixedSizeEMALightningModule

Targets are NaN in padding. A loss that counts padding is then NaN from the first update, rather than silently wrong.
The training modules of this page give only real rows to losses and metrics. Without these modules, `ignore_nan: true`
at each metric leaves padding out, too, except for metrics of whole vectors.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data
from typing_extensions import Unpack

from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.masks import MASKS
from popgeo.potentials.edge_pairs import OPPOSITE, PairwiseLayers, note_opposite_edges, opposite_in_batch
from popgeo.potentials.evaluator import Evaluator, EvaluatorArguments, places_in, with_unit_shift
from popgeo.potentials.padding import PotentialArguments, PotentialLoader, Structures, unpad_outputs, where_real
from popgeo.potentials.tensor_product import SumOfProducts
from popgeo.potentials.wrong_items import call_model, check_edges, require_same_fields, three_vectors

try:
    from ase.data import atomic_numbers, chemical_symbols
    from nequip.data import AtomicDataDict, register_fields
    from nequip.data._key_registry import get_field_type
    from nequip.nn._tp_scatter_base import TensorProductScatter
    from nequip.train import EMALightningModule, NequIPLightningModule
except ImportError as error:
    raise ImportError("popgeo.potentials.nequip needs NequIP: pip install nequip.") from error

# NequIP splits and moves only batches with registered fields.
register_fields(**{f"{level.name.lower()}_fields": [name] for level, name in MASKS.items()})
register_fields(edge_fields=[OPPOSITE], long_fields=[OPPOSITE])

_RENAMED = {"atom_types": "z", "edge_cell_shift": "unit_shift"}
_MADE = (AtomicDataDict.BATCH_KEY, AtomicDataDict.NUM_NODES_KEY)
_INPUTS = ("pos", "cell", "edge_cell_shift")
"""Fields that models read; they have finite numbers in padding."""


def fixed_size_loader(  # type: ignore[misc]  # two arguments that popgeo refuses are NequIP's here
    dataset: Any,
    *,
    cutoff: float,
    type_names: Sequence[str] | None = None,
    generator: torch.Generator | None = None,
    collate_fn: Callable[..., Any] | None = None,
    in_memory: bool = True,
    padding: bool = True,
    **kwargs: Unpack[PotentialArguments],
) -> Any:
    """Return a loader that yields NequIP's own batches of frames, all with one shape.

    The batches equal those of `AtomicDataDict.batched_from_list`, with `nodes_mask`, `edges_mask` and `graphs_mask`,
    and with `opposite_edge` (`edge_pairs.py`) if the dataset is read once.

    Args:
        dataset: A dataset of NequIP, or a list of frames (`AtomicDataDict`), with neighbor lists and types.
        cutoff: The model's `r_max`. Padding edges are longer, and the edges of some frames are counted, because they
            may have been listed with a shorter cutoff.
        type_names: The model's names of types. An unknown type, or a type with the symbol of a different element, is
            refused.
        generator: Passed by NequIP's data module. Its seed decides the order unless `seed` is given.
        collate_fn: Passed by NequIP's data module. Any other function is refused.
        in_memory: Whether the dataset is read once, with its neighbor lists, or in every epoch.
        padding: False gives NequIP's ragged batches of the same dataset by torch's loader, to compare, and for
            statistics: `stats_manager: {dataloader_kwargs: {padding: false}}`.
        kwargs: `num_nodes`, `num_edges`, `batch_size`, `shuffle` and others; see `PotentialLoader`.

    Raises:
        ValueError: a frame is not one `AtomicDataDict`, lacks a field of structure 0, has an unknown type, or lacks
            edges within the cutoff; `collate_fn` is not NequIP's; or `PotentialLoader` raises.
    """
    if collate_fn not in (None, AtomicDataDict.batched_from_list):
        raise ValueError("The loader collates by itself, so it takes no collate_fn but NequIP's. Use a transform.")
    if not padding:
        choices = {"batch_size": 16, **kwargs, "generator": generator, "collate_fn": AtomicDataDict.batched_from_list}
        taken = choices.keys() & signature(DataLoader).parameters.keys()
        return DataLoader(dataset, **{name: choices[name] for name in taken})
    names = frozenset(Structures(dataset, _checked)[0]) - {*_MADE}
    structures: Any = Structures(dataset, partial(as_graph, names=names, type_names=type_names))
    structures = [structures[number] for number in range(len(structures))] if in_memory else structures
    check_edges(structures, cutoff)
    if generator is not None:
        kwargs.setdefault("seed", generator.initial_seed())
    note_opposite_edges(structures)
    levelled = {*names, OPPOSITE} - {"edge_index"}
    kwargs["levels"] = {_RENAMED.get(name, name): get_field_type(name) for name in levelled}
    return PotentialLoader(structures, as_batch, cutoff=cutoff, species=0, **kwargs)


def as_graph(frame: Mapping[str, Tensor], *, names: frozenset[str], type_names: Sequence[str] | None = None) -> Data:
    """Convert a NequIP frame to a graph with the attribute names of `popgeo.potentials.padding`.

    Raises:
        ValueError: it is not a frame, its fields differ from those of the first frame, or the model does not have the
            type of an atom.
    """
    if type_names is not None:
        _check_types(_checked(frame), type_names)
    require_same_fields(frozenset(_checked(frame)) - {*_MADE}, names)
    graph = Data(**{_RENAMED.get(name, name): frame[name].contiguous() for name in names})
    return graph.update({"cell": three_vectors(graph.cell)}) if "cell" in graph else graph


def _checked(frame: Any) -> Any:
    """Return the item after a check that it is one frame with neighbors and types."""
    if not isinstance(frame, Mapping) or "pos" not in frame:
        raise ValueError(
            f"it is a {type(frame).__name__}, not an AtomicDataDict of NequIP. Make it with nequip.data.from_ase, or "
            f"use its own framework's loader in popgeo.potentials."
        )
    for name, remedy in (("edge_index", "NeighborListTransform"), ("atom_types", "ChemicalSpeciesToAtomTypeMapper")):
        if name not in frame:
            raise ValueError(f"it has no {name}. Give the dataset nequip.data.transforms.{remedy}.")
    if AtomicDataDict.num_frames(frame) != 1:
        raise ValueError(f"it is a batch of {AtomicDataDict.num_frames(frame)} frames. Pass them one by one.")
    if int(frame["atom_types"].min()) < 0:
        raise ValueError("an atom has no type that the model knows. Name its species in the type mapper.")
    return frame


def _check_types(frame: Mapping[str, Tensor], type_names: Sequence[str]) -> None:
    types = frame["atom_types"].flatten()
    if int(types.max()) >= len(type_names):
        raise ValueError(f"it has the type {types.max()}; the model knows 0 to {len(type_names) - 1}: {type_names}.")
    for number in frame.get("atomic_numbers", types[:0]).flatten().unique().tolist():
        for one in types[frame["atomic_numbers"].flatten() == number].unique().tolist():
            name, symbol = type_names[one], chemical_symbols[number]
            if name != symbol and name in chemical_symbols:
                raise ValueError(
                    f"its {symbol} has the type {one}, which is {name} to the model: its types were made with another "
                    f"list. Give the type mapper the model's, {type_names}."
                )


def as_batch(batch: Batch) -> dict[str, Tensor]:
    """Convert a batch with the contract of `popgeo.potentials.padding` to NequIP's batch."""
    fields = {**batch.to_dict(), **opposite_in_batch(batch)}
    for name, ours in _RENAMED.items():
        if ours in fields:
            fields[name] = fields.pop(ours)
    fields[AtomicDataDict.NUM_NODES_KEY] = fields.pop("ptr").diff()
    masks = {level.name.lower(): fields[name] for level, name in MASKS.items()}
    for name, value in fields.items():
        if value.is_floating_point() and name not in _INPUTS:
            fields[name] = where_real(masks[get_field_type(name)], value, torch.nan)
    return fields


def example_batch(model: Any, sizes: FixedSizeOptions) -> dict[str, Tensor]:
    """Return a batch of two atoms and padding with these sizes, as `fixed_size_loader` makes it, without any data.

    It has targets for energies, forces and stress.

    Args:
        model: The model, with its cutoff.
        sizes: The sizes of the batch.
    """
    cutoff, real = float(model.metadata["r_max"]), torch.empty(0, dtype=torch.float64)
    frame = {
        "pos": real.new_tensor([[0.0, 0.0, 0.0], [0.0, 0.0, cutoff / 2]]),
        "atom_types": torch.zeros(2, dtype=torch.int64),
        "edge_index": torch.tensor([[0, 1], [1, 0]]),
        "edge_cell_shift": real.new_zeros(2, 3),
        "cell": 4 * cutoff * torch.eye(3).to(real)[None],
        "pbc": torch.ones(1, 3, dtype=torch.bool),
        "total_energy": real.new_zeros(1, 1),
        "forces": real.new_zeros(2, 3),
        "stress": real.new_zeros(1, 3, 3),
    }
    counts: Any = {"num_nodes": sizes.num_nodes, "num_edges": sizes.num_edges, "batch_size": sizes.num_graphs}
    return next(iter(fixed_size_loader([frame], cutoff=cutoff, **counts)))


def evaluator(model: Any, **kwargs: Unpack[EvaluatorArguments]) -> Evaluator:
    """Return an evaluator for a NequIP model, with the model's cutoff and types.

    Args:
        model: The model, compiled or not. The names of its types are symbols of elements.
        kwargs: `num_nodes`, `num_edges`, `num_graphs`, `skin` and others; see `EvaluatorArguments`.
    """
    numbers = torch.tensor([atomic_numbers[name] for name in model.type_names])

    def evaluate(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        found = model({name: value for name, value in batch.items() if name not in MASKS.values()})
        return {**found, "energy": found[AtomicDataDict.TOTAL_ENERGY_KEY]}

    def typed(graph: Data) -> Data:
        graph = with_unit_shift(graph.update({"z": places_in(numbers, graph.z.cpu()).to(graph.z)}))
        del graph.edge_shift  # not a field of NequIP
        return graph

    cutoff = float(model.metadata["r_max"])
    return Evaluator(evaluate, as_graph=typed, as_batch=as_batch, cutoff=cutoff, species=0, **kwargs)


def of_real(outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the fields of a batch, or of results, with only real atoms, edges and frames.

    Args:
        outputs: A batch of this page, or a model's results for it.
        batch: The batch. Without masks it has no padding.
    """
    if "nodes_mask" not in batch:
        return dict(outputs)
    known = {name: value for name, value in outputs.items() if name not in MASKS.values()}
    levels = {name: get_field_type(name, error_on_unregistered=False) for name in known}
    two_rows = {name: known[name][:, batch["edges_mask"]] for name in known if name == "edge_index"}
    rest = {name: value for name, value in known.items() if name not in two_rows}
    return {**unpad_outputs(rest, batch, {name: level for name, level in levels.items() if level}), **two_rows}


class RealRowsMixin:
    """A mixin for NequIP's training modules that passes only real rows to losses and metrics.

    List it before the training module among the base classes. Batches without masks stay unchanged.
    """

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the model's results for real rows."""
        ours: Any = self  # model and forward are the training module's
        own: Any = super()
        found = call_model(own.forward, inputs, model=ours.model, species="atom_types", owner="batch")
        return of_real(found, inputs)

    def process_target(self, batch: dict[str, Tensor], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return the targets of real rows."""
        return of_real(super().process_target(batch, *args, **kwargs), batch)  # type: ignore[misc]


class FixedSizeLightningModule(RealRowsMixin, NequIPLightningModule):
    """NequIP's training module for batches of `fixed_size_loader`."""


class FixedSizeEMALightningModule(RealRowsMixin, EMALightningModule):
    """NequIP's training module with averaged weights, for batches of `fixed_size_loader`."""


def in_one_pass(model: nn.Module) -> nn.Module:
    """Fuse the convolutions of a NequIP model into one pass that gathers, multiplies and sums; return the same model.

    Weights, results and the names in `state_dict` stay the same. The model can be trained, also in eager mode. If a
    batch has the opposite of each edge, the network for the edges' weights runs once per pair, unless cutoffs depend on
    the species at the ends of an edge. Then only one thread at a time may call the model; give other threads copies.

    Raises:
        ValueError: the model has no convolution, or a convolution is not a weighted product by channels.
    """
    parts = list(model.modules())
    if not any(isinstance(getattr(one, "tp_scatter", None), TensorProductScatter | _Convolution) for one in parts):
        raise ValueError(f"There is no convolution of NequIP in this {type(model).__name__}.")
    blocks: list[Any] = [one for one in parts if type(getattr(one, "tp_scatter", None)) is TensorProductScatter]
    for block in blocks:
        block.tp_scatter = _Convolution(block.tp_scatter.tp)
    if blocks and not any(getattr(one, "_per_edge_type", False) for one in parts):
        once = PairwiseLayers(model)
        for block in blocks:
            once.add(block.edge_mlp)
    return model


class _Convolution(nn.Module):
    """The fused convolution, with the arguments that NequIP passes."""

    def __init__(self, product: nn.Module) -> None:
        super().__init__()
        self.tp = SumOfProducts(product)

    def forward(self, x: Tensor, edge_attr: Tensor, edge_weight: Tensor, edge_dst: Tensor, edge_src: Tensor) -> Tensor:
        """Return the sums of products, [num_nodes, irreps_out.dim]."""
        return self.tp(x, edge_attr, edge_weight, edge_src, edge_dst)
