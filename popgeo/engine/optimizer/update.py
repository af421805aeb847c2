"""The optimizer's update, on parameters that lie side by side: a dozen operations for a group, not for each of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.op_graph import OpGraph
from popgeo.engine.loss_scaling import LossScale, LossScaling
from popgeo.engine.optimizer.capture_update import capture_later_update, capture_scaling, with_parameters
from popgeo.engine.optimizer.flat_parameters import ELEMENTWISE, flatten_groups, is_elementwise, optimizer_of
from popgeo.engine.optimizer.gradient_scaling import GradientScaling, overflow_of, set_gradient
from popgeo.engine.optimizer.mixed_optimizer import COUNTER, MixedOptimizer, keep_types_when_loading, mixed
from popgeo.engine.optimizer.precision import Precision
from popgeo.engine.optimizer.run_update import UpdateRunner
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_options import StepOptions


class Update:
    """Joins gradients, clips them and applies any `torch.optim` optimizer.

    Parameters that share a group and a type become views of one tensor when it takes them over; so do their gradients
    and the optimizer's state, which stays readable and writable through the optimizer given. Until then neither the
    parameters nor the optimizer change.

    Args:
        optimizer: Where hyperparameters and state live; a scheduler may change it at any time.
        parameters: The module's parameters that have a gradient, by name.
        options: How many gradients an update joins, and what becomes of them.
        learning_rate: The rate for each update, counted from 0, instead of the optimizer's own.
        part: Which of how many parts of the parameters this process updates; it keeps the state of that part alone.

    Attributes:
        optimizer: As given, or as set later.
        gradients: Where the step writes the gradient of each parameter, by name.
        num_updates: How many there have been; those left out because gradients overflowed do not count.
        scale: The scale of the loss, where it follows the gradients.
        precision: The types of the update.

    Raises:
        ValueError: there are no parameters to update; the optimizer needs to run the model itself, as L-BFGS does; it
            looks at whole tensors, of which each replica is to update a part; or it takes no gradients of the type in
            which they are joined.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: dict[str, nn.Parameter],
        options: StepOptions,
        learning_rate: Callable[[int], float] | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        if not parameters:
            raise ValueError(
                "The optimizer holds no parameter that the loss depends on; build it from model.parameters()."
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("LBFGS evaluates the model several times per step; use an optimizer without a closure.")
        self.optimizer = optimizer
        self.num_updates = 0
        self._options, self._learning_rate = options, learning_rate
        rule = options.loss_scaling
        self.scale = LossScale(rule) if isinstance(rule, LossScaling) else None
        self.precision = replace(Precision.of(options), part=part[0])
        self._scaling = GradientScaling(
            divisor=options.gradient_divisor,
            max_grad_norm=options.max_grad_norm,
            looks_for_overflow=self.scale is not None,
        )
        self._names = {id(p): name for name, p in parameters.items()}
        accumulates = options.gradient_accumulation * options.replication_factor > 1
        self._elementwise = is_elementwise(type(optimizer))
        if options.shard_optimizer_state and not self._elementwise:
            raise ValueError(
                f"Options.shard_optimizer_state cuts parameters into parts, but {type(optimizer).__name__} looks at "
                "whole rows or tensors. Leave it out, or take an optimizer that treats every element alike: AdamW."
            )
        self._flat = flatten_groups(
            optimizer,
            set(parameters.values()),
            self.precision,
            accumulates=accumulates,
            elementwise=self._elementwise,
            part=part,
        )
        self.gradients = {
            self._names[id(p)]: gradient
            for part in self._flat
            for p, gradient in zip(part.members, part.gradient_views, strict=True)
        }
        self._totals = {
            self._names[id(p)]: total
            for part in self._flat
            for p, total in zip(part.members, part.total_views, strict=True)
        }
        self._shape = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
        self._worker = mixed(optimizer_of(self._flat, optimizer), self.precision)
        self._require_wide_gradients()
        self._runner: UpdateRunner | None = None
        self._has_state: bool
        self._adopted: object = None

    def accumulate(self, *, first: bool, names: Sequence[str] | None = None) -> None:
        """Adds the gradients of one micro-batch to those of the update, or starts anew with the first.

        Args:
            first: Whether it is the first micro-batch of the update.
            names: The parameters whose gradients are there; all of them when left out.
        """
        if names is not None:
            for name in names:
                total, gradient = self._totals[name], self.gradients[name]
                if total.data_ptr() != gradient.data_ptr():
                    total.copy_(gradient) if first else total.add_(gradient)
            return
        for part in self._flat:
            if part.total is part.gradient:
                continue
            if first:
                part.total.copy_(part.gradient)
            else:
                part.total.add_(part.gradient)

    def tensors(self) -> list[Tensor]:
        """Gradients and optimizer state."""
        state = [t for part in self._flat for t in self._worker.state[part.own].values() if isinstance(t, Tensor)]
        return [*self.totals(), *state]

    def totals(self) -> list[Tensor]:
        """The joined gradients, one tensor for each group and type."""
        return [part.total for part in self._flat]

    def shared_totals(self) -> list[Tensor]:
        """Those of the joined gradients that all processes add up: of all parameters that are no process's own."""
        return [part.total for part in self._flat if not part.is_sharded]

    def divided(self) -> list[Tensor]:
        """The joined parameters of which each process updates a part, flat."""
        return [part.flat.detach().view(-1) for part in self._flat if part.is_divided]

    def sharded(self) -> frozenset[str]:
        """The others, by the names that their gradients have in a captured update."""
        return frozenset(f"{number}" for number, part in enumerate(self._flat) if part.is_sharded)

    def apply(self, replicas: Replicas | None = None) -> None:
        """One step with the joined gradients, scaled as the options say; none where they overflowed.

        Args:
            replicas: Those of this and of other processes, which leave a step out together.
        """
        self._follow_optimizer()
        scaling = self._scaling
        if self.scale is not None:
            overflow = overflow_of(self.totals())
            if replicas is not None:
                replicas.add_up([overflow])
            scaling = replace(scaling, divisor=scaling.divisor * self.scale.value, looks_for_overflow=False)
            if not self.scale.follow(overflowed=bool(overflow)):
                self.optimizer._opt_called = True  # type: ignore[attr-defined]  # as below
                return
        scaling.apply([part.flat for part in self._flat])
        self._step()
        if self._options.floating_point_exceptions:
            self._check()
        self.num_updates += 1
        for part in self._flat:
            state = self._worker.state[part.own]
            part.publish(self.optimizer, {key: piece for key, piece in state.items() if key != COUNTER})
        self._adopted = self.optimizer.state
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers warn about an optimizer that never stepped

    def _step(self) -> None:
        """Runs the captured update; torch's own code makes the state at first, and does what cannot be captured."""
        if not (self._elementwise and self._has_state):
            self._worker.step()
            self._has_state = True
            return
        if self._runner is None:
            self._runner = UpdateRunner(self._worker)
        if not self._runner.run():
            self._worker.step()

    def _require_wide_gradients(self) -> None:
        """Refuses a type of accumulation that the optimizer's own code does not take, found out on a single element."""
        wide = [part for part in self._flat if part.total.dtype != part.flat.dtype]
        if not wide or isinstance(self._worker, MixedOptimizer):
            return
        ones = [nn.Parameter(torch.ones(1, dtype=part.flat.dtype, device="cpu")) for part in self._flat]
        for one, part in zip(ones, self._flat, strict=True):
            set_gradient(one, torch.ones_like(one.detach(), dtype=part.total.dtype))
        try:
            with_parameters(self._worker, ones).step()
        except RuntimeError:
            raise ValueError(
                f"Options.accumulation_dtype joins gradients in {wide[0].total.dtype}, but "
                f"{type(self.optimizer).__name__} takes none but {wide[0].flat.dtype} for such weights. Set "
                "optimizer_state_dtype as well, to either type: updates are then worked out in float32."
            ) from None

    @property
    def is_captured(self) -> bool | None:
        """Whether updates run as captured graphs rather than as torch's own code; None before that is known."""
        if not self._elementwise:
            return False
        return None if self._runner is None else self._runner.is_captured

    def _check(self) -> None:
        """Raises where finite gradients gave weights of NaN or infinity."""
        broken = [part for part in self._flat if part.total.isfinite().all() and not part.flat.isfinite().all()]
        names = [self._names[id(p)] for part in broken for p in part.members if not p.isfinite().all()]
        if names:
            raise FloatingPointError(
                f"{type(self.optimizer).__name__}'s update of step {self.num_updates} gave NaN or infinity "
                f"from finite gradients: {', '.join(sorted(names))}"
            )

    def capture(self) -> OpGraph:
        """The operations on joined gradients and of an update after the first, which makes the optimizer's state."""
        return self.capture_part(1)

    def capture_part(self, parts: int) -> OpGraph:
        """The same of one of so many parts of the parameters: the largest, as one replica of so many updates it."""
        if parts == 1 and not any(part.is_divided for part in self._flat):
            return capture_later_update(self._worker, self._scaling)
        cut = []
        for part in self._flat:
            size = -(-part.flat.numel() // (parts if part.is_divisible else 1))
            own = nn.Parameter(part.flat.detach().reshape(-1)[:size] if part.flat.dim() else part.flat.detach())
            set_gradient(
                own, part.total.reshape(own.shape) if size == part.total.numel() else part.total.view(-1)[:size]
            )
            cut.append(own)
        return capture_later_update(with_parameters(self._worker, cut), self._scaling)

    def capture_scaling(self) -> OpGraph | None:
        """The operations on joined gradients alone, before each update; None where they stay as they are."""
        return None if self._scaling.changes_nothing else capture_scaling(self._worker, self._scaling)

    def members(self) -> list[list[str]]:
        """The names of the parameters that each of the joined tensors holds, in order."""
        return [[self._names[id(p)] for p in part.members] for part in self._flat]

    def worker(self) -> Optimizer:
        """The optimizer of the joined tensors, with the settings of the next update and the state so far.

        Raises:
            ValueError: it does more than treat each element alike.
        """
        if not self._elementwise:
            raise ValueError(
                f"{type(self.optimizer).__name__} looks at whole rows or tensors, so its update cannot be rehearsed on "
                f"single elements; use one of {', '.join(ELEMENTWISE)}."
            )
        self._follow_optimizer()
        return self._worker

    def settings(self, number: int) -> list[dict[str, Any]]:
        """The hyperparameters of each joined tensor in an update, counted from 0."""
        groups = [self.optimizer.param_groups[part.group] for part in self._flat]
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
            if isinstance(self._worker, MixedOptimizer):
                keep_types_when_loading(optimizer)

    def continue_from(self, num_updates: int, seed: int | None = None) -> None:
        """Counts updates, and draws the random numbers of their rounding, as after so many.

        Args:
            num_updates: How many there have been.
            seed: Where the random numbers started; None leaves that as it is.
        """
        self.num_updates, self._adopted = num_updates, None
        if seed is not None:
            self.precision = replace(self.precision, seed=seed)
            if isinstance(self._worker, MixedOptimizer):
                self._worker.precision = self.precision

    def share_seed(self, replicas: Replicas) -> None:
        """Gives every process the random numbers of the first, so that all round alike."""
        if self.precision.stochastic_rounding and replicas.world_size > 1:
            seed = torch.tensor(self.precision.seed % 2**63)
            replicas.share_weights([seed])
            self.continue_from(self.num_updates, int(seed))

    def take_over(self) -> None:
        """Makes the parameters views of the joined ones, at first and where their memory has been exchanged since.

        The latter happens, for example, in `load_state_dict(assign=True)`.
        """
        for part in self._flat:
            part.take_over()
        if isinstance(self._worker, MixedOptimizer):
            keep_types_when_loading(self.optimizer)

    def _follow_optimizer(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self._shape) or any(
            len(g["params"]) != len(s) for g, s in zip(groups, self._shape, strict=True)
        ):
            raise ValueError(
                "The optimizer's parameter groups changed after the model was compiled; call destroy() first."
            )
        if self.optimizer.state is not self._adopted:
            for part in self._flat:
                part.adopt(self.optimizer, self._worker.state)
            self._runner = None
            self._adopted = self.optimizer.state
            self._has_state = all(self._worker.state.get(part.own) for part in self._flat)
            if isinstance(self._worker, MixedOptimizer):
                self._worker.begin(self.num_updates)
        if isinstance(self._worker, MixedOptimizer):
            self._worker.follow_weights()
        for part, group in zip(self._flat, self._worker.param_groups, strict=True):
            group.update({key: choice for key, choice in groups[part.group].items() if key != "params"})
            if self._learning_rate is not None:
                group["lr"] = groups[part.group]["lr"] = self._learning_rate(self.num_updates)
