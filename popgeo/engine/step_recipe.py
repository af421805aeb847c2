"""The recipe of a compiled step, and the interface of a machine that it may be compiled for."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from popgeo.capture.arguments import Arguments
from popgeo.capture.capture import signature_of
from popgeo.capture.captured_step import CapturedStep
from popgeo.engine.backend import Backend, device_of, require_served
from popgeo.engine.optimizer.capturable import check_capturable
from popgeo.engine.optimizer.update import Update
from popgeo.engine.optimizer.weight_average import require_average
from popgeo.engine.pipeline.staging import Staging
from popgeo.engine.replicas import refuse_wrapped
from popgeo.engine.step_options import StepOptions


def plain_optimizer(optimizer: Any) -> Optimizer:
    """Return an optimizer of torch: the argument, or the optimizer inside accelerate's wrapper.

    Raises:
        ValueError: the argument is not an optimizer, or its wrapper has settings that a compiled step would ignore.
    """
    kind = type(optimizer)
    if kind.__module__ == "accelerate.optimizer":
        steps = optimizer.gradient_state.num_steps
        if steps != 1:
            raise ValueError(
                f"The accelerator has gradient_accumulation_steps={steps}, but a compiled step updates in each call. "
                f"Leave it out and pass options=StepOptions(gradient_accumulation={steps})."
            )
        if optimizer.scaler is not None:
            raise ValueError(
                "The accelerator scales the loss for float16, but a compiled step does not use its scaler. Leave out "
                "mixed_precision and pass options=StepOptions(loss_scaling='dynamic')."
            )
        return plain_optimizer(optimizer.optimizer)
    if isinstance(optimizer, Optimizer) and hasattr(optimizer, "param_groups"):
        if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
            raise ValueError(
                f"{kind.__name__} has not called torch.optim.Optimizer.__init__, so it has no hooks and no state. Call "
                "it in __init__, or pass the optimizer that it wraps."
            )
        return optimizer
    given = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else f"a {type(optimizer).__name__}"
    name = optimizer.__name__ if isinstance(optimizer, type) else "torch.optim.Adam"
    raise ValueError(f"optimizer is {given}; pass one over the model's parameters, {name}(model.parameters(), lr=...).")


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """The inputs of a compiled step, except for the arguments of a call.

    Attributes:
        function: The module, or the function of tensors, to capture.
        optimizer: An optimizer over parameters of the module. Default: none, for a forward pass.
        options: The number of repetitions of the step in a call, the results to return, and other choices.
        backend: The executor of the step. Default: this library's.
        learning_rate: Learning rate of each update, counted from 0. Default: the optimizer's own.
        autocast: Type of the forward pass for operations in which it is safe. Default: the type of the weights.
        average: A moving average of the weights, which each update brings up to date. Default: none.
        machine: A machine that plans and accounts for the step. Default: none; the step runs on this computer alone.
        modes: For each submodule, whether it trains. Default: its present mode.
        refuses_empty_updates: Whether `optimizer.step()` raises an error if there are no gradients.

    Raises:
        ValueError: the backend does not support the options, the module is on another device, a forward pass has
            gradient accumulation, `optimizer` is not an optimizer of torch, or `average` has other tensors than the
            module.
    """

    function: Callable[..., Any]
    optimizer: Optimizer | None = None
    options: StepOptions
    backend: Backend = Backend.CPU
    learning_rate: Callable[[int], float] | None = None
    autocast: torch.dtype | None = None
    average: AveragedModel | None = None
    machine: "StepMachine | None" = None
    modes: Mapping[nn.Module, bool] = field(default_factory=dict)
    refuses_empty_updates: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.options, StepOptions):
            kind = type(self.options).__name__
            raise ValueError(f"options is a {kind}; pass popgeo.StepOptions(device_iterations=...) or the like.")
        if self.autocast not in (None, torch.bfloat16, torch.float16):
            raise ValueError(f"autocast is {self.autocast}; it is torch.bfloat16, torch.float16 or None.")
        signature_of(self.function)  # raises for a model of torch.compile
        if not self.modes:
            object.__setattr__(self, "modes", {part: part.training for part in self.module.modules()})
        if self.optimizer is None and self.options.gradient_accumulation != 1:
            raise ValueError(
                "A forward pass has no gradients to accumulate; set gradient_accumulation to 1, not "
                f"{self.options.gradient_accumulation}."
            )
        if self.optimizer is not None:
            object.__setattr__(self, "optimizer", plain_optimizer(self.optimizer))
        if self.average is not None:
            require_average(self.average, self.module)
        device_of(self.module, self.backend)  # raises for a module on another device
        require_served(self.backend, self.options)
        if self.backend is Backend.CUDA and self.optimizer is not None:
            check_capturable(self.optimizer)
            refuse_wrapped(self.module)

    @cached_property
    def module(self) -> nn.Module:
        """The function if it is a module; otherwise an empty module."""
        return self.function if isinstance(self.function, nn.Module) else nn.Module()

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature of the function."""
        return signature_of(self.function)

    @property
    def name(self) -> str:
        """The name of the function, or of the module's class."""
        return getattr(self.function, "__name__", type(self.function).__name__)


class StepPlan(Protocol):
    """A machine's plan of a captured step, with its cost."""

    @property
    def staging(self) -> Staging | None:
        """The stages in which the step runs, on this computer too; None if it runs as a whole."""

    @property
    def pipeline(self) -> Any:
        """The account of the stages; a step that runs as a whole raises a ValueError."""

    def require_fit(self) -> None:
        """Raise an error if the step does not fit in the machine's memory."""

    def report(self, run: Mapping[str, Any]) -> Any:
        """Return the account of the step, with the figures of this computer from `BoundStep.figures`."""


class StepMachine(Protocol):
    """A machine that steps are compiled for: it rejects a step, or cuts it into stages and accounts for its cost."""

    def capturing(self) -> AbstractContextManager[Any]:
        """Return a context for each capture of a model for this machine."""

    def what_decides(self, optimizer: Optimizer | None) -> list[object]:
        """Return all conditions for fitting in memory besides the captured step, for the key of a cached step."""

    def plan(self, recipe: Recipe, arguments: Arguments, step: CapturedStep, update: Update | None) -> StepPlan:
        """Plan a captured step.

        Args:
            recipe: The recipe of the step; its module is in the modes of the step.
            arguments: The arguments of one micro-batch.
            step: The captured operations.
            update: The optimizer's update; None for a forward pass.

        Raises:
            ValueError: the step cannot be cut into the stages of the options.
        """
