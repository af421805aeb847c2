"""The optimizer's update, on parameters that lie side by side: a dozen operations for a group, not for each of them."""

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.op_graph import OpGraph
from popgeo.engine.optimizer.capture_update import CapturedUpdate, capture_update
from popgeo.engine.optimizer.flat_parameters import Block

# Each element's update depends on that element and on numbers alone, so many parameters may be updated as one.
_ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD")


class Update:
    """Joins gradients, clips them and applies any `torch.optim` optimizer.

    Parameters that share a group and a type are moved into one tensor, which they become views of; so are their
    gradients and the optimizer's state, which stays readable and writable through the optimizer given.

    Args:
        optimizer: Where hyperparameters and state live; a scheduler may change it at any time.
        parameters: The module's parameters that have a gradient, by name.
        accumulates: Whether an update joins the gradients of several micro-batches.
        max_grad_norm: Gradients are scaled down to this 2-norm; None leaves them.
        learning_rate: The rate for each update, counted from 0, instead of the optimizer's own.
        floating_point_exceptions: Check the weights after each update.

    Raises:
        ValueError: the optimizer needs to run the model itself, as L-BFGS does, or its groups have changed.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: dict[str, nn.Parameter],
        *,
        accumulates: bool = False,
        max_grad_norm: float | None = None,
        learning_rate: Callable[[int], float] | None = None,
        floating_point_exceptions: bool = False,
    ) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("LBFGS evaluates the model several times per step; use an optimizer without a closure.")
        self.optimizer = optimizer
        self.num_updates = 0
        self._max_grad_norm, self._learning_rate = max_grad_norm, learning_rate
        self._checks = floating_point_exceptions
        self._names = {id(p): name for name, p in parameters.items()}
        self._blocks: list[Block] = []
        self.gradients: dict[str, Tensor] = {}
        self._captured: CapturedUpdate | None = None
        self._has_state = False
        self._flat = type(optimizer).__module__.startswith("torch.optim") and type(optimizer).__name__ in _ELEMENTWISE
        for number, group in enumerate(optimizer.param_groups):
            for members in _alike([p for p in group["params"] if id(p) in self._names], self._flat):
                self._blocks.append(Block(number, members, accumulates))
        for block in self._blocks:
            self.gradients |= {self._names[id(p)]: g for p, g in zip(block.members, block.gradient_views, strict=True)}
        self._shape = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
        self._worker = _worker(optimizer, self._blocks)
        self._adopted: object = None

    def accumulate(self, *, first: bool) -> None:
        """Adds the gradients of one micro-batch to those of the update, or starts anew with the first."""
        for block in self._blocks:
            if block.total is block.gradient:
                continue
            if first:
                block.total.copy_(block.gradient)
            else:
                block.total.add_(block.gradient)

    def tensors(self) -> list[Tensor]:
        """Gradients and optimizer state."""
        state = [t for block in self._blocks for t in self._worker.state[block.flat].values() if isinstance(t, Tensor)]
        return [*(block.total for block in self._blocks), *state]

    def totals(self) -> list[Tensor]:
        """The joined gradients, one tensor for each group and type."""
        return [block.total for block in self._blocks]

    def apply(self, divisor: float) -> None:
        """One step with the gradients divided by `divisor`."""
        self._follow_optimizer()
        for block in self._blocks:
            if divisor != 1:
                block.total.div_(divisor)
        if self._max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_([block.flat for block in self._blocks], self._max_grad_norm)
        self._step()
        if self._checks:
            self._check()
        self.num_updates += 1
        for block in self._blocks:
            block.publish(self.optimizer, self._worker.state[block.flat])
        self._adopted = self.optimizer.state
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers warn about an optimizer that never stepped

    def _step(self) -> None:
        """Runs the captured update; torch's own code makes the state at first, and does what cannot be captured."""
        if not (self._flat and self._has_state):
            self._worker.step()
            self._has_state = True
            return
        if self._captured is None:
            self._captured = CapturedUpdate(self._worker)
        if not self._captured.run():
            self._worker.step()

    @property
    def is_captured(self) -> bool | None:
        """Whether updates run as captured graphs rather than as torch's own code; None before that is known."""
        if not self._flat:
            return False
        return None if self._captured is None else self._captured.is_captured

    def _check(self) -> None:
        """Raises where finite gradients gave weights of NaN or infinity."""
        broken = [block for block in self._blocks if block.total.isfinite().all() and not block.flat.isfinite().all()]
        names = [self._names[id(p)] for block in broken for p in block.members if not p.isfinite().all()]
        if names:
            raise FloatingPointError(
                f"{type(self.optimizer).__name__}'s update of step {self.num_updates} gave NaN or infinity "
                f"from finite gradients: {', '.join(sorted(names))}"
            )

    def capture(self) -> OpGraph:
        """The operations of an update after the first, which makes the optimizer's state."""
        return capture_update(self._worker)

    def members(self) -> list[list[str]]:
        """The names of the parameters that each of the joined tensors holds, in order."""
        return [[self._names[id(p)] for p in block.members] for block in self._blocks]

    def worker(self) -> Optimizer:
        """The optimizer of the joined tensors, with the settings of the next update and the state so far.

        Raises:
            ValueError: it does more than treat each element alike.
        """
        if not self._flat:
            raise ValueError(
                f"{type(self.optimizer).__name__} looks at whole rows or tensors, so its update cannot be rehearsed on "
                f"single elements; use one of {', '.join(_ELEMENTWISE)}."
            )
        self._follow_optimizer()
        return self._worker

    def settings(self, number: int) -> list[dict[str, Any]]:
        """The hyperparameters of each joined tensor in an update, counted from 0."""
        groups = [self.optimizer.param_groups[block.group] for block in self._blocks]
        rate = {} if self._learning_rate is None else {"lr": self._learning_rate(number)}
        return [{**{key: part for key, part in group.items() if key != "params"}, **rate} for group in groups]

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Takes hyperparameters and state from another optimizer over the same parameters."""
        if type(optimizer) is not type(self.optimizer):
            raise ValueError(
                f"The model was compiled with {type(self.optimizer).__name__}, not {type(optimizer).__name__}; "
                "wrap it anew."
            )
        if [[id(p) for p in group["params"]] for group in optimizer.param_groups] != self._shape:
            raise ValueError(
                "The optimizer holds other parameters or groups than the one compiled with; wrap the model anew."
            )
        if optimizer is not self.optimizer:
            self.optimizer, self._adopted = optimizer, None

    def follow_parameters(self) -> None:
        """Takes over parameters whose memory was exchanged, for example by `load_state_dict(assign=True)`."""
        for block in self._blocks:
            block.follow()

    def _follow_optimizer(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self._shape) or any(
            len(g["params"]) != len(s) for g, s in zip(groups, self._shape, strict=True)
        ):
            raise ValueError(
                "The optimizer's parameter groups changed after the model was compiled; call destroy() first."
            )
        if self.optimizer.state is not self._adopted:
            for block in self._blocks:
                block.adopt(self.optimizer, self._worker.state)
            self._captured = None
            self._has_state = all(self._worker.state.get(block.flat) for block in self._blocks)
        for block, group in zip(self._blocks, self._worker.param_groups, strict=True):
            group.update({key: choice for key, choice in groups[block.group].items() if key != "params"})
            if self._learning_rate is not None:
                group["lr"] = groups[block.group]["lr"] = self._learning_rate(self.num_updates)


def _alike(parameters: Sequence[nn.Parameter], flat: bool) -> list[list[nn.Parameter]]:
    by_kind: dict[Any, list[nn.Parameter]] = defaultdict(list)
    for p in parameters:
        # A parameter without dimensions stays alone: its state could not be told from a step count.
        by_kind[p.dtype if flat and p.dim() and p.is_contiguous() else id(p)].append(p)
    return list(by_kind.values())


def _worker(optimizer: Optimizer, blocks: Sequence[Block]) -> Optimizer:
    """The same kind of optimizer, over the blocks."""
    groups = [
        {**{k: v for k, v in optimizer.param_groups[block.group].items() if k != "params"}, "params": [block.flat]}
        for block in blocks
    ]
    worker = copy.copy(optimizer)
    worker.param_groups, worker.state = groups, defaultdict(dict)
    return worker
