"""Captures a whole step, forward, backward and update, as one CUDA graph, and replays it."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.byte_block import ByteBlock
from popgeo.capture.arguments import Arguments
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.held_state import in_modes
from popgeo.capture.model_lines import line_of_error
from popgeo.capture.op_graph import Role
from popgeo.capture.pytree import flatten
from popgeo.engine.backend import device_of
from popgeo.engine.gradient_accumulation import CallResults, micro_batch, write_back
from popgeo.engine.optimizer.capturable import CapturableOptimizer
from popgeo.engine.optimizer.gradient_scaling import GradientScaling
from popgeo.engine.step_recipe import Recipe
from popgeo.ops import sum_on_device
from popgeo.quantity import quantity

# Libraries choose their kernels and take their memory in the first runs, which no capture may hold.
WARM_UP = 3


class CudaGraphRunner:
    """Runs a model's step on a GPU: eagerly at first, then as one captured graph.

    The first updates are real ones, so nothing has to be undone: they make the optimizer's state and let libraries
    settle. The next is captured and from then on replayed. Learning rates lie on the device, random numbers advance
    with each replay. Where weights, buffers or the optimizer's state move, the step is captured again.

    Args:
        recipe: The model, on a device, and what is done with it.
        step: What the model returns and changes, found out without running it.
        arguments: Those of one update: all its micro-batches.
        cuda: `torch.cuda`, or what represents it in a test.

    Raises:
        ValueError: the optimizer cannot be captured, or the model does not return its loss.
    """

    loss_scale = None

    def __init__(self, recipe: Recipe, step: CapturedStep, arguments: Arguments, cuda: Any = torch.cuda) -> None:
        optimizer, device = recipe.optimizer, device_of(recipe.module, recipe.backend)
        if optimizer is not None and step.loss is None:
            raise ValueError("The model does not return its loss. Return it, alone or among the results.")
        self.step, self._model, self._modes, self._arguments = step, recipe.module, recipe.modes, arguments
        self._options, self._autocast, self._device, self._cuda = recipe.options, recipe.autocast, device, cuda
        self._mode = recipe.options.chosen_output_mode(trains=optimizer is not None)
        self._optimizer = None if optimizer is None else CapturableOptimizer(optimizer, device, recipe.learning_rate)
        self._trained = [p for name, p in recipe.module.named_parameters() if name in step.trained]
        given = step.graph.inputs_of(Role.ARGUMENT)
        self._written = [position for position, one in enumerate(given) if one in step.written]
        self.inputs = StaticInputs(arguments.tensors, device, cuda)
        self._side_stream = cuda.Stream(device)
        self._graph: Any = None
        self._made: list[list[Tensor]] = []
        self._addresses: list[int] = []
        self._captures = 0
        self._left_to_warm_up = WARM_UP

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results of one call, joined as the output mode says; arguments that the model changes are changed.

        Raises:
            ValueError: an operation cannot be captured, or a setting of the optimizer has changed.
        """
        options = self._options
        repeats, joined = options.device_iterations, options.gradient_accumulation
        results = CallResults(self._mode, options.output_period, options.steps_per_call)
        with self._cuda.device(self._device):
            for repeat in range(repeats):
                part = micro_batch(tensors, repeat, repeats)
                self.inputs.fill(part)
                for number, returned in enumerate(self._run_once()):
                    if results.wants(repeat * joined + number):
                        results.add(repeat * joined + number, 0, returned)
                write_back([part[i] for i in self._written], [self.inputs.tensors[i] for i in self._written])
        return results.join()

    def reset(self) -> None:
        """Forgets the captured graph; the next call runs eagerly, and the one after is captured."""
        self._graph, self._made = None, []
        if self._captures:
            self._left_to_warm_up = 1  # libraries have settled; the optimizer's state may have to be made
        if self._optimizer is not None:
            self._optimizer.prepare()
        self._addresses = self._addresses_now()

    def run_state(self) -> dict[str, Any]:
        """What a step that is compiled again continues from: the count of updates."""
        return {} if self._optimizer is None else {"num_updates": self._optimizer.num_updates}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Goes on from what `run_state` returned."""
        if self._optimizer is not None:
            self._optimizer.num_updates = content["num_updates"]

    def how_it_runs(self) -> str:
        """In words."""
        rest = f"{quantity(self.inputs.nbytes, 'B')} of inputs in one copy, {sum_on_device.describe()}"
        if self._graph is None:
            return f"eager so far, {self._left_to_warm_up} more to go, {rest}"
        return f"one CUDA graph, captured {'once' if self._captures == 1 else f'{self._captures} times'}, {rest}"

    def _run_once(self) -> list[list[Tensor]]:
        """One update, or one forward pass; what each of its micro-batches returns."""
        optimizer = self._optimizer
        if self._addresses != self._addresses_now() or not (optimizer is None or optimizer.is_as_prepared):
            self.reset()
        if optimizer is not None:
            optimizer.write_rates()
        if self._graph is None and self._left_to_warm_up:
            # On a stream of its own, as a capture runs, so that it uses the memory and the libraries of the capture.
            current = self._cuda.current_stream(self._device)
            self._side_stream.wait_stream(current)
            with self._cuda.stream(self._side_stream):
                made = self._update()
            current.wait_stream(self._side_stream)
            self._left_to_warm_up -= 1
        else:
            if self._graph is None:
                self._capture()
            self._graph.replay()
            made = self._made
        if optimizer is not None:
            optimizer.count()
        return made

    def _capture(self) -> None:
        """Captures the step; nothing of it runs yet.

        Raises:
            ValueError: something in it cannot be captured; the message names the model's line.
        """
        self._cuda.synchronize(self._device)
        graph = self._cuda.CUDAGraph()
        try:
            # Another thread may prepare batches meanwhile; its calls are not part of this.
            with self._cuda.graph(graph, capture_error_mode="thread_local"):
                self._made = self._update()
        except Exception as error:
            for parameter in self._trained:
                parameter.grad = None
            raise ValueError(_explain(error)) from error
        self._graph = graph
        self._captures += 1

    def _update(self) -> list[list[Tensor]]:
        """Forward and, when training, backward of each micro-batch, then the optimizer's update."""
        count, options = self._options.gradient_accumulation, self._options
        scale = options.constant_loss_scaling
        assert scale is not None  # the recipe refuses one that follows the gradients
        made = []
        if self._optimizer is not None:  # gradients of the first micro-batch on lie in memory of the graph
            self._optimizer.optimizer.zero_grad(set_to_none=True)
        for number in range(count):
            tensors = micro_batch(self.inputs.tensors, number, count)
            with torch.set_grad_enabled(self._optimizer is not None):
                results = self._forward(tensors)
                if self._optimizer is not None:
                    loss = results[self.step.loss]  # type: ignore[index]  # __init__ made sure of it
                    loss.backward(torch.full_like(loss, scale), inputs=self._trained)
            made.append([tensor.detach() for tensor in results])
        if self._optimizer is not None:
            scaling = GradientScaling(divisor=options.gradient_divisor, max_grad_norm=options.max_grad_norm)
            scaling.apply(self._trained, at_once=True)
            self._optimizer.step()
        return made

    def _forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        on = self._autocast is not None
        # What autocast keeps from one forward pass must not be read by a replay of another.
        with (
            in_modes(self._model, self._modes),
            torch.autocast(self._device.type, dtype=self._autocast, enabled=on, cache_enabled=False),
        ):
            tree = self._arguments.pass_to(self._model, tensors)
        return list(flatten(tree)[0])

    def _addresses_now(self) -> list[int]:
        return [tensor.data_ptr() for tensor in (*self._model.parameters(), *self._model.buffers())]


def _explain(error: BaseException) -> str:
    """What could not be captured, where, and what to do about it."""
    first = error
    while first.__context__ is not None:
        first = first.__context__
    line = line_of_error(error) or "in the backward pass or in the optimizer"
    reason = str(first).strip().partition("\n")[0]
    return (
        f"{line}: cannot be part of a captured step ({type(first).__name__}: {reason}). A captured step neither waits "
        "for the device nor copies from ordinary memory: register constants as buffers, make tensors with device=, "
        "keep values tensors. popgeo.ipu.check_static lists what depends on data; backend='cpu' needs none of this."
    )


class StaticInputs:
    """The inputs of a captured step on a device, filled by asynchronous copies through two staging blocks in turn.

    A call's tensors in ordinary memory are written into a page-locked block, which one copy on a stream of its own
    brings to the device while the step before still runs; one more copy, on the device, puts them where the step reads.

    Args:
        like: Tensors of the shapes and types of one call.
        device: Where the step runs.
        cuda: `torch.cuda`, or what represents it in a test.

    Attributes:
        tensors: Where the step reads; all in one block.
        nbytes: Bytes that one copy moves.
    """

    def __init__(self, like: Sequence[Tensor], device: torch.device, cuda: Any = torch.cuda) -> None:
        kinds = [(tensor.shape, tensor.dtype) for tensor in like]
        self._cuda, self._device = cuda, device
        self._block = ByteBlock(kinds, device=device)
        self.tensors, self.nbytes = self._block.tensors, self._block.memory.nbytes
        self._stream = cuda.Stream(device)
        self._stages = itertools.cycle([_Stage(kinds, device, cuda) for _ in range(2)])

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Puts a call's tensors where the step reads; work queued later on the current stream sees them."""
        if any(tensor.device.type != "cpu" for tensor in tensors):
            for place, tensor in zip(self.tensors, tensors, strict=True):
                place.copy_(tensor.detach(), non_blocking=True)
            return
        stage = next(self._stages)
        stage.has_arrived.synchronize()  # its memory may still be read by the copy before the last
        for place, tensor in zip(stage.host.tensors, tensors, strict=True):
            place.copy_(tensor.detach())
        current = self._cuda.current_stream(self._device)
        with self._cuda.stream(self._stream):
            self._stream.wait_event(stage.is_free)
            stage.there.memory.copy_(stage.host.memory, non_blocking=True)
            stage.has_arrived.record(self._stream)
        current.wait_event(stage.has_arrived)
        self._block.memory.copy_(stage.there.memory, non_blocking=True)
        stage.is_free.record(current)


class _Stage:
    """A block in page-locked memory, one on the device, and when each may be written again."""

    def __init__(self, kinds: Sequence[tuple[Sequence[int], torch.dtype]], device: torch.device, cuda: Any) -> None:
        self.host = ByteBlock(kinds, pin_memory=device.type == "cuda")
        self.there = ByteBlock(kinds, device=device)
        self.has_arrived, self.is_free = cuda.Event(), cuda.Event()
