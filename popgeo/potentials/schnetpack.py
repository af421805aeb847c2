"""SchNetPack at fixed shape: its batches of one shape in `AtomsLoader`'s place, its task over real rows, its step.

Needs `schnetpack`: pip install schnetpack. With a data module of SchNetPack and a trainer:

    use_fixed_sizes(datamodule, cutoff=5.0, num_nodes=512, num_edges=12_000, batch_size=24)
    trainer.fit(FixedSizeTask(model, outputs, ...), datamodule=datamodule)      # where AtomisticTask was

Padding has no targets: floating point fields are NaN there, but those that models read. A loss that takes padding for
real, as of SchNetPack's own task, is then NaN from the first update on, rather than wrong silently.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Batch, Data

from popgeo.data.masks import MASKS
from popgeo.potentials.evaluator import Evaluator, with_unit_shift
from popgeo.potentials.padding import PotentialLoader, Structures, slots_per_real, unpad_outputs, where_real
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
    dataset: Any, *, cutoff: float, max_z: int = 100, inputs: Iterable[str] = (), **kwargs: Any
) -> PotentialLoader:
    """Loads SchNetPack's structures in the batches of its `AtomsLoader`, all of one shape.

    They have `nodes_mask`, `edges_mask` and `graphs_mask` next to; `_idx` is -1 in padding.

    Args:
        dataset: A dataset of SchNetPack, or a list of its items, with a neighbor list; a list is kept in memory.
        cutoff: The model's: padding edges are longer, and the edges of some items are counted, as they may have been
            listed with a shorter one.
        max_z: The model's, as its representation takes it: atomic numbers are less.
        inputs: Fields that the model reads, of your own: they are 0 in padding. SchNetPack's own are known.
        kwargs: `num_nodes`, `num_edges`, `batch_size`, `shuffle` and the rest of `PotentialLoader`.

    Raises:
        ValueError: an item is not one of SchNetPack, lacks what structure 0 has, has an atomic number beyond `max_z`
            or a field whose rows are not of atoms, pairs or the structure, or lacks edges within the cutoff; see
            `PotentialLoader`.
    """
    names = frozenset(Structures(dataset, _checked)[0]) - {*_MADE}
    structures = Structures(dataset, partial(as_graph, names=names, max_z=max_z)).in_memory()
    check_edges(structures, cutoff)
    levels = _levels(structures, names)
    of_schnetpack = partial(as_batch, levels=levels, inputs=frozenset((*_INPUTS, *inputs)))
    return PotentialLoader(structures, of_schnetpack, cutoff=cutoff, species=1, levels=levels, **kwargs)


def as_graph(item: Mapping[str, Tensor], *, names: frozenset[str], max_z: int) -> Data:
    """An item of SchNetPack as a graph with the names of `popgeo.potentials.padding`.

    Raises:
        ValueError: it is not an item, other fields are in it than in the first one, or an atomic number is too large.
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
    if not isinstance(item, Mapping) or properties.R not in item:
        raise ValueError(
            f"it is a {type(item).__name__}, not an item of SchNetPack. Take it from an ASEAtomsData, or use the "
            f"loader of its own framework in popgeo.potentials."
        )
    if properties.offsets not in item:
        raise ValueError("it has no neighbors. Give the dataset a neighbor list of schnetpack.transform.")
    if len(item[properties.n_atoms]) != 1:
        raise ValueError(f"it is a batch of {len(item[properties.n_atoms])} structures. Pass them one by one.")
    return item


def _levels(structures: Any, names: frozenset[str]) -> dict[str, str]:
    """What the rows of each field belong to; SchNetPack says it nowhere."""
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
                f"{sizes['edge'][:4]} pairs, so the sizes of a batch do not fix its size. Leave it out."
            )
        levels.setdefault(name, fitting[0])
    return levels


def as_batch(batch: Batch, *, levels: Mapping[str, str], inputs: frozenset[str]) -> dict[str, Tensor]:
    """SchNetPack's batch of one that keeps the contract of `popgeo.potentials.padding`."""
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


def evaluator(model: Any, **kwargs: Any) -> Evaluator:
    """Energies, forces and, if it has them, stress by a model of SchNetPack, with the cutoff that it has itself.

    Args:
        model: An `AtomisticModel` whose outputs are called so.
        kwargs: `energy_unit`, `num_nodes`, `num_edges`, `num_graphs`, `skin` and the rest of `Evaluator`.
    """
    like = next(model.parameters())
    return Evaluator(
        partial(_call, model, model=model),
        as_graph=with_unit_shift,
        as_batch=partial(as_batch, levels={}, inputs=frozenset(_INPUTS)),
        cutoff=float(model.representation.cutoff),
        species=1,
        **{"dtype": like.dtype, "device": like.device, **kwargs},
    )


def of_real(values: Mapping[str, Tensor], batch: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """The values with these names for what is real alone, all others as they are.

    Args:
        values: A batch of this page, or what a model says of one.
        batch: The batch; without masks, nothing is padding.
        names: Which of them have a row for each atom or structure.
    """
    if "nodes_mask" not in batch:
        return dict(values)
    masks = {name: batch[name] for name in ("nodes_mask", "graphs_mask")}
    return {**values, **unpad_outputs({name: values[name] for name in names if name in values}, masks)}


class FixedSizeTask(AtomisticTask):
    """SchNetPack's task for batches of `fixed_size_loader`: losses and metrics see real rows only, the model all."""

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the model says of real rows."""
        found = _call(super().forward, inputs, model=self.model)
        return of_real(found, inputs, [output.name for output in self.outputs])

    def _with_real_targets(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        names = {output.target_property for output in self.outputs if not isinstance(output, UnsupervisedModelOutput)}
        # The number of structures weighs a batch in the mean over validation.
        return of_real(batch, batch, names | {properties.idx, "considered_atoms"})

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Any:
        """SchNetPack's own step on real targets."""
        return super().training_step(self._with_real_targets(batch), batch_idx)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> Any:
        """SchNetPack's own step on real targets."""
        return super().validation_step(self._with_real_targets(batch), batch_idx)

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> Any:
        """SchNetPack's own step on real targets."""
        return super().test_step(self._with_real_targets(batch), batch_idx)


def use_fixed_sizes(datamodule: Any, *, cutoff: float, splits: Iterable[str] = ("train",), **kwargs: Any) -> None:
    """Puts a `fixed_size_loader` where a data module of SchNetPack has an `AtomsLoader`.

    Args:
        datamodule: One of SchNetPack; it is set up here if it was not.
        cutoff: The model's.
        splits: Which of "train", "val" and "test".
        kwargs: What `fixed_size_loader` takes. Training is shuffled, as SchNetPack does, if it does not say.
    """
    datamodule.setup()
    for split in splits:
        chosen = {"shuffle": split == "train", **kwargs}
        loader = fixed_size_loader(getattr(datamodule, f"{split}_dataset"), cutoff=cutoff, **chosen)
        setattr(datamodule, f"_{split}_dataloader", loader)


class TaskStep(nn.Module):
    """A step of SchNetPack as one module, from a batch's tensors to its loss: for `popgeo.compile_step`.

        step = popgeo.compile_step(TaskStep(model, outputs), optimizer)
        loss = step(**batch)

    Args:
        model: A model of SchNetPack.
        outputs: As of `AtomisticTask`; each `loss_fn` a mean of what is 0 without error. Constraints are not applied.
    """

    def __init__(self, model: nn.Module, outputs: Iterable[ModelOutput]) -> None:
        super().__init__()
        self.model, self.outputs = model, nn.ModuleList(outputs)

    def forward(self, **batch: Tensor) -> Tensor:
        """The loss of a batch, given by its own names.

        Raises:
            ValueError: the batch is of another loader, or an output has rows of neither atoms nor structures.
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
    """Answers SchNetPack's `int(idx_m[-1])`, the number of the last structure, which a fixed shape decides."""

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
