"""A model between PopTorch's names and popgeo's compiled model; `trainingModel` and `inferenceModel` make it."""

import copy
import inspect
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from popgeo import ipu
from popgeo.capture.mark_losses import losses_marked
from popgeo.compat.poptorch import enums, executable_file
from popgeo.compat.poptorch.call_arguments import CallArguments, CallForm, for_each_replica
from popgeo.compat.poptorch.call_times import CallTimes, HasCallTimes
from popgeo.compat.poptorch.compile_hooks import between_hooks
from popgeo.compat.poptorch.errors import Error, as_poptorch_errors, check
from popgeo.compat.poptorch.hardware import compiling
from popgeo.compat.poptorch.log_options import log_options
from popgeo.compat.poptorch.options import Options
from popgeo.compat.poptorch.popgeo_options import options_in_use, popgeo_options
from popgeo.compat.poptorch.results import as_results
from popgeo.compat.poptorch.wrapped_module import unwrap, unwrapped, wrap
from popgeo.ipu.compiled_model import CompiledModel
from popgeo.ipu.report.report import Report

NO_EXECUTABLE = "Model has not been compiled or has been destroyed."
_LOG = logging.getLogger("poptorch")


class PoplarExecutor(HasCallTimes):
    """A model to call like the module, compiled at the first call; what it does not have itself, the module may have.

    Args:
        model: What is called.
        options: PopTorch's; frozen from here on.
        training: Whether a call also runs backward and the optimizer.
        optimizer: For training; SGD with a rate of 0.01 by default.
        user_model: The module whose weights these are, where `model` only holds it.
        poptorch_version: Not looked at.

    Raises:
        Error: the options are no `poptorch.Options`, or ask for something that inference does not have.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options | None,
        training: bool,
        poptorch_version: str | None = None,
        optimizer: Optimizer | None = None,
        user_model: nn.Module | None = None,
    ) -> None:
        self._model, self._user_model, self._training = model, user_model or model, training
        self._options = options_in_use(options, training, optimizer)
        self._mode = model.training  # the module's own; those inside it count when the model is compiled
        self._signature = inspect.signature(model.forward)
        self._optimizer = optimizer
        if training and optimizer is None:
            self._optimizer = torch.optim.SGD(self._user_model.parameters(), lr=0.01)
        self._compiled: CompiledModel | None = None
        self._form: CallForm | None = None
        self._is_attached = self._has_run = False
        self._times = CallTimes()
        if training:
            wrap(self._user_model, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a call of as many micro-batches as the options ask for; the first one compiles the model.

        Raises:
            Error: an argument differs from what the model was compiled for, or the model cannot be compiled.
            AssertionError: the options never connect to a machine, or the batch cannot be divided; a ValueError too.
        """
        check(
            self._options.connection_type != enums.ConnectionType.Never,
            "Trying to run a model on an offline device (ConnectionType.Never): use model.compile(inputs) instead of "
            "model(inputs)",
        )
        given = self._given(args, kwargs)
        compiled = self._compiled or self._compile(given)
        if not self._is_attached:
            self.attachToDevice()
        assert self._form is not None
        self._form.require(given)
        given = self._for_replicas(given)
        factor = compiled.options.batch_factor
        with as_poptorch_errors(), self._times.of_a_call(num_inputs=given.num_tensors, num_steps=self._ticks(factor)):
            returned = compiled(*given.args, **given.named)
        self._has_run = True
        results, tensors = as_results(returned)
        self._times.set_results(num_results=len(tensors), num_steps=self._ticks(_returned_steps(compiled.options)))
        return results

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the model for these arguments without running it; a second time nothing happens.

        Raises:
            Error: the model cannot be compiled.
        """
        if self._compiled is not None:
            _LOG.warning("Call to compile() ignored: the executable is already compiled")
            return
        self._compile(self._given(args, kwargs))

    def destroy(self) -> None:
        """Forgets the compiled step and lets the module go; weights and the optimizer's state stay."""
        if self._compiled is not None:
            self._compiled.destroy()
        self._compiled = self._form = None
        self._is_attached = self._has_run = False
        unwrap(self._user_model)

    def isCompiled(self) -> bool:
        """Whether the model is compiled."""
        return self._compiled is not None

    def isAttachedToDevice(self) -> bool:
        """Whether the model is compiled and has not been detached since."""
        return self._compiled is not None and self._is_attached

    def attachToDevice(self) -> None:
        """Takes hold of the machine again, which means nothing here but is checked.

        Raises:
            Error: the model is not compiled, or attached already.
        """
        _ = self.compiled
        check(
            self._options.connection_type != enums.ConnectionType.Never,
            "Trying to attach to an offline device (ConnectionType.Never)",
        )
        if self._is_attached:
            raise Error("Device is already attached")
        self._is_attached = True

    def detachFromDevice(self) -> None:
        """Lets the machine go, so that another model can have it; the next call takes it back.

        Raises:
            Error: the model is not compiled, or not attached.
        """
        _ = self.compiled
        if not self._is_attached:
            raise Error("Device is not attached")
        self._is_attached = False

    def copyWeightsToHost(self) -> None:
        """Brings the module's weights up to date; they share the step's memory, so they always are.

        Raises:
            Error: the model is not compiled.
        """
        self.compiled.copy_weights_to_host()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Whether the module's weights had to be brought up to date: never."""
        return False

    def copyWeightsToDevice(self) -> None:
        """Brings the compiled step up to date with the module's weights.

        Raises:
            Error: the model is not compiled.
        """
        self.compiled.copy_weights_to_device()

    def copyNamedBuffersToDevice(self) -> None:
        """Gives every replica the module's buffers that `Options.updatableNamedBuffers` names.

        Raises:
            Error: the model is not compiled, or has no such buffer.
        """
        buffers = dict(self._model.named_buffers())
        replicas = self.compiled.compiled.runner.buffers
        for name in self._options.updatable_named_buffers:
            if name not in buffers:
                raise Error(f"The model has no buffer named {name!r}; it has {', '.join(buffers) or 'none'}.")
            for own in replicas:
                if name in own:
                    own[name].copy_(buffers[name])

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> Any:
        """Replaces weights and buffers, and brings the compiled step up to date with them.

        Returns:
            What the module's own method returns: the keys that were missing, and those that were not expected.
        """
        found = self._user_model.load_state_dict(state_dict, strict)
        if self._compiled is not None:
            self._compiled.copy_weights_to_device()
            self._compiled.compiled.runner.reset_buffers()
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
        """Goes on with another optimizer; momentum and the like are kept where it brings none of its own.

        One of another kind, or over other parameters, has the step compiled anew at the next call.

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
        if popgeo_options(self._options, optimizer) != self._compiled.options:
            self._compile_anew()
            return
        try:
            self._compiled.set_optimizer(optimizer)
        except ValueError:
            self._compile_anew()

    @property
    def compiled(self) -> CompiledModel:
        """popgeo's compiled model, which has the graph and the report.

        Raises:
            Error: the model is not compiled.
        """
        if self._compiled is None:
            raise Error(NO_EXECUTABLE)
        return self._compiled

    @property
    def report(self) -> Report:
        """What a step costs on the modelled machine.

        Raises:
            Error: the model is not compiled.
        """
        return self.compiled.report

    @property
    def model(self) -> nn.Module:
        """The module."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The options, which do not change any more."""
        return self._options

    def compilationTime(self) -> timedelta:
        """How long compiling took on this computer.

        Raises:
            Error: the model is not compiled.
        """
        return timedelta(seconds=self.compiled.compiled.usage.compile_seconds)

    def getTensorNames(self) -> list[str]:
        """Names of PopART's tensors.

        Raises:
            Error: always, since there are none; the captured operations are `executor.compiled.graph`.
        """
        raise Error("PopART's names of tensors are not known here; executor.compiled.graph lists what was captured.")

    def getAnchoredTensor(self, short_name: str) -> Tensor:
        """A tensor inside PopART's graph.

        Raises:
            Error: always, since the names of `Options.anchorTensor` are not known.
        """
        raise Error(
            f"Tensor {short_name!r} is not known, since PopART's names are not; return it from the model instead."
        )

    def cycleCount(self) -> int:
        """Cycles of the last call on one IPU of the modelled machine.

        Raises:
            Error: `Options.logCycleCount` is off, or the model has not run.
        """
        if not self._options._Popart.options["instrumentWithHardwareCycleCounter"]:
            raise Error("Cycle count logging is disabled. Please set option logCycleCount to True to enable.")
        if not self._has_run:
            raise Error("Please run the model at least once before obtaining cycle count.")
        return self.report.total_cycles * self._options.device_iterations

    @property
    def rng_state(self) -> list[int]:
        """The states of the replicas' random numbers, one after the other.

        Raises:
            Error: the model is not compiled.
        """
        generators = self.compiled.compiled.runner.generators
        return [number for generator in generators for number in generator.get_state().tolist()]

    @rng_state.setter
    def rng_state(self, state: Sequence[int]) -> None:
        generators = self.compiled.compiled.runner.generators
        parts = torch.tensor(list(state), dtype=torch.uint8).chunk(len(generators))
        for generator, part in zip(generators, parts, strict=True):
            generator.set_state(part.clone())  # torch reads memory of its own size only

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Writes what it takes to compile the model again without its arguments, and the module where it is asked for.

        Raises:
            Error: the model is not compiled.
        """
        _ = self.compiled
        assert self._form is not None
        executable_file.write(
            filename,
            executable_file.Executable(
                form=self._form,
                options=self._options.clone(),
                model=self._user_model if export_model else None,
                optimizer=self._optimizer if export_model else None,
                training=self._training if export_model else None,
                rng_state=self.rng_state if save_rng_state else None,
            ),
        )

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
        self._compile(file.form.example())
        if file.rng_state is not None:
            self.rng_state = file.rng_state

    def __repr__(self) -> str:
        return repr(self._user_model)

    def __getattr__(self, name: str) -> Any:
        """What the executor does not have, the module may have."""
        if name in ("_user_model", "_model"):  # not set yet, so there is nothing to ask
            raise AttributeError(name)
        return getattr(self._user_model, name)

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallArguments:
        return CallArguments.of(self._signature, args, kwargs).map_tensors(_detached)

    def _for_replicas(self, given: CallArguments) -> CallArguments:
        if self._options.input_group_size == 1:
            return given
        return given.map_tensors(lambda tensor: for_each_replica(tensor, self._options))

    def _ticks(self, steps: int) -> int:
        """Steps that have times: none where the machine would make up its data."""
        return 0 if self._options._Popart.options.get("syntheticDataMode") else steps

    def _compile(self, given: CallArguments) -> CompiledModel:
        """Compiles the model for such arguments; where anything is refused, nothing has changed."""
        given.check_batch(self._options)
        log_options(self._options.toDict())
        options = popgeo_options(self._options, self._optimizer)
        before, self._model.training = self._model.training, self._mode
        try:
            with unwrapped(self._user_model), between_hooks(), as_poptorch_errors():
                model = (
                    ipu.training_model(self._model, options, self._optimizer)
                    if self._training
                    else ipu.inference_model(self._model, options)
                )
                each = self._for_replicas(given)
                with compiling(), losses_marked() if self._training else nullcontext():
                    try:
                        model.compile(*each.args, **each.named)
                    except (TypeError, RuntimeError) as error:
                        given.refuse_empty(error)
                        raise
                self._require_own_buffers(model)
        finally:
            self._model.training = before
        self._compiled, self._form = model, given.form()
        self._is_attached = self._options.connection_type != enums.ConnectionType.Never
        self._has_run = False
        return model

    def _compile_anew(self) -> None:
        """Forgets the step but not what it was compiled for, and compiles it with the optimizer as it is now."""
        assert self._compiled is not None
        assert self._form is not None
        attached, rng_state = self._is_attached, self.rng_state
        self._compiled.destroy()
        self._compile(self._form.example())
        self._is_attached, self.rng_state = attached, rng_state

    def _require_own_buffers(self, model: CompiledModel) -> None:
        """Refuses replicas that change buffers which they are to share."""
        if not self._options.broadcast_buffers or self._options.replication_factor == 1:
            return
        norms = {name for name, part in self._model.named_modules() if isinstance(part, _NormBase)}
        if any(name.rpartition(".")[0] not in norms for own in model.compiled.runner.buffers for name in own):
            model.destroy()
            raise Error(
                "PopTorch does not support broadcasting buffers. If your model is able to tolerate buffers becoming "
                "out of sync between replicas, you can disable buffer broadcasting using "
                "poptorch.Options.broadcastBuffers(False)."
            )


def _returned_steps(options: ipu.Options) -> int:
    """Micro-batches whose results a call returns."""
    if options.output_mode in (ipu.OutputMode.FINAL, ipu.OutputMode.SUM):
        return options.replication_factor
    return options.batch_factor // options.output_period


def _detached(tensor: Tensor) -> Tensor:
    if not tensor.requires_grad:
        return tensor
    _LOG.warning(
        "Input tensor has requires_grad=True set. This tensor will be detached because backward pass via inputs is not "
        "supported."
    )
    return tensor.detach()
