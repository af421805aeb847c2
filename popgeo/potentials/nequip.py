"""NequIP at fixed shape: its `AtomicDataDict` batches of one shape, in a script or in the YAML of `nequip-train`.

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

Padding has no targets: they are NaN there. A loss that takes padding for real is then NaN from the first update on,
rather than wrong silently. The training modules of this page hand losses and metrics real rows only; without them,
`ignore_nan: true` at each metric leaves padding out, too, but for metrics of whole vectors.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data

from popgeo.data.masks import MASKS
from popgeo.potentials.edge_pairs import OPPOSITE, PairwiseLayers, note_opposite_edges, opposite_in_batch
from popgeo.potentials.evaluator import Evaluator, places_in, with_unit_shift
from popgeo.potentials.padding import PotentialLoader, Structures, unpad_outputs, where_real
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

# NequIP takes apart, and moves, batches whose every field it knows the level of.
register_fields(**{f"{level.name.lower()}_fields": [name] for level, name in MASKS.items()})
register_fields(edge_fields=[OPPOSITE], long_fields=[OPPOSITE])

_RENAMED = {"atom_types": "z", "edge_cell_shift": "unit_shift"}
_MADE = (AtomicDataDict.BATCH_KEY, AtomicDataDict.NUM_NODES_KEY)
_INPUTS = ("pos", "cell", "edge_cell_shift")
"""What has a number in padding, as models read it."""


def fixed_size_loader(
    dataset: Any,
    *,
    cutoff: float,
    type_names: Sequence[str] | None = None,
    generator: torch.Generator | None = None,
    collate_fn: Callable[..., Any] | None = None,
    in_memory: bool = True,
    padding: bool = True,
    **kwargs: Any,
) -> Any:
    """Loads NequIP's frames in its own batches, all of one shape; see `PotentialLoader` for what it takes.

    The batches equal the batches of `AtomicDataDict.batched_from_list`, with `nodes_mask`, `edges_mask` and
    `graphs_mask`, and with `opposite_edge` (`edge_pairs.py`) if the dataset is read once.

    Args:
        dataset: A dataset of NequIP, or a list of frames (`AtomicDataDict`), with neighbor lists and types.
        cutoff: The model's `r_max`: padding edges are longer, and the edges of some frames are counted, as they may
            have been listed with a shorter one.
        type_names: The model's: types beyond it are refused, and types whose name is the symbol of a different element.
        generator: What NequIP's data module passes; the order's seed is taken from it where `seed` is not given.
        collate_fn: What NequIP's data module passes; only its own is taken, as batches are made otherwise.
        in_memory: Reads the dataset once, so that neighbor lists are made once; False reads it in every epoch.
        padding: False gives NequIP's ragged batches of the same dataset, by torch's loader with what it takes of
            `kwargs`: to compare, and for statistics, `stats_manager: {dataloader_kwargs: {padding: false}}`.
        kwargs: `num_nodes`, `num_edges`, `batch_size`, `shuffle` and the rest of `PotentialLoader`.

    Raises:
        ValueError: a frame is not `AtomicDataDict`, lacks what structure 0 has, is a batch, has a type that the model
            does not know, or lacks edges within the cutoff; `collate_fn` is one of the user's own; see
            `PotentialLoader`.
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
    levels = {_RENAMED.get(name, name): get_field_type(name) for name in {*names, OPPOSITE} if name != "edge_index"}
    return PotentialLoader(structures, as_batch, cutoff=cutoff, species=0, levels=levels, **kwargs)


def as_graph(frame: Mapping[str, Tensor], *, names: frozenset[str], type_names: Sequence[str] | None = None) -> Data:
    """A frame of NequIP as a graph with the names of `popgeo.potentials.padding`.

    Raises:
        ValueError: it is not a frame, its fields are not the fields of the first frame, or the model does not have the
            type of an atom.
    """
    if type_names is not None:
        _check_types(_checked(frame), type_names)
    require_same_fields(frozenset(_checked(frame)) - {*_MADE}, names)
    graph = Data(**{_RENAMED.get(name, name): frame[name].contiguous() for name in names})
    return graph.update({"cell": three_vectors(graph.cell)}) if "cell" in graph else graph


def _checked(frame: Any) -> Any:
    if not isinstance(frame, Mapping) or "pos" not in frame:
        raise ValueError(
            f"it is a {type(frame).__name__}, not an AtomicDataDict of NequIP. Make it with nequip.data.from_ase, or "
            f"use the loader of its own framework in popgeo.potentials."
        )
    for name, remedy in (("edge_index", "NeighborListTransform"), ("atom_types", "ChemicalSpeciesToAtomTypeMapper")):
        if name not in frame:
            raise ValueError(f"it has no {name}. Give the dataset nequip.data.transforms.{remedy}.")
    if AtomicDataDict.num_frames(frame) != 1:
        raise ValueError(f"it is a batch of {AtomicDataDict.num_frames(frame)} frames. Pass them one by one.")
    if int(frame["atom_types"].min()) < 0:
        raise ValueError("an atom is of no type that the model knows. Name its species in the type mapper.")
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
    """NequIP's batch of one that keeps the contract of `popgeo.potentials.padding`."""
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


def evaluator(model: Any, **kwargs: Any) -> Evaluator:
    """Energies, forces and stress by a model of NequIP, with the cutoff and the types that it has itself.

    Args:
        model: As it is, or compiled; its types have the names of elements.
        kwargs: `num_nodes`, `num_edges`, `num_graphs`, `skin` and the rest of `Evaluator`.
    """
    numbers = torch.tensor([atomic_numbers[name] for name in model.type_names])

    def evaluate(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        found = model({name: value for name, value in batch.items() if name not in MASKS.values()})
        return {**found, "energy": found[AtomicDataDict.TOTAL_ENERGY_KEY]}

    def typed(graph: Data) -> Data:
        graph = with_unit_shift(graph.update({"z": places_in(numbers, graph.z.cpu()).to(graph.z)}))
        del graph.edge_shift  # which is not a field of NequIP
        return graph

    cutoff = float(model.metadata["r_max"])
    return Evaluator(evaluate, as_graph=typed, as_batch=as_batch, cutoff=cutoff, species=0, **kwargs)


def of_real(outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The fields of real atoms, edges and frames; everything, where the batch has no padding.

    Args:
        outputs: A batch of this page, or what a model says of one.
        batch: The batch.
    """
    if "nodes_mask" not in batch:
        return dict(outputs)
    known = {name: value for name, value in outputs.items() if name not in MASKS.values()}
    levels = {name: get_field_type(name, error_on_unregistered=False) for name in known}
    two_rows = {name: known[name][:, batch["edges_mask"]] for name in known if name == "edge_index"}
    rest = {name: value for name, value in known.items() if name not in two_rows}
    return {**unpad_outputs(rest, batch, {name: level for name, level in levels.items() if level}), **two_rows}


class RealRowsMixin:
    """Makes a training module of NequIP compare real rows only: only models see padding, not losses and metrics.

    Comes before the training module among the bases of a class. Batches without masks are treated as ever.
    """

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the model says of real rows."""
        ours: Any = self  # the training module has its model and forward
        own: Any = super()
        found = call_model(own.forward, inputs, model=ours.model, species="atom_types", owner="batch")
        return of_real(found, inputs)

    def process_target(self, batch: dict[str, Tensor], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The targets of real rows."""
        return of_real(super().process_target(batch, *args, **kwargs), batch)  # type: ignore[misc]


class FixedSizeLightningModule(RealRowsMixin, NequIPLightningModule):
    """NequIP's training module for batches of `fixed_size_loader`."""


class FixedSizeEMALightningModule(RealRowsMixin, EMALightningModule):
    """NequIP's training module with averaged weights, for batches of `fixed_size_loader`."""


def in_one_pass(model: nn.Module) -> nn.Module:
    """A model of NequIP whose convolutions gather, multiply and sum in one pass, with the weights and results it had.

    The model itself is changed, and returned; its `state_dict` has the names it had. It trains, in eager mode, too.
    Where a batch says which edges are opposite, the network that gives edges their weights runs on one of each two,
    unless cutoffs depend on which species an edge begins and ends at.
    One thread at a time may call it with such batches; give another a copy.

    Raises:
        ValueError: there is no convolution in it, or one is not a weighted product by channels.
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
    """What NequIP calls if it has a product and a sum."""

    def __init__(self, product: nn.Module) -> None:
        super().__init__()
        self.tp = SumOfProducts(product)

    def forward(self, x: Tensor, edge_attr: Tensor, edge_weight: Tensor, edge_dst: Tensor, edge_src: Tensor) -> Tensor:
        return self.tp(x, edge_attr, edge_weight, edge_src, edge_dst)
