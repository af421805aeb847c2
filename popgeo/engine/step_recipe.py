"""What is to be compiled, how, and for which machine next to this computer; the engine itself knows none."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.capture.arguments import Arguments
from popgeo.capture.capture import signature_of
from popgeo.capture.captured_step import CapturedStep
from popgeo.engine.backend import Backend, device_of, require_served
from popgeo.engine.optimizer.capturable import check_capturable
from popgeo.engine.optimizer.update import Update
from popgeo.engine.pipeline.staging import Staging
from popgeo.engine.step_options import StepOptions


def plain_optimizer(optimizer: Any) -> Optimizer:
    """Return what was given if it is an optimizer, and of accelerate's wrapper the optimizer that it wraps.

    Raises:
        ValueError: it is no optimizer, or wraps one in a way that a compiled step would lose.
    """
    kind = type(optimizer)
    if kind.__module__ == "accelerate.optimizer":
        steps = optimizer.gradient_state.num_steps
        if steps != 1:
            raise ValueError(
                f"The accelerator has gradient_accumulation_steps={steps}, which is lost in a compiled step: it "
                f"updates in each call. Leave it out and pass options=StepOptions(gradient_accumulation={steps})."
            )
        if optimizer.scaler is not None:
            raise ValueError(
                "The accelerator scales the loss for float16, which is lost in a compiled step. Leave out "
                "mixed_precision and pass options=StepOptions(loss_scaling='dynamic')."
            )
        return plain_optimizer(optimizer.optimizer)
    if isinstance(optimizer, Optimizer) and hasattr(optimizer, "param_groups"):
        if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
            raise ValueError(
                f"{kind.__name__} has not called torch.optim.Optimizer.__init__, so its hooks and its state "
                "are not known. Call it there, or pass the optimizer that it wraps."
            )
        return optimizer
    given = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else f"a {type(optimizer).__name__}"
    name = optimizer.__name__ if isinstance(optimizer, type) else "torch.optim.Adam"
    raise ValueError(f"optimizer is {given}; pass one over the model's parameters, {name}(model.parameters(), lr=...).")


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """All that a compiled step knows before it sees the arguments of a call.

    Attributes:
        function: The function to capture: a module, or a function of tensors.
        optimizer: Over parameters of the module; None for a forward pass.
        options: How often a call repeats the step, and what it returns.
        backend: What runs it.
        learning_rate: The rate of each update, counted from 0, instead of the optimizer's own.
        autocast: The type that the forward pass computes in if that is safe.
        machine: What else the step is compiled for; None for this computer alone.
        modes: Which submodules train; as they do now when left out.

    Raises:
        ValueError: the backend does not serve what is asked for, the module lies elsewhere, or a forward pass is to
            accumulate gradients; or `optimizer` is not an optimizer of torch.
    """

    function: Callable[..., Any]
    optimizer: Optimizer | None = None
    options: StepOptions
    backend: Backend = Backend.CPU
    learning_rate: Callable[[int], float] | None = None
    autocast: torch.dtype | None = None
    machine: "StepMachine | None" = None
    modes: Mapping[nn.Module, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.options, StepOptions):
            kind = type(self.options).__name__
            raise ValueError(f"options is a {kind}; pass popgeo.StepOptions(device_iterations=...) or the like.")
        if self.autocast not in (None, torch.bfloat16, torch.float16):
            raise ValueError(f"autocast is {self.autocast}; it is torch.bfloat16, torch.float16 or None.")
        signature_of(self.function)  # which refuses a model of torch.compile
        if not self.modes:
            object.__setattr__(self, "modes", {part: part.training for part in self.module.modules()})
        if self.optimizer is None and self.options.gradient_accumulation != 1:
            raise ValueError(
                "A forward pass has no gradients to accumulate; set gradient_accumulation to 1, not "
                f"{self.options.gradient_accumulation}."
            )
        if self.optimizer is not None:
            object.__setattr__(self, "optimizer", plain_optimizer(self.optimizer))
        device_of(self.module, self.backend)  # which refuses a module that lies elsewhere
        require_served(self.backend, self.options)
        if self.backend is Backend.CUDA and self.optimizer is not None:
            check_capturable(self.optimizer)

    @cached_property
    def module(self) -> nn.Module:
        """The function, if it is a module; an empty one otherwise."""
        return self.function if isinstance(self.function, nn.Module) else nn.Module()

    @cached_property
    def signature(self) -> inspect.Signature:
        """How the function is called."""
        return signature_of(self.function)

    @property
    def name(self) -> str:
        """That of the function, or of the module's class."""
        return getattr(self.function, "__name__", type(self.function).__name__)


class StepPlan(Protocol):
    """How a machine would run a captured step, and what that costs there."""

    @property
    def staging(self) -> Staging | None:
        """The stages in which the step runs, here too; None if it runs as a whole."""

    @property
    def pipeline(self) -> Any:
        """The account of the stages.

        Raises:
            ValueError: the step runs as a whole.
        """

    def require_fit(self) -> None:
        """Refuses a step that the machine has no room for."""

    def report(self, run: Mapping[str, Any]) -> Any:
        """The account of the step, with what this computer did for it, by the names of `BoundStep.figures`."""


class StepMachine(Protocol):
    """A machine that steps are compiled for: it may refuse a step, cut it into stages, and it accounts for it."""

    def capturing(self) -> AbstractContextManager[Any]:
        """What surrounds each capture of a model for it."""

    def what_decides(self, optimizer: Optimizer | None) -> list[object]:
        """What decides whether a step fits next to the capture itself, since a kept step has passed that."""

    def plan(self, recipe: Recipe, arguments: Arguments, step: CapturedStep, update: Update | None) -> StepPlan:
        """How the machine would run a captured step.

        Args:
            recipe: The captured step; its module is in the modes of the step.
            arguments: Those of one micro-batch.
            step: Its operations.
            update: The optimizer's update; None for a forward pass.

        Raises:
            ValueError: the step cannot be cut as it is asked for.
        """
