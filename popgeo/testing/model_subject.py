"""A model as claims see it: how it is called, on which batches, and what it left when it ran."""

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
from popgeo.testing.fixed_batches import FixedBatch, Garbage, a_few, fixed_batch
from popgeo.testing.observe import observe

_KEPT = 40  # runs
MORE = 5  # graphs of padding beyond the least; nodes and edges grow by multiples of it
_CALL = (
    "call=lambda model, batch: model(batch.x, ...), or name a factory that returns ModelSubject(what=model, "
    "graphs=graphs, call=call)."
)


@dataclass(frozen=True, kw_only=True)
class ModelSubject(Subject):
    """A module or a function of a batch.

    Attributes:
        call: Calls the model as `call(model, batch)`, where `model` is a copy of it. Otherwise it gets the attributes
            of the batch that its arguments are named for, or the batch itself if it has one argument of its own.
        loss: What gradients are taken of, as `loss(result, batch)`. Otherwise it is the sum of the scalar results, or
            without any the mean square of the real rows of all results.
        num_graphs: Graphs of each batch, padding included, of a model that is built for a fixed number of them.
        tolerance: Largest difference allowed, relative to the largest entry of the same tensor; 1e-4 by default, 1e-8
            in float64.
        cutoff: The distance from which on two atoms do not see each other; the model's own `cutoff` otherwise.
        energy: The key under which the model returns energies, one for each graph.
        forces: That of forces, one row for each node.
        vectors: The attributes of graphs that turn in space with them.
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
            object.__setattr__(self, "graphs", tuple(a_few(Molecules(), 4)))
        if not callable(self.what):
            raise ValueError(f"{type(self.what).__name__} is neither a module nor a function. Pass a model, or kind=.")

    @cached_property
    def modes(self) -> list[Any]:
        """The model as it is, unless it is random then, and, last, in evaluation; a function has one mode."""
        if not isinstance(self.what, nn.Module) or not any(module.training for module in self.what.modules()):
            return [self.what]
        return [self.evaluated] if self._is_random_in(self.what) else [self.what, self.evaluated]

    @cached_property
    def evaluated(self) -> Any:
        """The model in evaluation."""
        return copy.deepcopy(self.what).eval() if isinstance(self.what, nn.Module) else self.what

    def run(self, model: Any, batch: Batch) -> Any:
        """Calls the model with a batch."""
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
        """Runs a copy of the model on these graphs.

        Args:
            graphs: Without padding.
            model: The model in one of its modes; in evaluation otherwise.
            padding: See `fixed_batch`; a model of a fixed number of graphs always has some.
            garbage: The content of padding.
            change: A change of the batch before the model sees it.
            wide: Whether model and graphs are in float64.
            before: Other graphs, of which the same copy sees a batch first.
            how: As of `observe`.

        Raises:
            NotTriedError: the model does not run in float64.
        """
        few = graphs if self.num_graphs is None else graphs[: max(self.num_graphs - 1, 1)]
        model = self.evaluated if model is None else model
        # The same run serves many claims; the kept results hold the graphs and the model, so that ids stay theirs.
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
        torch.set_default_dtype(torch.float64 if wide else default)  # of tensors that the model makes
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
        """A batch whose floating point numbers have the type of the model's weights."""
        padding = 0 if padding is None and self.num_graphs is not None else padding
        made = fixed_batch(graphs, padding=padding, garbage=garbage, num_graphs=self.num_graphs)
        if dtype is not None:
            made.batch.apply(lambda x: x.to(dtype) if x.is_floating_point() else x)
        return made

    def compare(
        self, found: ModelRun, expected: ModelRun, why: str, model: Any = None, *, rows_only: bool = False
    ) -> None:
        """Raises BrokenError where two runs of a model in one of its modes differ.

        Args:
            found: A run.
            expected: Another, on the same graphs.
            why: In what they differ.
            model: The model in that mode; in evaluation otherwise.
            rows_only: Whether only the results of graphs, nodes and edges are compared.
        """
        known: dict[str, Any] = {"kinds": self.kinds(model), "loss": self.loss, "tolerance": self.tolerance}
        compare_runs(found, expected, why, rows_only=rows_only, **known)

    def unless_rounded(self, check: Callable[[bool], None]) -> None:
        """Runs a check in the model's own type; a small difference counts only if it is there in float64, too.

        Slopes that are zero but for rounding, as those before a norm, differ with any change of order.
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
        """The result that is returned under a key; None if none is."""
        return next((seen.run.tensors[n] for n in (f"result[{key!r}]", f"result.{key}") if n in seen.run.tensors), None)

    def kinds(self, model: Any = None) -> dict[str, str | None]:
        """For each result, in a mode, whether it has a row for each graph, node or edge."""
        if id(model) not in self._kinds:
            least, more = (self.see(self.graphs, model=model, padding=padding) for padding in (0, MORE))
            self._kinds[id(model)] = kinds_of_rows(more, least)
        return self._kinds[id(model)]

    def prepare(self) -> None:
        """Runs it once on a plain batch."""
        batch = fixed_batch(self.graphs, padding=0, garbage=0.0).batch
        names = [] if self.call else list(_arguments(self.what, batch)[1])
        for weight in self.what.parameters() if isinstance(self.what, nn.Module) else ():
            if weight.device.type != "cpu":
                raise ValueError(f"{self.name} is on {weight.device}; the kit runs on the processor: pass model.cpu().")
        try:
            self.see(self.graphs, model=self.modes[0])
        except Exception as error:
            if isinstance(error, ValueError) and "no tensor" in str(error):
                raise
            given = "what call gives it" if self.call is not None else ", ".join(names) or "a batch"
            raise ValueError(
                f"{self.name} does not run on a batch of {len(self.graphs)} graphs ({self.graphs[0]}) with {given}: "
                f"{described(error)}\nWhich graphs does it take, and how is it called? Pass graphs=[...] and {_CALL}"
            ) from error

    def why_not(self, claim: Claim) -> str:
        """Reports that the model is random: its results never repeat, so no claim can be tried."""
        if self.is_random and claim.name != "evaluation":
            return "the model is random in evaluation: its results differ with each seed and cannot be compared"
        return ""

    @cached_property
    def is_random(self) -> bool:
        """Whether its results in evaluation change with torch's seed, dropout aside."""
        return self._is_random_in(None)

    def _is_random_in(self, mode: Any) -> bool:
        usual, with_a_seed = self.see(self.graphs, model=mode), self.see(self.graphs, model=mode, seed=1)
        one, other = usual.run.tensors, with_a_seed.run.tensors
        pairs = [(one[name], other[name]) for name in one]
        return any(old.shape != new.shape or difference(new, old) is not None for old, new in pairs)


def _dtype(model: Any) -> torch.dtype | None:
    """The floating point type of the model's weights; None if it has no floating point weights."""
    weights = (*model.parameters(), *model.buffers()) if isinstance(model, nn.Module) else ()
    return next((weight.dtype for weight in weights if weight.is_floating_point()), None)


def _arguments(model: Any, batch: Batch) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """What the model is called with: attributes of the batch by name, or the whole batch.

    Raises:
        ValueError: it needs an argument that no attribute is named for.
    """
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):
        return [batch], {}
    return BatchArguments(signature, f"Which factory makes it and says how it is called? Pass {_CALL}")([batch], {})
