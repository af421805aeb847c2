"""A model as the subject of claims: its calls, its batches, and its results."""

import copy
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from popgeo.capture.arguments import BatchArguments
from popgeo.command_line import described
from popgeo.datasets import Molecules
from popgeo.testing.claims import BrokenError, Claim, NotTriedError, Subject, SubjectKind
from popgeo.testing.compare_runs import ModelRun, compare_runs, kinds_of_rows
from popgeo.testing.differences import difference
from popgeo.testing.fixed_batches import FixedBatch, Garbage, first_graphs, fixed_batch
from popgeo.testing.observe import observe

_KEPT = 40  # runs in the cache
MORE = 5  # padding graphs beyond the minimum; padding nodes and edges are multiples of it
_CALL = (
    "call=lambda model, batch: model(batch.x, ...), or name a factory that returns ModelSubject(what=model, "
    "graphs=graphs, call=call)."
)


@dataclass(frozen=True, kw_only=True)
class ModelSubject(Subject):
    """A module, or a function of a batch.

    Attributes:
        call: Function `call(model, batch)` that calls a copy of the model. Default: the model's arguments are
            attributes of the batch of the same names, or the whole batch if its only argument has another name.
        loss: Loss function `loss(result, batch)`. Default: the sum of the scalar results, or without scalars the mean
            square of the real rows of all results.
        num_graphs: Graphs of each batch, padding included, for a model with a fixed number of graphs.
        tolerance: Largest difference relative to the largest entry of the same tensor. Default: 1e-4, or 1e-8 in
            float64.
        cutoff: Largest distance at which two atoms interact. Default: the model's own `cutoff`.
        energy: Key of the energies in the model's result, one per graph.
        forces: Key of the forces in the model's result, one row per node.
        vectors: Attributes of graphs that rotate in space with the graphs.
    """

    kind: ClassVar[SubjectKind] = SubjectKind.MODEL
    call: Callable[[Any, Any], Any] | None = None
    loss: Callable[[Any, Any], Tensor] | None = None
    num_graphs: int | None = None
    tolerance: float | None = None
    cutoff: float | None = None
    energy: str | int = "energy"
    forces: str | int = "forces"
    vectors: Collection[str] = ("pos", "cell", "shifts")
    _runs: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _kinds: dict[int, dict[str, str | None]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.graphs:
            object.__setattr__(self, "graphs", tuple(first_graphs(Molecules(), 4)))
        if not callable(self.what):
            raise ValueError(f"{type(self.what).__name__} is neither a module nor a function. Pass a model, or kind=.")

    @cached_property
    def modes(self) -> list[Any]:
        """The model in each mode to test: evaluation, and its own mode unless its results are random in it.

        A function has one mode.
        """
        if not isinstance(self.what, nn.Module) or not any(module.training for module in self.what.modules()):
            return [self.what]
        return [self.evaluated] if self._is_random_in(self.what) else [self.what, self.evaluated]

    @cached_property
    def evaluated(self) -> Any:
        """The model in evaluation."""
        return copy.deepcopy(self.what).eval() if isinstance(self.what, nn.Module) else self.what

    def run(self, model: Any, batch: Batch) -> Any:
        """Call the model with a batch."""
        if self.call is not None:
            return self.call(model, batch)
        args, kwargs = _arguments(model, batch)
        return model(*args, **kwargs)

    def see(
        self,
        graphs: Sequence[Data | HeteroData],
        *,
        model: Any = None,
        padding: int | None = None,
        garbage: Garbage = 0.0,
        change: Callable[[Batch], Batch] | None = None,
        wide: bool = False,
        before: Sequence[Data | HeteroData] = (),
        **how: Any,
    ) -> ModelRun:
        """Run a copy of the model on these graphs.

        Args:
            graphs: Graphs without padding.
            model: The model in one of its modes. Default: in evaluation.
            padding: Padding of `fixed_batch`. A model with a fixed number of graphs always has some.
            garbage: Content of padding.
            change: Function that changes the batch before the model runs.
            wide: Whether the model and the graphs are in float64.
            before: Other graphs, on which the same copy runs first.
            how: Arguments of `observe`.

        Raises:
            NotTriedError: the model does not run in float64.
        """
        few = graphs if self.num_graphs is None else graphs[: max(self.num_graphs - 1, 1)]
        model = self.evaluated if model is None else model
        # Many claims use the same run. The cache keeps the graphs and the model, so that their ids stay unique.
        key = (*map(id, few), id(model), padding, str(garbage), wide)
        plain = change is None and not before and not how
        if plain and key in self._runs:
            return self._runs[key][0]
        used = copy.deepcopy(model).double() if wide and isinstance(model, nn.Module) else model
        dtype = torch.float64 if wide else _dtype(model)
        batches = [self._batch(some, padding, garbage, dtype) for some in (before, few) if some]
        made = batches[-1] if change is None else replace(batches[-1], batch=change(batches[-1].batch))

        def run(copied: Any) -> Any:
            for other in batches[:-1]:
                self.run(copied, other.batch)
            return self.run(copied, made.batch)

        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if wide else default)  # for new tensors of the model
        try:
            seen = observe(used, run, **how)
        except (RuntimeError, TypeError) as error:
            if wide:
                raise NotTriedError(f"the model does not run in float64: {error}") from error
            raise
        finally:
            torch.set_default_dtype(default)
        found = ModelRun(batch=made, run=seen, places={}).of_graphs(range(len(few)))
        if plain:
            if len(self._runs) > _KEPT:
                self._runs.clear()
            self._runs[key] = found, few, model
        return found

    def _batch(self, graphs: Sequence[Any], padding: int | None, garbage: Garbage, dtype: Any) -> FixedBatch:
        """Return a batch with floating point numbers of the type of the model's weights."""
        padding = 0 if padding is None and self.num_graphs is not None else padding
        made = fixed_batch(graphs, padding=padding, garbage=garbage, num_graphs=self.num_graphs)
        if dtype is not None:
            made.batch.apply(lambda x: x.to(dtype) if x.is_floating_point() else x)
        return made

    def compare(
        self, found: ModelRun, expected: ModelRun, why: str, model: Any = None, *, rows_only: bool = False
    ) -> None:
        """Raise BrokenError if two runs of a model in one mode differ.

        Args:
            found: A run.
            expected: Another run on the same graphs.
            why: The difference between the runs.
            model: The model in this mode. Default: in evaluation.
            rows_only: Whether to compare only results with rows of graphs, nodes and edges.
        """
        known: dict[str, Any] = {"kinds": self.kinds(model), "loss": self.loss, "tolerance": self.tolerance}
        compare_runs(found, expected, why, rows_only=rows_only, **known)

    def unless_rounded(self, check: Callable[[bool], None]) -> None:
        """Run a check in the model's own type; small differences count only if float64 confirms them.

        Slopes that are zero except for rounding, such as slopes before a norm, differ with any change of order.
        """
        try:
            check(False)
        except BrokenError as error:
            found, expected, allowed = (error.figures.get(name, math.nan) for name in ("found", "expected", "allowed"))
            if not abs(found - expected) < 100 * allowed:
                raise
            try:
                check(True)
            except NotTriedError:
                raise error from None

    def named(self, seen: ModelRun, key: str | int) -> Tensor | None:
        """Return the result with a key; None if there is no such result."""
        return next((seen.run.tensors[n] for n in (f"result[{key!r}]", f"result.{key}") if n in seen.run.tensors), None)

    def kinds(self, model: Any = None) -> dict[str, str | None]:
        """Return for each result in a mode whether it has a row per graph, node or edge."""
        if id(model) not in self._kinds:
            least, more = (self.see(self.graphs, model=model, padding=padding) for padding in (0, MORE))
            self._kinds[id(model)] = kinds_of_rows(more, least)
        return self._kinds[id(model)]

    def prepare(self) -> None:
        """Run the model once on a simple batch."""
        batch = fixed_batch(self.graphs, padding=0, garbage=0.0).batch
        names = [] if self.call else list(_arguments(self.what, batch)[1])
        for weight in self.what.parameters() if isinstance(self.what, nn.Module) else ():
            if weight.device.type != "cpu":
                raise ValueError(f"{self.name} is on {weight.device}, but the kit runs on the CPU. Pass model.cpu().")
        try:
            self.see(self.graphs, model=self.modes[0])
        except Exception as error:
            if isinstance(error, ValueError) and "without a tensor" in str(error):
                raise
            given = "the given call" if self.call is not None else ", ".join(names) or "a batch"
            raise ValueError(
                f"{self.name} does not run on a batch of {len(self.graphs)} graphs ({self.graphs[0]}) with {given}: "
                f"{described(error)}\nPass graphs that the model accepts as graphs=[...], and {_CALL}"
            ) from error

    def why_not(self, claim: Claim) -> str:
        """Return the reason that the model is random, because random results never repeat."""
        if self.is_random and claim.name != "evaluation":
            return "the model is random in evaluation, so its results cannot be compared"
        return ""

    @cached_property
    def is_random(self) -> bool:
        """Whether its results in evaluation depend on torch's seed, without dropout."""
        return self._is_random_in(None)

    def _is_random_in(self, mode: Any) -> bool:
        usual, with_a_seed = self.see(self.graphs, model=mode), self.see(self.graphs, model=mode, seed=1)
        pairs = [(old, with_a_seed.run.tensors[name]) for name, old in usual.run.tensors.items()]
        return any(old.shape != new.shape or difference(new, old) is not None for old, new in pairs)


def _dtype(model: Any) -> torch.dtype | None:
    """Return the floating point type of the model's weights; None without floating point weights."""
    weights = (*model.parameters(), *model.buffers()) if isinstance(model, nn.Module) else ()
    return next((weight.dtype for weight in weights if weight.is_floating_point()), None)


def _arguments(model: Any, batch: Batch) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of the model: attributes of the batch by name, or the whole batch.

    Raises:
        ValueError: the batch has no attribute with the name of an argument.
    """
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):
        return [batch], {}
    return BatchArguments(signature, f"Pass {_CALL}")([batch], {})
