"""Captures a whole step (forward pass, backward pass and update) as one CUDA graph, and replays it."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo import largest_graph
from popgeo.byte_block import ByteBlock, starts_in_one_block
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
from popgeo.engine.optimizer.weight_average import update_average
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_recipe import Recipe
from popgeo.filter_choice import grids_are_followed
from popgeo.ops import sum_on_device
from popgeo.quantity import quantity

# In the first runs, libraries choose kernels and allocate memory, which a capture must not contain.
WARM_UP = 3


class CudaGraphRunner:
    """A model's step on a GPU: the first updates run eagerly, later ones replay one captured graph.

    The eager updates count as training; they create the optimizer's state and let libraries choose their kernels. The
    next update is captured and then replayed. Learning rates are tensors on the device, and random numbers advance with
    each replay. If weights, buffers or the optimizer's state move to other memory, the step is captured again.

    Args:
        recipe: The model, its optimizer and the choices for the step.
        step: The captured operations, which name results and changed tensors; they do not run.
        arguments: The arguments of one update, with all its micro-batches.
        replicas: The replica of this process. The update adds up the gradients of all processes.
        largest: Nodes of the largest graph in all batches, for the capture. Default: unknown.
        cuda: The module `torch.cuda`, or a fake in a test.

    Raises:
        ValueError: the optimizer cannot be captured, or the model does not return its loss.
    """

    loss_scale = None

    def __init__(
        self,
        recipe: Recipe,
        step: CapturedStep,
        arguments: Arguments,
        replicas: Replicas,
        largest: int | None = None,
        cuda: Any = torch.cuda,
    ) -> None:
        optimizer, device = recipe.optimizer, device_of(recipe.module, recipe.backend)
        if optimizer is not None and step.loss is None:
            raise ValueError("The model does not return its loss. Return it, alone or among the results.")
        self.step, self._model, self._modes, self._arguments = step, recipe.module, recipe.modes, arguments
        self._replicas, self._largest = replicas, largest
        replicas.require_one_per_gpu(device)
        self._options, self._autocast, self._device, self._cuda = recipe.options, recipe.autocast, device, cuda
        self._mode = recipe.options.chosen_output_mode(trains=optimizer is not None)
        self._optimizer = None if optimizer is None else CapturableOptimizer(optimizer, device, recipe.learning_rate)
        self._average = recipe.average
        if self._average is not None:
            self._average.n_averaged = self._average.n_averaged.to(device)
        self._trained = [p for name, p in recipe.module.named_parameters() if name in step.trained]
        given = step.graph.inputs_of(Role.ARGUMENT)
        self._written = [position for position, one in enumerate(given) if one in step.written]
        self.inputs = StaticInputs(arguments.tensors, device, cuda)
        self._side_stream = cuda.Stream(device)
        self._ends = itertools.cycle([cuda.Event() for _ in range(2)])  # of the last two updates
        self._graph: Any = None
        self._made: list[list[Tensor]] = []
        self._addresses: list[int] = []
        self._versions: list[int] = []
        self._captures = 0
        self._left_to_warm_up = WARM_UP

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run one call and return its results, joined according to the output mode.

        Arguments that the model changes in place are changed.

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
        self._versions = self._versions_now()
        return results.join()

    def has_other_weights(self) -> bool:
        """Check whether code outside of the step has changed weights or buffers in place since the last call.

        With several processes the result is always False, since only one of them may have changed weights and changed
        them back. All must see far weights in the same call.
        """
        return self._options.replication_factor == 1 and self._versions != self._versions_now()

    def reset(self) -> None:
        """Drop the captured graph; the next update runs eagerly, and the update after that is captured."""
        self._graph, self._made = None, []
        if self._captures:
            self._left_to_warm_up = 1  # libraries have their kernels; the optimizer may have to create its state
        if self._optimizer is not None:
            self._optimizer.prepare()
        self._addresses = self._addresses_now()

    def run_state(self) -> dict[str, Any]:
        """Return the count of updates, from which a step that is compiled again continues."""
        counts = {} if self._optimizer is None else {"num_updates": self._optimizer.num_updates}
        return {"replicas": list(self._replicas.local), **counts}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Continue from the result of `run_state`."""
        if self._optimizer is not None:
            self._optimizer.num_updates = content["num_updates"]

    def listing(self) -> str:
        """Return how the step runs, as text."""
        return self.how_it_runs()

    def how_it_runs(self) -> str:
        """Return a text: whether the step is captured, the bytes of inputs, and the sums in use."""
        rest = f"{quantity(self.inputs.nbytes, 'B')} of inputs in one copy, {sum_on_device.describe()}"
        if self._graph is None:
            return f"eager so far, {self._left_to_warm_up} more to go, {rest}"
        return f"one CUDA graph, captured {'once' if self._captures == 1 else f'{self._captures} times'}, {rest}"

    def _run_once(self) -> list[list[Tensor]]:
        """Run one update or one forward pass, and return the results of each of its micro-batches."""
        optimizer = self._optimizer
        if self._addresses != self._addresses_now() or not (optimizer is None or optimizer.is_as_prepared):
            self.reset()
        end = next(self._ends)
        self._replicas.wait_for(end, self._device)  # so that this process notices the loss of another one
        if optimizer is not None:
            optimizer.write_rates()
        if self._graph is None and self._left_to_warm_up:
            # On a separate stream, as in a capture, so that both use the same memory and library handles.
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
        if self._replicas.world_size > 1:
            end.record()
        if optimizer is not None:
            optimizer.count()
        return made

    def _capture(self) -> None:
        """Capture the step without running it.

        Raises:
            ValueError: an operation cannot be captured; the message names the line of the model.
        """
        self._cuda.synchronize(self._device)
        graph = self._cuda.CUDAGraph()
        try:
            # Calls of other threads, which may prepare batches meanwhile, are not part of the capture.
            stream = _capture_stream(self._cuda, self._device)  # torch's own belongs to the device of its first graph
            with self._cuda.graph(graph, stream=stream, capture_error_mode="thread_local"), grids_are_followed():
                self._made = self._update()
        except Exception as error:
            for parameter in self._trained:
                parameter.grad = None
            raise ValueError(_explain(error)) from error
        self._graph = graph
        self._captures += 1

    def _update(self) -> list[list[Tensor]]:
        """Run the forward pass of each micro-batch and, in training, its backward pass, and then the update."""
        count, options = self._options.gradient_accumulation, self._options
        scale = options.constant_loss_scaling
        assert scale is not None  # Recipe has rejected a dynamic one
        made = []
        if self._optimizer is not None:  # so that the backward pass allocates them in memory of the graph
            self._optimizer.optimizer.zero_grad(set_to_none=True)
        for number in range(count):
            tensors = micro_batch(self.inputs.tensors, number, count)
            with torch.set_grad_enabled(self._optimizer is not None):
                results = self._forward(tensors)
                if self._optimizer is not None:
                    loss = results[self.step.loss]  # type: ignore[index]  # __init__ has checked it
                    loss.backward(torch.full_like(loss, scale), inputs=self._trained)
            made.append([tensor.detach() for tensor in results])
        if self._optimizer is not None:
            self._replicas.add_up_in_blocks(self._trained)
            scaling = GradientScaling(divisor=options.gradient_divisor, max_grad_norm=options.max_grad_norm)
            scaling.apply(self._trained, at_once=True)
            self._optimizer.step()
            if self._average is not None and self._left_to_warm_up:
                self._average.update_parameters(self._model)  # the first one copies the weights
            elif self._average is not None:
                update_average(self._average, self._model)
        return made

    def _forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        on = self._autocast is not None
        # A replay must not read casts that autocast has cached in another forward pass.
        with (
            in_modes(self._model, self._modes),
            largest_graph.capturing_for(self._largest),
            torch.autocast(self._device.type, dtype=self._autocast, enabled=on, cache_enabled=False),
        ):
            tree = self._arguments.pass_to(self._model, tensors)
        return list(flatten(tree)[0])

    def _addresses_now(self) -> list[int]:
        models = [self._model] if self._average is None else [self._model, self._average]
        return [tensor.data_ptr() for one in models for tensor in (*one.parameters(), *one.buffers())]

    def _versions_now(self) -> list[int]:
        tensors = (*self._model.parameters(), *self._model.buffers())
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


@functools.cache
def _capture_stream(cuda: Any, device: torch.device) -> Any:
    """Return the stream of all captures on a device, so that they share the working memory of libraries."""
    return cuda.Stream(device)


def _explain(error: BaseException) -> str:
    """Return a message: the operation that could not be captured, its line, and the remedy."""
    first = error
    while first.__context__ is not None:
        first = first.__context__
    line = line_of_error(error) or "in the backward pass or in the optimizer"
    reason = str(first).strip().partition("\n")[0]
    return (
        f"{line}: cannot be part of a captured step ({type(first).__name__}: {reason}). A captured step neither waits "
        "for the device nor copies from ordinary memory: register constants as buffers, make tensors with device=, "
        "do not turn tensors into numbers. popgeo.ipu.check_static lists operations that depend on data. "
        "A step on the processor does not have these limits."
    )


class StaticInputs:
    """The inputs of a captured step on a device, filled by asynchronous copies through two staging blocks in turn.

    A call's tensors in ordinary memory are written into a page-locked block. One copy on a separate stream moves this
    block to the device while the previous step still runs. A second copy, on the device, fills the step's inputs. It is
    the only copy if the tensors are on the device in one block, as a loader with `device=` delivers them. The inputs
    have the layout of the first call's block. A call waits until the update before the previous one has begun.

    Args:
        like: Tensors with the shapes and types of one call.
        device: The device of the step.
        cuda: The module `torch.cuda`, or a fake in a test.

    Attributes:
        tensors: The tensors that the step reads, all in one block.
        nbytes: Bytes that one copy moves.
    """

    def __init__(self, like: Sequence[Tensor], device: torch.device, cuda: Any = torch.cuda) -> None:
        kinds = [(tensor.shape, tensor.dtype) for tensor in like]
        self._cuda, self._device = cuda, device
        starts = starts_in_one_block(like)
        self._block = ByteBlock(kinds, starts=starts, device=device)
        self.tensors, self.nbytes = self._block.tensors, self._block.memory.nbytes
        self._stream = cuda.Stream(device)
        self._stages = itertools.cycle([_Stage(kinds, starts, device, cuda) for _ in range(2)])

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy a call's tensors into the step's inputs; work queued later on the current stream sees them."""
        stage, current = next(self._stages), self._cuda.current_stream(self._device)
        if any(tensor.device.type != "cpu" for tensor in tensors):
            stage.is_free.synchronize()  # otherwise calls would pile up, each with a batch in the device's memory
            self._block.fill(tensors)
            stage.is_free.record(current)
            return
        stage.has_arrived.synchronize()  # an earlier copy may still read this block
        for place, tensor in zip(stage.host.tensors, tensors, strict=True):
            place.copy_(tensor.detach())
        with self._cuda.stream(self._stream):
            self._stream.wait_event(stage.is_free)
            stage.there.memory.copy_(stage.host.memory, non_blocking=True)
            stage.has_arrived.record(self._stream)
        current.wait_event(stage.has_arrived)
        self._block.memory.copy_(stage.there.memory, non_blocking=True)
        stage.is_free.record(current)


class _Stage:
    """A page-locked block and a block on the device, each with an event that signals when the block is free."""

    def __init__(
        self,
        kinds: Sequence[tuple[Sequence[int], torch.dtype]],
        starts: Sequence[int] | None,
        device: torch.device,
        cuda: Any,
    ) -> None:
        self.host = ByteBlock(kinds, starts=starts, pin_memory=device.type == "cuda")
        self.there = ByteBlock(kinds, starts=starts, device=device)
        # A thread that waits for these leaves its core to the thread that makes batches.
        self.has_arrived, self.is_free = cuda.Event(blocking=True), cuda.Event(blocking=True)
        # The block's memory may have belonged to a tensor that work in the queue still reads.
        self.is_free.record(cuda.current_stream(device))
