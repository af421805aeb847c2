"""The executor of `trainingModel` and `inferenceModel`: PopTorch's methods over popgeo's compiled model."""

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo import ipu
from popgeo.capture.held_state import in_modes
from popgeo.compat.account import recorded
from popgeo.compat.poptorch import enums, executable_file
from popgeo.compat.poptorch.call_arguments import arguments_of, as_results, narrowed, of_calls, write_back
from popgeo.compat.poptorch.compiled_module import CompiledModule
from popgeo.compat.poptorch.errors import Error, as_poptorch_errors, check, logger, said
from popgeo.compat.poptorch.popgeo_options import popgeo_options
from popgeo.compat.poptorch.strategies import module_repr


class PoplarExecutor(CompiledModule):
    """A model that is called like its module. The first call compiles it. Other attributes are the module's.

    Args:
        model: Module to call.
        options: PopTorch's options. The executor freezes them.
        training: Whether a call also runs the backward pass and the optimizer.
        optimizer: Optimizer for training. Default: SGD with a learning rate of 0.01.
        user_model: Module with the weights, if `model` only contains it.
        poptorch_version: No effect.

    Raises:
        Error: `options` is not an instance of `poptorch.Options`, or inference does not support an option.
    """

    _loss_scale: float | None = None  # of the last call, if it is dynamic

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as many micro-batches as the options ask for. The first call compiles the model.

        Raises:
            Error: An argument differs from the compiled one, or the model cannot be compiled.
            AssertionError: The options never connect to a machine, or the batch cannot be divided. Also a ValueError.
        """
        check(self._options.connection_type != enums.ConnectionType.Never, said("PoplarExecutor"))
        own = arguments_of(self._signature, args, kwargs)
        given = narrowed(own)
        with self._gradients():
            compiled = self._compiled or self._compile(given)
        if not self._is_attached:
            self.attachToDevice()
        if compiled.loss_scale is not None:
            self._loss_scale = compiled.loss_scale.value
        steps = self._ticks(compiled.options.batch_factor)
        times = self._timed(num_inputs=len(given.tensors), num_steps=steps)
        as_compiled = in_modes(self._model, self._modes)  # an IPU's program does not follow later changes of modes
        with as_poptorch_errors(), self._buffers_apart(), self._gradients(), as_compiled, times:
            try:
                returned = self._pass(given, compiled)
            except ValueError as error:
                differences = [*of_calls(self._signature, self._form, given.structure)] if self._form else []
                if not differences:
                    raise
                raise ValueError(" ".join([*differences, str(error)])) from error
        self._has_run = True
        if self._options._Popart.options["instrumentWithHardwareCycleCounter"] and logger.isEnabledFor(logging.INFO):
            logger.info("Total number of IPU cycles: %d", self.cycleCount())
        write_back(own, given, compiled.captured.written)
        results, tensors = as_results(returned)
        chosen = compiled.options
        summed = chosen.output_mode in (ipu.OutputMode.FINAL, ipu.OutputMode.SUM)
        returned_steps = chosen.replication_factor if summed else chosen.batch_factor // chosen.output_period
        self._results = len(tensors), self._ticks(returned_steps)
        return results

    def copyWeightsToHost(self) -> None:
        """Copy the weights to the module. Each call does this already.

        Raises:
            Error: The model is not compiled.
        """
        self._require_compiled()

    def copyWeightsToDevice(self) -> None:
        """Copy the module's buffers to every replica. Each call reads the module's weights anyway.

        Raises:
            Error: The model is not compiled.
        """
        self._copy_buffers(dict(self._model.named_buffers()))

    def copyNamedBuffersToDevice(self) -> None:
        """Copy the buffers named by `Options.updatableNamedBuffers` from the module to every replica.

        Raises:
            Error: The model is not compiled, or the options name no buffer.
        """
        if not self._options.updatable_named_buffers:
            raise Error("No buffers to copy: pass the names of changed buffers to Options.updatableNamedBuffers.")
        self._copy_buffers(self._options.updatable_named_buffers)

    def _copy_buffers(self, names: Iterable[str]) -> None:
        for state in self.compiled.replica_states():
            for name in state.buffers.keys() & {*names}:
                state.buffers[name].copy_(self._model.get_buffer(name))

    @contextmanager
    def _gradients(self) -> Iterator[None]:
        """Enable gradients for a training model, even within `torch.no_grad()`, as PopTorch does."""
        if not self._training or torch.is_grad_enabled():
            yield
            return
        recorded(
            "a trainingModel within torch.no_grad()", "it also trains there; use poptorch.inferenceModel to evaluate"
        )
        with torch.inference_mode(False), torch.enable_grad():
            yield

    @contextmanager
    def _buffers_apart(self) -> Iterator[None]:
        """Keep the program's changes of the module's buffers when the compiled step has its own buffers."""
        own = self.compiled.replica_states()[0].buffers if self._options.updatable_named_buffers else {}
        held = dict(self._model.named_buffers()) if own else {}
        changed = {name: held[name].clone() for name, buffer in own.items() if not torch.equal(held[name], buffer)}
        yield
        for name, buffer in changed.items():
            held[name].copy_(buffer)

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> Any:
        """Load weights and buffers into the module and the compiled step.

        Returns:
            The result of the module's own method: missing keys and unexpected keys.
        """
        found = self._user_model.load_state_dict(state_dict, strict)
        if self._compiled is not None:
            self.copyWeightsToDevice()
        return found

    def train(self, mode: bool = True) -> nn.Module:
        """Set the training mode of the module's submodules.

        An inference model also sets its own mode until it is compiled. A training model keeps the mode of its wrapping.

        Returns:
            The module.
        """
        if self._training:
            return self._user_model.train(mode)
        self._mode = mode
        copy.copy(self._user_model).train(mode)  # as in PopTorch, the module's own mode stays
        return self._user_model

    def eval(self) -> nn.Module:
        """Call `train(False)`."""
        return self.train(False)

    def setOptimizer(self, optimizer: Optimizer) -> None:
        """Continue with another optimizer. An optimizer without state inherits the present state.

        An optimizer of another class, or over other parameters, makes the next call compile the step again.

        Raises:
            Error: The model is for inference.
        """
        if self._optimizer is None:
            raise Error("An inferenceModel has no optimizer; wrap the module with poptorch.trainingModel to train it.")
        if optimizer is not self._optimizer and not optimizer.state and type(optimizer) is type(self._optimizer):
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            optimizer.state.update({p: dict(s) for p, s in self._optimizer.state.items() if id(p) in held})
        self._optimizer = optimizer
        if self._compiled is None:
            return
        self._name_optimizer(self._compiled)
        if popgeo_options(self._options, optimizer) == self._compiled.options:
            with suppress(ValueError):
                self._compiled.set_optimizer(optimizer)
                return
        self._compile_again()

    def getTensorNames(self) -> list[str]:
        """Return the names of PopART's tensors.

        Raises:
            Error: Always, because popgeo has no such names. `executor.compiled.graph` has the captured operations.
        """
        raise Error("popgeo does not know PopART's names of tensors; executor.compiled.graph has the operations.")

    def getAnchoredTensor(self, short_name: str) -> Tensor:
        """Return a tensor inside PopART's graph. Only `finalLossScale` exists: the scale of the last call's loss.

        Raises:
            Error: `Options.anchorTensor` gives the name to another tensor, or to none.
        """
        anchored = self._options.anchored_tensors.get(short_name, [None])
        if anchored[0] == "finalLossScale" and self._loss_scale is not None:
            return torch.tensor(self._loss_scale)
        raise Error(said("getAnchoredTensor", short_name=short_name))

    def cycleCount(self) -> int:
        """Return the cycles of the last call on one IPU of the modelled machine.

        Raises:
            Error: `Options.logCycleCount` is off, or the model has not run.
        """
        if not self._options._Popart.options["instrumentWithHardwareCycleCounter"]:
            raise Error("Cycle count logging is disabled. Please set option logCycleCount to True to enable.")
        check(self._has_run, "Please run the model at least once before obtaining cycle count.", Error)
        return self.report.total_cycles * self._options.device_iterations

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write a file that compiles the model again without arguments.

        Args:
            filename: File to write.
            export_model: Whether to include the module and the optimizer.
            save_rng_state: Whether to include the state of the random numbers.

        Raises:
            Error: The model is not compiled.
        """
        self._require_compiled()
        assert self._form is not None
        own = (self._user_model, self._optimizer, self._training) if export_model else (None, None, None)
        written: dict[str, Any] = dict(zip(("model", "optimizer", "training"), own, strict=True))
        state = self.rng_state if save_rng_state else None
        file = executable_file.Executable(form=self._form, options=self._options.clone(), rng_state=state, **written)
        executable_file.write(filename, file)

    def compileAndExport(self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Call `compile` and `save`."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def loadExecutable(self, filename: str) -> None:
        """Compile the model for the arguments in a file of `compileAndExport`. The module keeps its weights.

        Raises:
            Error: Another program wrote the file.
        """
        with as_poptorch_errors():
            file = executable_file.read(filename)
        self._compile_for(file.form)
        if file.rng_state is not None:
            self.rng_state = file.rng_state

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module that the executor does not have."""
        if name in ("_user_model", "_model"):  # before __init__ has set them
            raise AttributeError(name)
        return getattr(self._user_model, name)

    def _ticks(self, steps: int) -> int:
        """Return the number of timed steps: 0 if the machine would generate its data."""
        return 0 if self._options._Popart.options.get("syntheticDataMode") else steps
