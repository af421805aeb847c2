"""A wrapped module with its compiled step: compilation, release, and attachment to the machine."""

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from popgeo import ipu
from popgeo.capture.arguments import Arguments
from popgeo.capture.backward import NothingToTrainError
from popgeo.capture.identity_loss import losses_marked
from popgeo.capture.pytree import Structure
from popgeo.compat.poptorch import call_arguments, enums
from popgeo.compat.poptorch.compiling import PoptorchMachine, compiling
from popgeo.compat.poptorch.errors import Error, as_poptorch_errors, check, log_options, logger, said
from popgeo.compat.poptorch.optim.poptorch_optimizer import PoptorchOptimizer, new_attributes
from popgeo.compat.poptorch.options import Options
from popgeo.compat.poptorch.popgeo_options import options_in_use, popgeo_options
from popgeo.compat.poptorch.wrapped_module import as_replicas_see, unwrap, wrap
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.step_recipe import Recipe
from popgeo.replaced import replaced

NO_EXECUTABLE_ERR = "Model has not been compiled or has been destroyed."


class CompiledModule:
    """Module with its compiled step, which is None before the first compilation. Arguments: see `PoplarExecutor`.

    Calls are timed on this computer, and the time is divided evenly over the steps of a call. Inputs and results are in
    the memory of the computation, so each event completes at once.

    Raises:
        Error: `options` is not an instance of `poptorch.Options`, or inference does not support an option.
    """

    _start = _end = 0.0  # of the last call
    _inputs = _results = (1, 0)  # of the last call: number of tensors, number of steps

    def __init__(
        self, model: nn.Module, options: Options | None, training: bool, poptorch_version: str | None = None,
        optimizer: Optimizer | None = None, user_model: nn.Module | None = None,
    ) -> None:  # fmt: skip
        self._model, self._user_model, self._training = model, user_model or model, training
        self._options = options_in_use(options, training, optimizer)
        self._mode = model.training  # of the module; the modes of its submodules are read when it is compiled
        self._signature = inspect.signature(model.forward)
        self._optimizer = optimizer
        if training and optimizer is None:
            self._optimizer = torch.optim.SGD(self._user_model.parameters(), lr=0.01)
        bases = (kind for kind in type(optimizer).__mro__ if kind.__module__.startswith(("popgeo.", "torch.")))
        if optimizer is not None and (base := next(bases)) is not type(optimizer):
            logger.warning(said("optimizer step", kind=type(optimizer).__name__, base=base.__name__))
        self._compiled: CompiledStep | None = None
        self._modes: dict[nn.Module, bool] = {}  # of the module and its submodules when it was compiled
        self._form: Structure | None = None  # structure of the arguments that it was compiled for
        self._is_attached = self._has_run = False
        self._attributes: dict[tuple[type, str], set[str]] = {}  # of optimizers, at the last check
        self._numbers: Tensor | None = None  # of the replicas, if parameters differ between them
        if training:
            wrap(self._user_model, self)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the model for these arguments without running it. A second call has no effect.

        Raises:
            Error: The model cannot be compiled.
        """
        if self._compiled is not None:
            logger.warning("Call to compile() ignored: the executable is already compiled")
            return
        self._compile(call_arguments.narrowed(call_arguments.arguments_of(self._signature, args, kwargs)))

    def destroy(self) -> None:
        """Delete the compiled step and release the module. Weights and the optimizer's state stay."""
        if self._compiled is not None:
            self._compiled.reset()
        self._compiled = self._form = None
        self._is_attached = self._has_run = False
        unwrap(self._user_model)

    def isCompiled(self) -> bool:
        """Check whether the model is compiled."""
        return self._compiled is not None

    def isAttachedToDevice(self) -> bool:
        """Check whether the model is compiled and attached."""
        return self._compiled is not None and self._is_attached

    def attachToDevice(self) -> None:
        """Attach the model to the machine again. This has no effect here except for the checks.

        Raises:
            Error: The model is not compiled, or already attached.
        """
        self._require_compiled()
        check(self._options.connection_type != enums.ConnectionType.Never, said("attachToDevice"))
        check(not self._is_attached, "Device is already attached", Error)
        self._is_attached = True

    def detachFromDevice(self) -> None:
        """Release the machine for another model. The next call attaches again.

        Raises:
            Error: The model is not compiled, or not attached.
        """
        self._require_compiled()
        check(self._is_attached, "Device is not attached", Error)
        self._is_attached = False

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Return whether the module's weights were out of date: always False."""
        return False

    _executable = property(attrgetter("_compiled"), doc="Compiled step, or None.")
    report = property(attrgetter("compiled.report"), doc="Cost of a step on the modelled machine.")
    model = property(attrgetter("_user_model"), doc="Module that the user wrapped.")
    options = property(attrgetter("_options"), doc="Options, which are frozen.")

    def compilationTime(self) -> timedelta:
        """Return the time of the compilation on this computer.

        Raises:
            Error: The model is not compiled.
        """
        return timedelta(seconds=self.compiled.compile_seconds)

    @property
    def rng_state(self) -> list[int]:
        """States of the replicas' random numbers, one after the other.

        Raises:
            Error: The model is not compiled.
        """
        return [number for state in self.compiled.replica_states() for number in state.generator.get_state().tolist()]

    @rng_state.setter
    def rng_state(self, state: Sequence[int]) -> None:
        replicas = self.compiled.replica_states()
        parts = torch.tensor(list(state), dtype=torch.uint8).chunk(len(replicas))
        for replica, part in zip(replicas, parts, strict=True):
            replica.generator.set_state(part.clone())  # torch needs memory of exactly this size

    def _require_compiled(self) -> CompiledStep:
        if self._compiled is None:
            raise Error(NO_EXECUTABLE_ERR)
        return self._compiled

    compiled = property(_require_compiled, doc="popgeo's compiled step. An Error before it exists.")

    @contextmanager
    def _timed(self, *, num_inputs: int, num_steps: int) -> Iterator[None]:
        """Measure a call of `num_steps` micro-batches. A failed call keeps the times of the call before."""
        start = time.perf_counter()
        yield
        self._start, self._end = start, time.perf_counter()
        self._inputs = num_inputs, num_steps

    def _seconds(self, num_tensors: int, num_steps: int, after: int) -> list[list[float]]:
        share = (self._end - self._start) / max(1, num_steps)
        ticks = [self._start + (step + after) * share for step in range(num_steps)]
        return [list(ticks) for _ in range(max(1, num_tensors))]

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Return the seconds at which each step of the last call got its inputs and gave its results."""
        inputs, results = self._seconds(*self._inputs, after=0), self._seconds(*self._results, after=1)
        return {"input": inputs, "input_complete": inputs, "output": results, "output_complete": results}

    def getLatency(self) -> tuple[float, float, float]:
        """Return the shortest, longest and mean seconds from inputs to results. Zeros without results."""
        (_, begun), (_, returned) = self._inputs, self._results
        seconds = (self._end - self._start) / returned if begun and returned else 0.0  # the same for every step
        return seconds, seconds, seconds

    getComputeLatency = getLatency

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """Return the shortest, longest and mean seconds of a step's inputs: zeros, since inputs need no transfer."""
        return 0.0, 0.0, 0.0

    getIpuHostLatency = getHostIpuLatency

    def _pass(self, given: Arguments, call: Callable[..., Any]) -> Any:
        """Call a step with a micro-batch for each replica, and with the numbers of the replicas if it needs them."""
        tensors: Sequence[Tensor] = given.tensors
        if self._options.input_group_size > 1:
            tensors = [call_arguments.for_each_replica(tensor, self._options) for tensor in tensors]
        return given.pass_to(call if self._numbers is None else partial(call, replica_number=self._numbers), tensors)

    def _name_optimizer(self, step: CompiledStep) -> None:
        """Give PopTorch's optimizers the names of the parameters, which they use to load and show their state."""
        for what in new_attributes(self._optimizer, self._attributes) if self._optimizer else ():
            if not self._options._relax_optimizer_checks:
                logger.warning("Ignoring unexpected %s", what)
        is_there = self._options.connection_type != enums.ConnectionType.Never
        if is_there and isinstance(self._optimizer, PoptorchOptimizer):
            names = {parameter: name for name, parameter in self._user_model.named_parameters()}
            with as_poptorch_errors():
                self._optimizer.use_names(names, step.loss_scale)

    def _compile(self, given: Arguments) -> CompiledStep:
        """Compile the model for these arguments. An error leaves everything unchanged."""
        call_arguments.check_batch(given, self._options)
        buffers = [name for name, _ in self._model.named_buffers()]
        if unknown := {*self._options.updatable_named_buffers} - {*buffers}:
            raise Error(f"The model has no buffer named {min(unknown)!r}; it has {', '.join(buffers) or 'none'}.")
        log_options(self._options.toDict())
        marked = losses_marked() if self._training else nullcontext()
        with replaced(self._model, "training", self._mode), compiling(), as_poptorch_errors(), marked:
            step = self._captured(given, popgeo_options(self._options, self._optimizer), self._optimizer)
            self._require_own_buffers(step)
            self._modes = {part: part.training for part in self._model.modules()}
        if self._options.updatable_named_buffers:  # each replica gets its own copy
            for state in step.replica_states():
                state.copy_buffers(self._model, buffers)
        self._name_optimizer(step)
        self._compiled, self._form = step, given.structure
        self._is_attached = self._options.connection_type != enums.ConnectionType.Never
        self._has_run = False
        return step

    def _captured(self, given: Arguments, options: ipu.Options, optimizer: Optimizer | None) -> CompiledStep:
        """Return a compiled step. If the loss depends on no parameter, the step is the forward pass alone."""
        upcasts = self._options.Precision.half_float_casting is enums.HalfFloatCastingBehavior.HalfUpcastToFloat
        machine = PoptorchMachine(options, upcasts)
        seen, self._numbers = as_replicas_see(self._model, options)
        parts: dict[str, Any] = {"function": seen, "options": options, "optimizer": optimizer, "machine": machine}
        # Some programs call optimizer.step() after the model, which changes nothing with PopTorch.
        step = CompiledStep(Recipe(**parts, refuses_empty_updates=False))
        try:
            self._pass(given, step.compile)
        except NothingToTrainError:
            steps = options.device_iterations * options.gradient_accumulation
            return self._captured(given, replace(options, device_iterations=steps, gradient_accumulation=1), None)
        except (TypeError, RuntimeError) as error:
            call_arguments.refuse_empty(given, error)
            raise
        return step

    def _compile_for(self, structure: Structure) -> None:
        """Compile the model for arguments of a given structure; their values do not matter."""
        self._compile(call_arguments.example_of(self._signature, structure))

    def _compile_again(self) -> None:
        """Compile the model again for the same structure of arguments, with the present optimizer."""
        assert self._form is not None
        attached, rng_state = self._is_attached, self.rng_state
        self.compiled.reset()
        self._compile_for(self._form)
        self._is_attached, self.rng_state = attached, rng_state

    def _require_own_buffers(self, model: CompiledStep) -> None:
        """Raise an error if replicas change buffers that they share."""
        if not self._options.broadcast_buffers or self._options.replication_factor == 1:
            return
        norms = {name for name, part in self._model.named_modules() if isinstance(part, _NormBase)}
        if any(name.rpartition(".")[0] not in norms for own in model.replica_states() for name in own.buffers):
            model.reset()
            raise Error(said("require_own_buffers"))
