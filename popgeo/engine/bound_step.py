"""A captured step, bound to memory and to the runner that executes it."""

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from torch import Tensor

from popgeo import largest_graph
from popgeo.capture.arguments import Arguments, BatchArguments
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.held_state import ONE_AT_A_TIME
from popgeo.capture.pytree import Container, Structure, unflatten
from popgeo.capture.structures import first_difference, same, takes
from popgeo.engine.backend import Backend
from popgeo.engine.cuda_graph import CudaGraphRunner
from popgeo.engine.freed_memory import require_arguments, require_weights
from popgeo.engine.misuse import mark_as_done, without_derivative
from popgeo.engine.model_watch import ModelWatch
from popgeo.engine.step_recipe import Recipe, StepPlan
from popgeo.engine.step_runner import StepRunner
from popgeo.native.plain_tensor import lies_in_memory

NOTHING_ON_A_GPU = (
    "A step on a GPU has no random numbers, buffers or optimizer state of its own to save. Save the state_dict of the "
    "model and of the optimizer, or use backend='cpu'."
)


@dataclass(kw_only=True, eq=False)
class BoundStep:
    """A captured step with its calling convention, its runner, and the time that it has taken so far.

    Attributes:
        signature: The signature of the captured function.
        arguments: The nesting of a call's tensors, and the values of its other arguments.
        step: The captured operations.
        runner: Runs the step here.
        plan: The machine's plan of the step; None if it was compiled for this computer alone.
        watch: Detects changes of the model since the capture.
        filters: The modules of the model that choose between filter networks and grids.
        largest_graph: Nodes of the largest graph that the capture assumes. Default: any graph of a batch.
        compile_seconds: Seconds that compiling took.
        run_seconds: Seconds of all calls together; on a GPU, seconds until the calls returned.
        calls: The number of calls.
    """

    signature: inspect.Signature
    arguments: Structure
    step: CapturedStep
    runner: StepRunner | CudaGraphRunner
    plan: StepPlan | None
    watch: ModelWatch
    filters: Sequence[Any]
    largest_graph: int | None = None
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    calls: int = 0
    _forms: dict[tuple[Any, ...], list[tuple[int, Structure]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._of_batch = BatchArguments(self.signature)

    def __call__(self, tensors: Sequence[Tensor], graph_data: Sequence[Any]) -> Any:
        """Run a call, and count it unless it fails.

        Args:
            tensors: The tensors of the call, from `flatten`.
            graph_data: The graph data among its arguments.

        Raises:
            ValueError: a tensor has no memory; the message names it.
        """
        if not all(map(lies_in_memory, tensors)):
            require_arguments(self.arguments, tensors)
        start = time.perf_counter()
        results = self.runner.run(tensors)
        self.run_seconds += time.perf_counter() - start
        self.calls += 1
        if self.step.trained:
            mark_as_done(results)
        else:
            results = without_derivative(results, tensors)
        return self.unflatten(results, graph_data)

    def serves(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether the step still fits the model and a call; bind it again if weights have only moved."""
        if self.largest_graph is not None and largest_graph.may_exceed(tensors, self.largest_graph):
            return False
        waits = not isinstance(self.runner, CudaGraphRunner) or self.runner.has_other_weights()
        if self.watch.is_unchanged() and not any(part.follow_filters(waits=waits) for part in self.filters):
            return True
        with ONE_AT_A_TIME:  # another thread may be capturing the same model
            for part in self.filters:
                part.follow_filters(may_be_replaced=True)
            if self.watch.needs_capture():
                return False
            if self.watch.has_moved() and isinstance(self.runner, StepRunner):
                require_weights(self.watch.model)
                self.runner.bind()
            self.watch.look()
        return True

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Tensor], list[Any]]:
        """Return the tensors of a call, and the graph data among its arguments.

        Raises:
            ValueError: an argument differs from the compiled step's; the message names it.
        """
        args, kwargs = self._of_batch(args, kwargs)
        form = self._forms.get((len(args), *kwargs))
        if form is not None:
            parts = (*args, *kwargs.values())
            tensors: list[Tensor] = []
            graph_data: list[Any] = []
            for position, compiled in form:
                if not takes(compiled, parts[position], tensors, graph_data):
                    break
            else:
                return tensors, graph_data
        given = Arguments.of(self.signature, args, kwargs)
        if not same(self.arguments, given.structure):
            given = given.like(self.arguments)
        if not same(self.arguments, given.structure):
            differs = first_difference(self.arguments, given.structure)
            of_seeds = " Seeds that differ in number are given as seeds_mask." if "`batch_size`" in differs else ""
            raise ValueError(
                f"{differs}. A compiled step has fixed shapes: pass arguments of these shapes, or call reset() and "
                f"compile again.{of_seeds}"
            )
        self._learn_form(len(args), tuple(kwargs))
        return given.tensors, given.graph_data

    def _learn_form(self, num_positional: int, keywords: tuple[str, ...]) -> None:
        """Record the positions of the compiled arguments in calls with the same form of arguments.

        A form is a number of positional arguments and a tuple of keywords. Later calls of a recorded form are not
        bound to the signature again.
        """
        known, compiled, form = self.signature.parameters, self.arguments, list[tuple[int, Structure]]()
        if not isinstance(compiled, Container) or any(one.kind is one.VAR_KEYWORD for one in known.values()):
            return
        named = [*takewhile(lambda name: known[name].kind is not inspect.Parameter.VAR_POSITIONAL, known)]
        given = [*named[:num_positional], *[""] * (num_positional - len(named)), *keywords]  # no name for *args
        for key, part in zip(compiled.keys, compiled.parts, strict=True):
            if key in given:
                form.append((given.index(key), part))
            elif isinstance(part, Container) and known[key].kind is inspect.Parameter.VAR_POSITIONAL:
                form += enumerate(part.parts, len(named))
        if len(form) == len(given):
            self._forms.update({(num_positional, *keywords): form})

    def unflatten(self, results: Sequence[Tensor], graph_data: Sequence[Any]) -> Any:
        """Return the function's result, built from tensors; its graph data are made like the call's graph data."""
        return unflatten(self.step.result, results, graph_data)

    @property
    def on_processor(self) -> StepRunner:
        """The runner of a step on the processor; a step on a GPU raises a ValueError."""
        if isinstance(self.runner, StepRunner):
            return self.runner
        raise ValueError(NOTHING_ON_A_GPU)

    @property
    def planned(self) -> StepPlan:
        """The machine's plan; a step that was compiled for this computer alone raises a ValueError."""
        if self.plan is None and isinstance(self.runner, CudaGraphRunner):
            raise ValueError(
                "The step runs on a GPU, so no simulated machine accounts for it. Move the model to the processor, "
                "model.cpu(), and compile it again to get a report."
            )
        if self.plan is None:
            raise ValueError(
                "The step was compiled for this computer alone, so no machine accounts for it. Use "
                "popgeo.training_model, popgeo.inference_model or popgeo.ipu.compile, which compile it for one too."
            )
        return self.plan

    def figures(self) -> dict[str, Any]:
        """Return the cost on this computer so far: seconds, calls, bytes, and how the step runs as text."""
        runner = self.on_processor
        return {
            "compile_seconds": self.compile_seconds,
            "run_seconds": self.run_seconds,
            "calls": self.calls,
            "state_bytes": runner.state_bytes,
            "buffer_bytes": runner.usual.buffer_bytes,
            "how_it_runs": runner.how_it_runs(),
        }


def table_of(recipe: Recipe, bound: BoundStep | None) -> Any:
    """Return the choices for a step and its present counts, as a series of pandas."""
    import pandas as pd

    shown = {"model": recipe.name, "weights": sum(p.numel() for p in recipe.module.parameters())}
    shown |= {} if recipe.optimizer is None else {"optimizer": type(recipe.optimizer).__name__}
    shown |= {"micro-batches per call": recipe.options.batch_factor, "compiled": bound is not None}
    if bound is not None:
        shown |= {"operations": len(bound.step.graph.ops), "calls": bound.calls}
        if recipe.backend is not Backend.CUDA:  # calls on a GPU return before they finish
            shown |= {"seconds": round(bound.run_seconds, 3)}
    return pd.Series({name: f"{value:,}" if type(value) in (int, float) else value for name, value in shown.items()})
