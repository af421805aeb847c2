"""Programs that map the named tensors of a fixed-size batch to named results per graph, node or edge."""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from popgeo.capture.arguments import taken_by_name
from popgeo.capture.capture import signature_of
from popgeo.data.axes import Axis, Level
from popgeo.data.batch_contents import Layout, Slot
from popgeo.data.batch_layout import LayoutChoices
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.nn.atom_targets import matrix_to_voigt
from popgeo.nn.forces import energy_and_forces, energy_forces_and_stress, volumes

if TYPE_CHECKING:
    from torch_geometric.data import Batch

    from popgeo.nn.models.atom_model import AtomModel

Tensors = Mapping[str, Tensor]
WHOLE_BATCH = ""
"""Used in place of an argument's name if the model takes one `Batch`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedProgram:
    """A program that computes the results of one batch of fixed size, from a compiled model or a file.

    Args:
        run: Function from a batch's tensors, in the order of `inputs`, to results by name. Keeps no tensor.
        inputs: Inputs of `run` in order, as tensors without values.
        sizes: Sizes of the batch, and values of its padding.
        axes: Level (graph, node or edge) and type of the rows of each result.
        layout: Layout of the batch.
        model: Model that `run` computes; None if the program is from a file.
        names: Attributes that the model takes, also those that the graphs of this program lack; None for all.
        cutoff: Length up to which pairs of atoms must be listed; None for a model without a cutoff.

    Raises:
        ValueError: the layout sorts edges, and a result has a row per edge, so it would be in the order of the batch.
    """

    run: Callable[..., Tensors]
    inputs: Tensors
    sizes: FixedSizeOptions
    axes: Mapping[str, Axis]
    layout: LayoutChoices = field(default_factory=LayoutChoices)
    model: "FixedModel | None" = None
    names: frozenset[str] | None = None
    cutoff: float | None = None

    def __post_init__(self) -> None:
        moved = [name for name, axis in self.axes.items() if axis.level is Level.EDGE]
        if self.layout.sort_edges and moved:
            raise ValueError(
                f"The results {moved} have a row per edge, and layout.sort_edges changes the order of the edges. "
                "Leave sort_edges out; to sort edges anyway, sort the edges of the graphs."
            )


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """A description of the arguments with which a model is called.

    Args:
        inputs: Names of the tensors of a batch that the model needs, see `input_name`.
        arguments: For each argument of the model, the name of its tensor, or a dictionary of names by type.
        constants: Constant arguments, such as `num_graphs`.
        results: Names of the results of a model that returns a tuple.
    """

    inputs: tuple[str, ...]
    arguments: Mapping[str, str | Mapping[Any, str]]
    constants: Mapping[str, Any]
    results: tuple[str, ...] = ()


class FixedModel(nn.Module):
    """A module that calls a model with the tensors of `call.inputs`, in order, and returns a dictionary of tensors.

    This is the module that is compiled, captured or exported. Its arguments are tensors; `num_graphs` is a constant.
    """

    def __init__(self, model: nn.Module, call: ModelCall) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Return the results by name, without results that are not tensors with rows."""
        given = dict(zip(self.call.inputs, tensors, strict=True))
        arguments: dict[str, Any] = {
            name: given[of] if isinstance(of, str) else {key: given[one] for key, one in of.items()}
            for name, of in self.call.arguments.items()
        }
        if WHOLE_BATCH in arguments:
            return dict(_named(self.model(_as_batch(arguments[WHOLE_BATCH], self.call.constants)), self.call.results))
        return dict(_named(self.model(**arguments, **self.call.constants), self.call.results))


class ForceModel(nn.Module):
    """A wrapper of an energy model that also returns forces, and stress if graphs have cells.

    Args:
        model: Model such as `SchNet`, called with `z`, `pos` and other arguments; returns energies.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.neighbor_rule = model, getattr(model, "neighbor_rule", None)
        taken = {one.name: one for one in _parameters(model)}
        self.adds_cell = "edge_shift" in taken and "cell" not in taken
        # Models with a neighbor rule read cells only to check edges.
        self.strains = self.adds_cell or self.neighbor_rule is not None
        if self.adds_cell:
            taken["cell"] = inspect.Parameter("cell", inspect.Parameter.KEYWORD_ONLY, default=None)
        self.signature = inspect.Signature(list(taken.values()))

    def forward(self, z: Tensor, pos: Tensor, **others: Any) -> dict[str, Tensor]:
        """Return energies [num_graphs, 1], forces [num_nodes, 3] and stress in Voigt's order [num_graphs, 6].

        The stress of a structure without a volume is NaN.
        """
        if self.strains and {"cell", "edge_shift"} <= others.keys():
            energy, forces, stress = energy_forces_and_stress(self.model, z, pos, **others)
            has_volume = volumes(others["cell"]).view(-1, 1) > 0
            stress = torch.where(has_volume, matrix_to_voigt(stress), torch.nan)
            return {"energy": energy, "forces": forces, "stress": stress}
        if self.adds_cell:
            others.pop("cell", None)
        energy, forces = energy_and_forces(self.model, z, pos, **others)
        return {"energy": energy.detach(), "forces": forces}


class Float64Model(nn.Module):
    """A wrapper of an atom model that computes position differences, and sums over atoms, in float64.

    Args:
        model: Model such as `SchNet`, which computes both in float64 if positions are float64.
    """

    def __init__(self, model: "AtomModel") -> None:
        super().__init__()
        self.model = model
        self.neighbor_rule = model.neighbor_rule
        self.signature = inspect.Signature(list(_parameters(model)))

    def forward(self, z: Tensor, pos: Tensor, *args: Any, **others: Any) -> Tensor:
        """Return the model's result in the type of the positions or of the weights, whichever is wider."""
        kept = torch.promote_types(self.model.embedding.weight.dtype, pos.dtype)
        return self.model(z, pos.double(), *args, **others).to(kept)


def as_predicted(model: nn.Module, forces: bool) -> nn.Module:
    """Wrap a model for use in a program: atom models compute in float64, and `forces=True` adds forces."""
    from popgeo.nn.models.atom_model import AtomModel  # imports PyG

    model = Float64Model(model) if isinstance(model, AtomModel) else model
    return ForceModel(model) if forces else model


def input_name(slot: Slot) -> str:
    """Return the name of a program's input for a tensor of a batch: `x`, or `x[paper]` if there are types."""
    if slot.store is None:
        return slot.name
    return f"{slot.name}[{slot.store if isinstance(slot.store, str) else '-'.join(slot.store)}]"


def call_of(
    model: nn.Module, layout: Layout, *, arguments: Mapping[str, Any] | None = None, results: Sequence[str] = ()
) -> ModelCall:
    """Return how to call a model: each argument gets the attribute of the batch with the same name.

    `num_graphs`, `num_nodes`, `num_edges` and PyG's `batch_size` are numbers of slots. Names such as `x_dict` are
    dictionaries by type. If the only argument is not an attribute, such as `data`, or is called `batch`, it gets the
    whole batch.

    Args:
        model: The model.
        layout: Layout of a batch.
        arguments: Constant arguments, such as `{"half_list": True}`.
        results: Names of the results of a model that returns a tuple.

    Raises:
        ValueError: a required argument of the model is not an attribute of the graphs.
    """
    slots = {slot.name: slot for slot in layout.slots if slot.store is None}
    of_types: dict[str, dict[Any, str]] = {}
    for slot in layout.slots:
        if slot.store is not None:
            of_types.setdefault(f"{slot.name}_dict", {})[slot.store] = input_name(slot)
    counts, constants = counts_of(layout.options), dict(arguments or {})
    remedy = (
        "Name the attributes as the model's arguments are named, or pass arguments={{{!r}: ...}} if it is the same "
        "in every call."
    )
    names = taken_by_name(_parameters(model), slots | of_types | counts, remedy, constants)
    if names is None:
        tensors: dict[str, Any] = {WHOLE_BATCH: {(slot.store, slot.name): input_name(slot) for slot in layout.slots}}
        constants = {"num_graphs": layout.options.num_graphs}
    else:
        of_slots = {name: input_name(slot) for name, slot in slots.items()} | of_types
        tensors = {name: of_slots[name] for name in names if name in of_slots}
        constants |= {name: counts[name] for name in names if name not in of_slots}
    nested = [[one] if isinstance(one, str) else list(one.values()) for one in tensors.values()]
    inputs = tuple(name for part in nested for name in part)
    return ModelCall(inputs=inputs, arguments=tensors, constants=constants, results=tuple(results))


def counts_of(sizes: FixedSizeOptions) -> dict[str, Any]:
    """Return a batch's slot counts by argument name, such as `num_nodes`. Types are counted separately."""
    counts: dict[str, Any] = {"num_graphs": sizes.num_graphs, "batch_size": sizes.num_graphs}
    of_nodes = {} if isinstance(sizes.num_nodes, dict) else {"num_nodes": sizes.num_nodes, "num_edges": sizes.num_edges}
    return counts | of_nodes


def axes_of_results(results: Tensors, layout: Layout, given: Mapping[str, str | Level | Axis]) -> dict[str, Axis]:
    """Return the level of each result: the given level, or the level whose number of slots equals the number of rows.

    Results that match no level are left out.

    Raises:
        ValueError: no result matches a level, or a result matches two levels.
    """
    options = layout.options
    axes = [Axis(Level.GRAPH, None), *dict.fromkeys(s.axis for s in layout.slots if s.axis.level is not Level.GRAPH)]
    rows = {axis: options.num_graphs if axis.level is Level.GRAPH else options.slots(axis) for axis in axes}
    found: dict[str, Axis] = {}
    for name, tensor in results.items():
        fitting = [axis for axis in axes if tensor.dim() and tensor.shape[0] == rows[axis]]
        if name in given:
            wanted = given[name] if isinstance(given[name], Axis) else Level(given[name])
            fitting = [axis for axis in axes if wanted in (axis, axis.level)]
            fitting = [axis for axis in fitting if len(fitting) == 1 or axis.store == name] or fitting
        if len(fitting) > 1:
            labels = " or ".join(axis.label for axis in fitting)
            raise ValueError(
                f"Result {name!r} has {tensor.shape[0]} rows, which may be rows of {labels}. Pass the level, as in "
                f"results={{{name!r}: 'node'}}, or pass sizes that differ."
            )
        if fitting:
            found[name] = fitting[0]
    if not found:
        # Numbers without a dimension, and tensors within lists of a list, are not results.
        shapes = {name: list(tensor.shape) for name, tensor in results.items()} or "single numbers, or lists of lists"
        known = ", ".join(f"{count} {axis.label}" for axis, count in rows.items())
        raise ValueError(
            f"No result has one row per graph, node or edge: they are {shapes}, and a batch has {known}. "
            "A pooling may need size=num_graphs; if the first rows are right, pass results={'out': 'graph'}."
        )
    return found


def names_taken(model: nn.Module, attributes: Collection[str]) -> frozenset[str] | None:
    """Return the attributes that match a model's argument names; None if the model takes the whole batch.

    Args:
        model: The model.
        attributes: Attributes of the graphs.
    """
    parameters = list(_parameters(model))
    names = frozenset(one.name.removesuffix("_dict") for one in parameters)
    required = [one.name.removesuffix("_dict") for one in parameters if one.default is one.empty]
    return None if len(required) == 1 and required[0] not in attributes else names


def _parameters(model: nn.Module) -> Iterator[inspect.Parameter]:
    """Return the named parameters of a model's `forward`."""
    signature = getattr(model, "signature", None) or signature_of(model)
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return (one for one in signature.parameters.values() if one.kind not in loose)


def _as_batch(tensors: Mapping[Any, Tensor], constants: Mapping[str, Any]) -> "Batch":
    """Build a batch from tensors by store and name."""
    from torch_geometric.data import Batch, Data, HeteroData

    has_types = any(store is not None for store, _ in tensors)
    batch = Batch(_base_cls=HeteroData if has_types else Data)
    for (store, name), tensor in tensors.items():
        setattr(batch if store is None else batch[store], name, tensor)
    batch._num_graphs = constants["num_graphs"]
    return batch


def _named(results: Any, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Return the tensors in a model's results, by name."""
    if isinstance(results, Tensor):
        pairs: Any = [(names[0] if names else "out", results)]
    elif isinstance(results, Mapping):
        pairs = results.items()
    elif dataclasses.is_dataclass(results):
        pairs = vars(results).items()
    elif isinstance(results, (tuple, list)):
        known = names or getattr(results, "_fields", None) or [f"out_{i}" for i in range(len(results))]
        pairs = zip(known, results, strict=True)
    else:
        raise ValueError(f"The model returns a {type(results).__name__}; it must return one tensor or several.")
    return ((str(name), one) for name, one in pairs if isinstance(one, Tensor) and one.dim())
