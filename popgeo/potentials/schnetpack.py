"""SchNetPack at fixed shape: a replacement of `AtomsLoader`, a task over real rows, and a training step as a module.

Needs `schnetpack`: pip install schnetpack. With a data module of SchNetPack and a trainer:

    use_fixed_sizes(datamodule, cutoff=5.0, num_nodes=512, num_edges=12_000, batch_size=24)
    trainer.fit(FixedSizeTask(model, outputs, ...), datamodule=datamodule)      # where AtomisticTask was

Targets are NaN in padding, and so are all floating-point fields that models do not read. A loss that counts padding, as
in SchNetPack's own task, is then NaN from the first update, rather than silently wrong.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Batch, Data
from typing_extensions import Unpack

from popgeo.data.masks import MASKS
from popgeo.potentials.evaluator import Evaluator, EvaluatorArguments, with_unit_shift
from popgeo.potentials.padding import (
    PotentialArguments,
    PotentialLoader,
    Structures,
    slots_per_real,
    unpad_outputs,
    where_real,
)
from popgeo.potentials.wrong_items import call_model, check_edges, require_names, require_same_fields, three_vectors

try:
    from schnetpack import properties
    from schnetpack.task import AtomisticTask, ModelOutput, UnsupervisedModelOutput

    from popgeo.potentials.schnetpack_in_one_pass import in_one_pass as in_one_pass
except ImportError as error:
    raise ImportError(
        f"popgeo.potentials.schnetpack needs SchNetPack, which says: {error}. pip install schnetpack; versions up to "
        f"2.1 need an older torch."
    ) from error

_RENAMED = {properties.Z: "z", properties.R: "pos", properties.cell: "cell", properties.pbc: "pbc"}
_RENAMED |= {properties.offsets: "edge_shift"}
_MADE = (
    *(properties.n_atoms, properties.idx_i, properties.idx_j, properties.idx_m),
    *(properties.lidx_i, properties.lidx_j, properties.seg_m),
)
_INPUTS = (
    *("total_charge", "spin_multiplicity", "electric_field", "magnetic_field", "masses", "nuclear_magnetic_moments"),
)
_NUM_LOOKED_AT = 200
_call = partial(call_model, species=properties.Z, owner=properties.idx_m)


def fixed_size_loader(
    dataset: Any, *, cutoff: float, max_z: int = 100, inputs: Iterable[str] = (), **kwargs: Unpack[PotentialArguments]
) -> PotentialLoader:
    """Return a loader that yields batches like SchNetPack's `AtomsLoader`, all with one shape.

    Batches also have `nodes_mask`, `edges_mask` and `graphs_mask`; `_idx` is -1 in padding.

    Args:
        dataset: A dataset of SchNetPack, or a list of its items, with a neighbor list. A list is kept in memory.
        cutoff: The model's cutoff. Padding edges are longer, and the edges of some items are counted, because they may
            have been listed with a shorter cutoff.
        max_z: The `max_z` of the model's representation: atomic numbers are below it.
        inputs: Your own fields that the model reads. They are 0 in padding, as SchNetPack's own inputs.
        kwargs: `num_nodes`, `num_edges`, `batch_size`, `shuffle` and others; see `PotentialLoader`.

    Raises:
        ValueError: an item is not of SchNetPack, lacks a field of structure 0, has an atomic number of `max_z` or more,
            has a field without a row per atom, pair or structure, or lacks edges within the cutoff; or
            `PotentialLoader` raises.
    """
    names = frozenset(Structures(dataset, _checked)[0]) - {*_MADE}
    structures = Structures(dataset, partial(as_graph, names=names, max_z=max_z)).in_memory()
    check_edges(structures, cutoff)
    levels = _levels(structures, names)
    of_schnetpack = partial(as_batch, levels=levels, inputs=frozenset((*_INPUTS, *inputs)))
    kwargs["levels"] = levels
    return PotentialLoader(structures, of_schnetpack, cutoff=cutoff, species=1, **kwargs)


def as_graph(item: Mapping[str, Tensor], *, names: frozenset[str], max_z: int) -> Data:
    """Convert a SchNetPack item to a graph with the attribute names of `popgeo.potentials.padding`.

    Raises:
        ValueError: it is not an item, its fields differ from those of the first item, or an atomic number is too large.
    """
    require_same_fields(frozenset(_checked(item)) - {*_MADE}, names)
    if (largest := int(item[properties.Z].max())) >= max_z:
        raise ValueError(f"it has the atomic number {largest}; max_z is {max_z}. Leave it out or raise max_z.")
    graph = Data(edge_index=torch.stack([item[properties.idx_i], item[properties.idx_j]]))
    for name in names:
        graph[_RENAMED.get(name, name)] = item[name]
    graph.cell, graph.pbc = three_vectors(graph.cell), graph.pbc.reshape(1, 3)
    return graph


def _checked(item: Any) -> Any:
    """Return the item after a check that it is one structure with neighbors."""
    if not isinstance(item, Mapping) or properties.R not in item:
        raise ValueError(
            f"it is a {type(item).__name__}, not an item of SchNetPack. Take it from an ASEAtomsData, or use its "
            f"own framework's loader in popgeo.potentials."
        )
    if properties.offsets not in item:
        raise ValueError("it has no neighbors. Give the dataset a neighbor list of schnetpack.transform.")
    if len(item[properties.n_atoms]) != 1:
        raise ValueError(f"it is a batch of {len(item[properties.n_atoms])} structures. Pass them one by one.")
    return item


def _levels(structures: Any, names: frozenset[str]) -> dict[str, str]:
    """Infer the level of each field from its numbers of rows, because SchNetPack does not state levels."""
    levels = {"forces": "node"}
    some = [structures[number] for number in range(min(len(structures), _NUM_LOOKED_AT))]
    for name in names - _RENAMED.keys():
        rows = [len(graph[name]) if graph[name].dim() else -1 for graph in some]
        sizes = {
            "graph": [1] * len(some),
            "node": [len(graph.pos) for graph in some],
            "edge": [graph.edge_index.shape[1] for graph in some],
        }
        fitting = [level for level, known in sizes.items() if known == rows]
        if not fitting:
            raise ValueError(
                f"{name!r} has {rows[:4]} rows in the first structures, which have {sizes['node'][:4]} atoms and "
                f"{sizes['edge'][:4]} pairs, so its rows belong to neither. Leave it out."
            )
        levels.setdefault(name, fitting[0])
    return levels


def as_batch(batch: Batch, *, levels: Mapping[str, str], inputs: frozenset[str]) -> dict[str, Tensor]:
    """Convert a batch with the contract of `popgeo.potentials.padding` to SchNetPack's batch."""
    fields = dict(batch.to_dict())
    idx_m, ptr, edges = fields.pop("batch"), fields.pop("ptr"), fields.pop("edge_index")
    for name, ours in _RENAMED.items():
        fields[name] = fields.pop(ours)
    fields[properties.pbc] = fields[properties.pbc].flatten()
    fields |= {properties.n_atoms: ptr.diff(), properties.idx_m: idx_m}
    for pair, rows, local in zip(edges, _MADE[1:3], (properties.lidx_i, properties.lidx_j), strict=True):
        fields[rows], fields[local] = pair, pair - ptr[idx_m[pair]]
    masks = {level.name.lower(): fields[name] for level, name in MASKS.items()}
    for name, level in levels.items():
        if name in fields and name not in inputs:
            value = fields[name]
            absent = torch.nan if value.is_floating_point() else -1 if name == properties.idx else value
            fields[name] = where_real(masks[level], value, absent)
    return fields


def evaluator(model: Any, **kwargs: Unpack[EvaluatorArguments]) -> Evaluator:
    """Return an evaluator for a SchNetPack model, with the model's cutoff.

    Args:
        model: An `AtomisticModel` with the outputs `energy`, `forces` and, if it has it, `stress`.
        kwargs: `energy_unit`, `num_nodes`, `num_edges`, `num_graphs`, `skin` and others; see `EvaluatorArguments`.
    """
    like = next(model.parameters())
    return Evaluator(
        partial(_call, model, model=model),
        as_graph=with_unit_shift,
        as_batch=partial(as_batch, levels={}, inputs=frozenset(_INPUTS)),
        cutoff=float(model.representation.cutoff),
        species=1,
        **EvaluatorArguments(dtype=like.dtype, device=like.device) | kwargs,
    )


def of_real(values: Mapping[str, Tensor], batch: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return a dictionary of tensors in which the tensors in `names` have only real rows.

    Args:
        values: A batch of this page, or a model's results for it.
        batch: The batch. Without masks it has no padding.
        names: Names of values with a row per atom or structure.
    """
    if "nodes_mask" not in batch:
        return dict(values)
    masks = {name: batch[name] for name in ("nodes_mask", "graphs_mask")}
    return {**values, **unpad_outputs({name: values[name] for name in names if name in values}, masks)}


class FixedSizeTask(AtomisticTask):
    """SchNetPack's task for batches of `fixed_size_loader`, whose losses and metrics get only real rows."""

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the model's results for real rows."""
        found = _call(super().forward, inputs, model=self.model)
        return of_real(found, inputs, [output.name for output in self.outputs])

    def _with_real_targets(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a batch whose targets have only real rows."""
        names = {output.target_property for output in self.outputs if not isinstance(output, UnsupervisedModelOutput)}
        # The number of structures is the weight of a batch in the mean over validation.
        return of_real(batch, batch, names | {properties.idx, "considered_atoms"})

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Any:
        """Run SchNetPack's own step on real targets."""
        return super().training_step(self._with_real_targets(batch), batch_idx)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> Any:
        """Run SchNetPack's own step on real targets."""
        return super().validation_step(self._with_real_targets(batch), batch_idx)

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> Any:
        """Run SchNetPack's own step on real targets."""
        return super().test_step(self._with_real_targets(batch), batch_idx)


def use_fixed_sizes(datamodule: Any, *, cutoff: float, splits: Iterable[str] = ("train",), **kwargs: Any) -> None:
    """Replace the `AtomsLoader` of a SchNetPack data module by a `fixed_size_loader`.

    Args:
        datamodule: Data module of SchNetPack; it is set up here.
        cutoff: The model's cutoff.
        splits: Names of splits: "train", "val" and "test".
        kwargs: Further arguments of `fixed_size_loader`. Default for `shuffle`: True for "train", as in SchNetPack.
    """
    datamodule.setup()
    for split in splits:
        chosen = {"shuffle": split == "train", **kwargs}
        loader = fixed_size_loader(getattr(datamodule, f"{split}_dataset"), cutoff=cutoff, **chosen)
        setattr(datamodule, f"_{split}_dataloader", loader)


class TaskStep(nn.Module):
    """A training step of SchNetPack as one module, from a batch to its loss, for `popgeo.compile_step`.

        step = popgeo.compile_step(TaskStep(model, outputs), optimizer)
        loss = step(**batch)

    Args:
        model: A model of SchNetPack.
        outputs: Outputs of an `AtomisticTask`. Each `loss_fn` is a mean that is 0 without errors. Constraints are not
            applied.
    """

    def __init__(self, model: nn.Module, outputs: Iterable[ModelOutput]) -> None:
        super().__init__()
        self.model, self.outputs = model, nn.ModuleList(outputs)

    def forward(self, **batch: Tensor) -> Tensor:
        """Return the loss of a batch. The arguments are `**batch`.

        Raises:
            ValueError: the batch is from a different loader, or an output has no row per atom or structure.
        """
        require_names(batch, (properties.R, properties.idx_m, *MASKS.values()), "schnetpack")
        with _LastStructureMode(batch[properties.idx_m], len(batch[properties.n_atoms])):
            pred = _call(self.model, dict(batch), model=self.model)
        total: Any = 0.0
        every: Any = self.outputs
        for output in every:
            given, target = pred[output.name], batch[output.target_property]
            fitting = [mask for mask in ("graphs_mask", "nodes_mask") if len(batch[mask]) == len(given)]
            if len(fitting) != 1:
                raise ValueError(f"{output.name!r} has {len(given)} rows, which are not rows of atoms or structures.")
            mask = batch[fitting[0]]
            real = [where_real(mask, value, 0) for value in (given, target)]
            loss = output.calculate_loss({output.name: real[0]}, {output.target_property: real[1]})
            total = total + slots_per_real(mask, loss.dtype) * loss
        return total


class _LastStructureMode(TorchFunctionMode):
    """A mode that computes SchNetPack's `int(idx_m[-1])`, the number of the last structure, from the fixed shape."""

    def __init__(self, idx_m: Tensor, num_structures: int) -> None:
        super().__init__()
        self.idx_m, self.num_structures, self.last = idx_m, num_structures, None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.__int__ and args[0] is self.last:
            return self.num_structures - 1
        result = function(*args, **(kwargs or {}))
        if function is Tensor.__getitem__ and args[0] is self.idx_m and args[1] == -1:
            self.last = result
        return result
