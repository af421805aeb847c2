"""A model's step, compiled for a processor or captured for a GPU."""

import inspect
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.capture.arguments import Arguments
from popgeo.capture.capture_step import capture_step
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.held_state import in_modes
from popgeo.engine import micro_batches
from popgeo.engine.bound_call import BoundCall
from popgeo.engine.cuda_graph import CudaGraphRunner
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.inductor import InductorRunner
from popgeo.engine.loss_scaling import LossScale
from popgeo.engine.optimizer.capturable import check_capturable
from popgeo.engine.optimizer.update import Update
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_options import StepOptions
from popgeo.engine.step_runner import StepRunner
from popgeo.ops import sum_on_device

_REMEDY = "A compiled step has fixed shapes: give it what it was compiled for, or call reset() and compile anew."
_HALVES = (None, torch.bfloat16, torch.float16)


class Backend(Enum):
    """What runs a compiled step."""

    CPU = "cpu"
    """This library's executor."""
    INDUCTOR = "inductor"
    """torch's compiler, on the processor; it is handed the captured operations."""
    CUDA = "cuda"
    """A GPU, which replays the whole step as one CUDA graph."""


class CompiledStep:
    """A model whose step is compiled for fixed shapes; made by `compile_step` and `compile_forward`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        backend: Backend,
        options: StepOptions,
        learning_rate: Callable[[int], float] | None,
        autocast: torch.dtype | None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"model is a {type(model).__name__}; pass a torch.nn.Module.")
        if autocast not in _HALVES:
            raise ValueError(f"autocast is {autocast}; it is torch.bfloat16, torch.float16 or None.")
        self.model, self.optimizer, self.backend, self.options = model, optimizer, backend, options
        self._learning_rate, self._autocast = learning_rate, autocast
        self._modes = {module: module.training for module in model.modules()}
        self._signature = inspect.signature(model.forward)
        self._device = _device(model, backend)
        self._check_options()
        if backend is Backend.CUDA and optimizer is not None:
            check_capturable(optimizer)
        self._call: BoundCall | None = None
        self._runner: Any = None
        self.calls, self.compile_seconds = 0, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one call: `device_iterations` x `gradient_accumulation` micro-batches.

        Raises:
            ValueError: an argument differs from what the step was compiled for, named with both shapes or values.
        """
        if self._call is None:
            self._compile(args, kwargs)
        call = self._call
        assert call is not None  # _compile has made it
        tensors, graph_data = call.flatten(args, kwargs)
        results = self._runner.run(tensors)
        self.calls += 1
        return call.unflatten(results, graph_data)

    def compile(self, example_batch: Any) -> "CompiledStep":
        """Compiles the step for such a batch without running it; see `compile_step`.

        Raises:
            ValueError: a shape depends on data, or it is compiled already for another batch.
        """
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if isinstance(example_batch, tuple):
            args = example_batch
        elif isinstance(example_batch, Mapping):
            kwargs = dict(example_batch)
        else:
            args = (example_batch,)
        if self._call is None:
            self._compile(args, kwargs)
        assert self._call is not None  # _compile has made it
        self._call.flatten(args, kwargs)
        return self

    @property
    def loss_scale(self) -> LossScale | None:
        """The scale of the loss and how many updates it left out; None where it is constant, or nothing is compiled."""
        return None if self._runner is None or self.backend is Backend.CUDA else self._runner.loss_scale

    def reset(self) -> None:
        """Forgets what was compiled; weights and optimizer state stay, and the next call may have other shapes."""
        for parameter in self.model.parameters():
            if self.backend is not Backend.CUDA:
                parameter.data = parameter.data.clone()  # no longer a view of the step's memory
        self._call = self._runner = None

    def __repr__(self) -> str:
        kind = "forward" if self.optimizer is None else "training"
        parts = [f"{type(self.model).__name__}: {kind}", f"backend {self.backend.value}"]
        if self._call is None:
            parts.append("not compiled yet")
        else:
            parts.append(f"{self.calls:,} {'call' if self.calls == 1 else 'calls'}")
            parts += self._how_it_runs()
        if self._autocast is not None:
            parts.append(f"autocast {str(self._autocast).removeprefix('torch.')}")
        return f"{type(self).__name__}({', '.join(part for part in parts if part)})"

    def _how_it_runs(self) -> list[str]:
        if isinstance(self._runner, CudaGraphRunner):
            return [self._runner.how_it_runs(), sum_on_device.describe()]
        scale = self._runner.loss_scale
        return ["" if scale is None else str(scale), *self._runner.joined]

    def _check_options(self) -> None:
        """Refuses what a backend does not serve."""
        if self.backend is Backend.CPU:
            return
        options, on_gpu = self.options, self.backend is Backend.CUDA
        refused = {
            "replication_factor": options.replication_factor != 1,
            "floating_point_exceptions": options.floating_point_exceptions,
            "random_seed": on_gpu and options.random_seed is not None,
            "a loss_scaling that is not constant": on_gpu and options.constant_loss_scaling is None,
            "accumulation_dtype": on_gpu and options.accumulation_dtype is not None,
            "optimizer_state_dtype": on_gpu and options.optimizer_state_dtype is not None,
            "master_weights": on_gpu and options.master_weights,
            "stochastic_rounding": on_gpu and options.stochastic_rounding,
        }
        names = [name for name, asked in refused.items() if asked]
        if names:
            raise ValueError(
                f"backend={self.backend.value!r} does not serve {', '.join(names)}. Use backend='cpu', or leave it out"
                f"{'; torch.manual_seed seeds a GPU' if 'random_seed' in names else ''}."
            )

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        start = time.perf_counter()
        options, factor = self.options, self.options.steps_per_call
        arguments = Arguments.of(self._signature, args, kwargs)
        replicas = Replicas.of_this_process(options.replication_factor)
        factor *= len(replicas.local)
        micro_batches.check_batch_dimension(arguments.structure, factor)
        one = arguments.with_tensors(micro_batches.micro_batch(arguments.tensors, 0, factor))
        with in_modes(self.model, self._modes):
            step = capture_step(
                self.model,
                one,
                trained=self._trained(),
                loss_scaling=options.constant_loss_scaling,
                autocast=self._autocast,
                show_progress=True,
            )
        self._runner = self._runner_for(step, arguments, replicas)
        self._call = BoundCall(
            signature=self._signature, arguments=arguments.structure, result=step.result, remedy=_REMEDY
        )  # fmt: skip
        self.compile_seconds = time.perf_counter() - start

    def _runner_for(self, step: CapturedStep, arguments: Arguments, replicas: Replicas) -> Any:
        options = self.options
        if self.backend is Backend.CUDA:
            part = micro_batches.micro_batch(arguments.tensors, 0, options.device_iterations)
            return CudaGraphRunner(
                step,
                self.model,
                self._modes,
                arguments.with_tensors(part),
                options,
                self.optimizer,
                learning_rate=self._learning_rate,
                autocast=self._autocast,
                device=self._device,
                cuda=torch.cuda,
            )
        update = None
        if self.optimizer is not None:
            parameters = {name: p for name, p in self.model.named_parameters() if name in step.trained}
            update = Update(self.optimizer, parameters, options, self._learning_rate)
        kind = InductorRunner if self.backend is Backend.INDUCTOR else GraphRunner
        return StepRunner(step, self.model, options, update, replicas, kind)

    def _trained(self) -> list[str]:
        if self.optimizer is None:
            return []
        held = {p for group in self.optimizer.param_groups for p in group["params"]}
        return [name for name, p in self.model.named_parameters() if p in held and p.requires_grad]


def _device(model: nn.Module, backend: Backend) -> torch.device:
    """Where the step runs.

    Raises:
        ValueError: there is no such device, or the model does not lie there.
    """
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    wanted = "cuda" if backend is Backend.CUDA else "cpu"
    if backend is Backend.CUDA and not torch.cuda.is_available():
        reason = "this build of torch is without CUDA" if torch.version.cuda is None else "the driver shows none"
        raise ValueError(f"torch finds no CUDA device: {reason}. Use backend='cpu' or backend='inductor'.")
    if len(devices) > 1 or any(device.type != wanted for device in devices):
        found = ", ".join(sorted(map(str, devices)))
        other = "" if wanted == "cuda" else ", or pass backend='cuda'"
        raise ValueError(
            f"The model lies on {found}, and backend={backend.value!r} runs on {wanted}. Call "
            f"model.to({wanted!r}) before the optimizer is made{other}."
        )
    return next(iter(devices), torch.device(wanted))
