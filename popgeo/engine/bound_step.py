"""A step captured for arguments of certain shapes and bound to what runs it."""

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from popgeo.capture.arguments import Arguments, BatchArguments
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.pytree import Container, Structure, unflatten
from popgeo.capture.structures import first_difference, same, takes
from popgeo.engine.cuda_graph import CudaGraphRunner
from popgeo.engine.freed_memory import require_arguments, require_weights
from popgeo.engine.misuse import mark_as_done, without_derivative
from popgeo.engine.model_watch import ModelWatch
from popgeo.engine.step_recipe import StepPlan
from popgeo.engine.step_runner import StepRunner
from popgeo.native.plain_tensor import lies_in_memory

NOTHING_ON_A_GPU = (
    "A step on a GPU keeps nothing of its own, neither random numbers nor buffers nor an optimizer's state. Save the "
    "state_dict of the model and of the optimizer, or use backend='cpu'."
)


@dataclass(kw_only=True, eq=False)
class BoundStep:
    """What compiling leaves: a captured step, how it is called, what runs it, and what that has cost so far.

    Attributes:
        signature: That of the function which was captured.
        arguments: How the tensors of a call nest, and what else it is given.
        step: What runs.
        runner: Runs it here.
        plan: How a machine would run it; None if it was compiled for this computer alone.
        compile_seconds: How long compiling took.
        run_seconds: How long all calls took together; on a GPU, how long they took to return.
        calls: How many there were.
        watch: Notices what has changed about the model since.
        largest_graph: Nodes of the largest graph that it was captured for; None if any graph of a batch will do.
    """

    signature: inspect.Signature
    arguments: Structure
    step: CapturedStep
    runner: StepRunner | CudaGraphRunner
    plan: StepPlan | None
    watch: ModelWatch
    largest_graph: int | None = None
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    calls: int = 0
    _forms: dict[tuple[Any, ...], list[tuple[int, Structure]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._of_batch = BatchArguments(self.signature)

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs a call, and counts it unless it fails.

        Raises:
            ValueError: an argument differs from what the step was compiled for; the message names it.
        """
        tensors, graph_data = self.flatten(args, kwargs)
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

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Tensor], list[Any]]:
        """The tensors of a call, and the graph data among its arguments.

        Raises:
            ValueError: an argument differs from what the step was compiled for; the message names it.
        """
        args, kwargs = self._of_batch(args, kwargs)
        form = self._forms.get((len(args), *kwargs))
        found: tuple[list[Tensor], list[Any]] = ([], [])
        if form is not None:
            parts = (*args, *kwargs.values())
            if all(takes(compiled, parts[position], *found) for position, compiled in form):
                return found
        given = Arguments.of(self.signature, args, kwargs)
        if not same(self.arguments, given.structure):
            given = given.like(self.arguments)
        if not same(self.arguments, given.structure):
            differs = first_difference(self.arguments, given.structure)
            of_seeds = " Seeds that differ in number are given as seeds_mask." if "`batch_size`" in differs else ""
            raise ValueError(
                f"{differs}. A compiled step has fixed shapes: give it what it was compiled for, or call reset() and "
                f"compile again.{of_seeds}"
            )
        self._learn_form(len(args), tuple(kwargs))
        return given.tensors, given.graph_data

    def _learn_form(self, num_positional: int, keywords: tuple[str, ...]) -> None:
        """Notes where a call that names its arguments so has what the step was compiled for, in its order.

        The next one of this form need not be matched with the signature.
        """
        known = list(self.signature.parameters.values())
        given = [*(one.name for one in known[:num_positional]), *keywords]
        compiled = self.arguments
        if [one.kind for one in known] == [inspect.Parameter.VAR_POSITIONAL] and num_positional:
            assert isinstance(compiled, Container)  # a dictionary that has a tuple
            assert isinstance(compiled.parts[0], Container)
            self._forms[num_positional,] = list(enumerate(compiled.parts[0].parts))
            return
        plain = all(one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in known)
        if plain and isinstance(compiled, Container) and set(given) <= set(compiled.keys):
            parts = zip(compiled.keys, compiled.parts, strict=True)
            form: tuple[Any, ...] = (num_positional, *keywords)
            self._forms[form] = [(given.index(key), part) for key, part in parts if key in given]

    def follow_memory(self) -> None:
        """Binds the step to the memory in which the weights are now, if they have moved."""
        if self.watch.has_moved() and isinstance(self.runner, StepRunner):
            require_weights(self.watch.model)
            self.runner.bind()
        self.watch.look()

    def unflatten(self, results: Sequence[Tensor], graph_data: Sequence[Any]) -> Any:
        """What the function returns, where results that are graph data are like that of the call."""
        return unflatten(self.step.result, results, graph_data)

    @property
    def on_processor(self) -> StepRunner:
        """What runs it on the processor.

        Raises:
            ValueError: a GPU does.
        """
        if isinstance(self.runner, StepRunner):
            return self.runner
        raise ValueError(NOTHING_ON_A_GPU)

    @property
    def planned(self) -> StepPlan:
        """How a machine would run it.

        Raises:
            ValueError: it was compiled for this computer alone.
        """
        if self.plan is None:
            raise ValueError(
                "The step was compiled for this computer alone, so no machine accounts for it. Use "
                "popgeo.training_model, popgeo.inference_model or popgeo.ipu.compile, which compile it for one too."
            )
        return self.plan

    def figures(self) -> dict[str, Any]:
        """What the step has cost this computer so far: seconds, calls, bytes, and in words how it runs."""
        runner = self.on_processor
        return {
            "compile_seconds": self.compile_seconds,
            "run_seconds": self.run_seconds,
            "calls": self.calls,
            "state_bytes": runner.state_bytes,
            "buffer_bytes": runner.usual.buffer_bytes,
            "how_it_runs": runner.how_it_runs(),
        }
