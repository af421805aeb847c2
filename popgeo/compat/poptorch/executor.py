"""A model between PopTorch's names and popgeo's compiled model; `trainingModel` and `inferenceModel` make it."""

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
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
    """A model to call like the module, compiled at the first call; what it does not have itself, the module may have.

    Args:
        model: The model to call.
        options: PopTorch's; frozen from here on.
        training: Whether a call also runs backward and the optimizer.
        optimizer: For training; SGD with a rate of 0.01 by default.
        user_model: The module whose weights these are, where `model` only holds it.
        poptorch_version: Not looked at.

    Raises:
        Error: the options are not `poptorch.Options`, or ask for something that inference does not have.
    """

    _loss_scale: float | None = None  # of the last call, if it follows the gradients

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a call of as many micro-batches as the options ask for; the first one compiles the model.

        Raises:
            Error: an argument differs from what the model was compiled for, or the model cannot be compiled.
            AssertionError: the options never connect to a machine, or the batch cannot be divided; a ValueError too.
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
        with as_poptorch_errors(), self._buffers_apart(), self._gradients(), self._as_compiled(), times:
            try:
                returned = self._pass(given, compiled)
            except ValueError as error:
                told = [*of_calls(self._signature, self._form, given.structure)] if self._form else []
                if not told:
                    raise
                raise ValueError(" ".join([*told, str(error)])) from error
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
        """Brings the module's weights up to date; each call leaves them so.

        Raises:
            Error: the model is not compiled.
        """
        self._require_compiled()

    def copyWeightsToDevice(self) -> None:
        """Gives every replica the module's buffers; each call takes the weights from the module as they are.

        Raises:
            Error: the model is not compiled.
        """
        self._copy_buffers(dict(self._model.named_buffers()))

    def copyNamedBuffersToDevice(self) -> None:
        """Gives every replica the module's buffers that `Options.updatableNamedBuffers` names.

        Raises:
            Error: the model is not compiled, or the options name no buffer.
        """
        if not self._options.updatable_named_buffers:
            raise Error("There is no buffer to copy: name those that change in Options.updatableNamedBuffers.")
        self._copy_buffers(self._options.updatable_named_buffers)

    def _copy_buffers(self, names: Iterable[str]) -> None:
        for state in self.compiled.replica_states():
            for name in state.buffers.keys() & {*names}:
                state.buffers[name].copy_(self._model.get_buffer(name))

    def _as_compiled(self) -> AbstractContextManager[None]:
        """Keep the modes in which the model was compiled: an IPU's program does not follow those of the module."""
        return in_modes(self._model, self._modes)

    @contextmanager
    def _gradients(self) -> Iterator[None]:
        """Let a training model train wherever it is called, as PopTorch does: also within `torch.no_grad()`."""
        if not self._training or torch.is_grad_enabled():
            yield
            return
        recorded("a trainingModel within torch.no_grad()", "it trains there too; poptorch.inferenceModel evaluates")
        with torch.inference_mode(False), torch.enable_grad():
            yield

    @contextmanager
    def _buffers_apart(self) -> Iterator[None]:
        """What the program has done to the module's buffers stays with the module, where a step has its own."""
        own = self.compiled.replica_states()[0].buffers if self._options.updatable_named_buffers else {}
        held = dict(self._model.named_buffers()) if own else {}
        changed = {name: held[name].clone() for name, buffer in own.items() if not torch.equal(held[name], buffer)}
        yield
        for name, buffer in changed.items():
            held[name].copy_(buffer)

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> Any:
        """Replaces weights and buffers, and brings the compiled step up to date with them.

        Returns:
            What the module's own method returns: the keys that were missing, and those that were not expected.
        """
        found = self._user_model.load_state_dict(state_dict, strict)
        if self._compiled is not None:
            self.copyWeightsToDevice()
        return found

    def train(self, mode: bool = True) -> nn.Module:
        """Puts what is inside the module into training or evaluation mode.

        An inference model takes the mode as its own until it is compiled; a training model keeps that of its wrapping.

        Returns:
            The module, as its own method does.
        """
        if self._training:
            return self._user_model.train(mode)
        self._mode = mode
        copy.copy(self._user_model).train(mode)  # PopTorch's inference holds such a copy: the module's own mode stays
        return self._user_model

    def eval(self) -> nn.Module:
        """The same as `train(False)`."""
        return self.train(False)

    def setOptimizer(self, optimizer: Optimizer) -> None:
        """Goes on with another optimizer; momentum and the like are kept if it brings none of its own.

        One of another kind, or over other parameters, has the step compiled again at the next call.

        Raises:
            Error: the model is for inference.
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
        """Names of PopART's tensors.

        Raises:
            Error: always, because there is no such file; the captured operations are `executor.compiled.graph`.
        """
        raise Error("PopART's names of tensors are not known here; executor.compiled.graph lists what was captured.")

    def getAnchoredTensor(self, short_name: str) -> Tensor:
        """Return a tensor inside PopART's graph: only `finalLossScale` is known, the scale of the last call's loss.

        Raises:
            Error: `Options.anchorTensor` gives the name to another tensor, or to none.
        """
        anchored = self._options.anchored_tensors.get(short_name, [None])
        if anchored[0] == "finalLossScale" and self._loss_scale is not None:
            return torch.tensor(self._loss_scale)
        raise Error(said("getAnchoredTensor", short_name=short_name))

    def cycleCount(self) -> int:
        """Cycles of the last call on one IPU of the modelled machine.

        Raises:
            Error: `Options.logCycleCount` is off, or the model has not run.
        """
        if not self._options._Popart.options["instrumentWithHardwareCycleCounter"]:
            raise Error("Cycle count logging is disabled. Please set option logCycleCount to True to enable.")
        check(self._has_run, "Please run the model at least once before obtaining cycle count.", Error)
        return self.report.total_cycles * self._options.device_iterations

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Writes what it takes to compile the model again without its arguments, and the module if it is asked for.

        Raises:
            Error: the model is not compiled.
        """
        self._require_compiled()
        assert self._form is not None
        own = (self._user_model, self._optimizer, self._training) if export_model else (None, None, None)
        written: dict[str, Any] = dict(zip(("model", "optimizer", "training"), own, strict=True))
        state = self.rng_state if save_rng_state else None
        file = executable_file.Executable(form=self._form, options=self._options.clone(), rng_state=state, **written)
        executable_file.write(filename, file)

    def compileAndExport(self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """`compile` and `save`."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def loadExecutable(self, filename: str) -> None:
        """Compiles the model for what a file of `compileAndExport` holds; its weights stay the module's own.

        Raises:
            Error: the file is of something else.
        """
        with as_poptorch_errors():
            file = executable_file.read(filename)
        self._compile_for(file.form)
        if file.rng_state is not None:
            self.rng_state = file.rng_state

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    def __getattr__(self, name: str) -> Any:
        """What the executor does not have, the module may have."""
        if name in ("_user_model", "_model"):  # not set yet, so there is nothing to ask
            raise AttributeError(name)
        return getattr(self._user_model, name)

    def _ticks(self, steps: int) -> int:
        """Steps that have times: none where the machine would make up its data."""
        return 0 if self._options._Popart.options.get("syntheticDataMode") else steps
