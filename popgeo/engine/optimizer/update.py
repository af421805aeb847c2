"""The optimizer's update, on joined parameters: a dozen operations for a group, not for each of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.op_graph import OpGraph
from popgeo.engine.loss_scaling import LossScale, LossScaling
from popgeo.engine.optimizer.capture_update import capture_later_update, capture_scaling
from popgeo.engine.optimizer.choose_worker import choose_worker
from popgeo.engine.optimizer.flat_parameters import flatten_groups, refuse_whole_tensors
from popgeo.engine.optimizer.gradient_scaling import GradientScaling, overflow_of
from popgeo.engine.optimizer.joined_memory import overlap
from popgeo.engine.optimizer.precision import keep_types_when_loading
from popgeo.engine.optimizer.worker import OwnWorker, Worker, noted_groups, require_gradients, settings_of, wants_itself
from popgeo.engine.replicas import Replicas
from popgeo.engine.same_objects import holds_the_same
from popgeo.engine.step_options import StepOptions

_ALONE = Replicas((0,), 1)


class Update:
    """Joins gradients, clips them and applies any `torch.optim` optimizer.

    Parameters that share a group and a type are updated as one, in memory of the step's own. They stay in the memory of
    their owners, who may exchange it (`follow_memory`); the optimizer's state stays readable and writable through the
    optimizer given.

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
        scale: The scale of the loss, if it follows the gradients.
        seed: Where the random numbers start by which weights are rounded.

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
            raise ValueError("The optimizer holds no parameter that the loss depends on; pass it model.parameters().")
        require_gradients(optimizer, parameters)
        if options.shard_optimizer_state:
            refuse_whole_tensors(optimizer, "Options.shard_optimizer_state cuts parameters into parts")
        rule = options.loss_scaling
        self.optimizer = optimizer
        self.num_updates = 0
        self.scale = LossScale(rule) if isinstance(rule, LossScaling) else None
        self.seed = torch.initial_seed() if options.random_seed is None else options.random_seed
        self._learning_rate = learning_rate
        self._checks, self._rounds = options.floating_point_exceptions, options.stochastic_rounding
        self._scaling = GradientScaling(
            divisor=options.gradient_divisor,
            max_grad_norm=options.max_grad_norm,
            looks_for_overflow=self.scale is not None,
        )
        self._names = {id(p): name for name, p in parameters.items()}
        self._shape = [list(group["params"]) for group in optimizer.param_groups]
        self._flat = flatten_groups(optimizer, set(parameters.values()), options, part)
        self.gradients = self._named([part.gradient_views for part in self._flat])
        self._totals = self._named([part.total_views for part in self._flat])
        self._own = OwnWorker(optimizer, self._flat)
        self._worker = choose_worker(self._own, self._flat, options, part[0])
        self._shares_memory = False
        # The user's groups and state as they were last taken; None if they are to be taken again.
        self._groups: list[dict[str, Any]] | None = None
        self._adopted: dict[Any, Any] | None = None

    def accumulate(self, names: Sequence[str] | None = None, first: bool = False) -> None:
        """Adds the gradients of one micro-batch to the update's, or starts again with the first.

        Args:
            names: The parameters whose gradients are there; all of them when left out.
            first: Whether it is the first micro-batch of the update.
        """
        if names is None:
            pairs = [(part.total, part.gradient) for part in self._flat]
        else:
            pairs = [(self._totals[name], self.gradients[name]) for name in names]
        for total, gradient in pairs:
            if total.data_ptr() != gradient.data_ptr():
                total.copy_(gradient) if first else total.add_(gradient)

    def tensors(self) -> list[Tensor]:
        """Gradients and optimizer state."""
        held = [part for state in self._worker.optimizer.state.values() for part in state.values()]
        return [*self.totals(), *(part for part in held if isinstance(part, Tensor))]

    def totals(self) -> list[Tensor]:
        """The joined gradients, one tensor for each group and type."""
        return [part.total for part in self._flat]

    def sharded(self) -> frozenset[str]:
        """Those that are this process's own, by the names that their gradients have in a captured update."""
        return frozenset(f"{number}" for number, part in enumerate(self._flat) if part.is_sharded)

    def apply(self, replicas: Replicas = _ALONE) -> None:
        """One step with the gradients of all processes, scaled as the options say; none if they overflowed.

        Args:
            replicas: Those of this and of other processes, which leave a step out together. Gradients of parameters
                that belong to no single process are added up, and each process hands on what it alone has updated.
        """
        replicas.add_up([part.total for part in self._flat if not part.is_sharded])
        worker = self._follow_optimizer()
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers warn about one that never stepped
        scaling = self._scaling
        if self.scale is not None:
            overflow = overflow_of(self.totals())
            replicas.add_up([overflow])
            scaling = replace(scaling, divisor=scaling.divisor * self.scale.value, looks_for_overflow=False)
            if not self.scale.follow(overflowed=bool(overflow)):
                return
        if not scaling.changes_nothing:
            scaling.apply([part.flat for part in self._flat])
        worker.step()
        if worker is not self._own:
            replicas.hand_on([part.flat.detach().view(-1) for part in self._flat if part.is_divided])
            for part in self._flat:
                part.give_values()
        if self._checks:
            self._check()
        self.num_updates += 1
        if max([part.publish(self.optimizer, worker.state(part.own)) for part in self._flat]):
            self._adopted = _noted(self.optimizer)

    @property
    def is_captured(self) -> bool | None:
        """Whether updates run as captured graphs rather than as torch's own code; None before that is known."""
        return self._worker.is_captured

    def capture(self, parts: int = 1) -> OpGraph:
        """The operations on joined gradients and of an update after the first, which makes the optimizer's state.

        Args:
            parts: Of one of that many parts of the parameters: the largest, as one replica of that many updates it.
        """
        if self._worker is not self._own:
            self._adopt()  # some optimizers make their state when they are made
        is_whole = parts == 1 and not any(part.is_divided for part in self._flat)
        worker = self._worker if is_whole else self._worker.over([part.cut(parts) for part in self._flat])
        return capture_later_update(worker, self._scaling)

    def capture_scaling(self) -> OpGraph | None:
        """The operations on joined gradients alone, before each update; None if they stay as they are."""
        return None if self._scaling.changes_nothing else capture_scaling(self._worker, self._scaling)

    def members(self) -> list[list[str]]:
        """The names of the parameters that each of the joined tensors holds, in order."""
        return [[self._names[id(p)] for p in part.members] for part in self._flat]

    def worker(self) -> Worker:
        """What steps the joined tensors, with the settings of the next update and the state so far.

        Raises:
            ValueError: it does more than treat each element alike.
        """
        refuse_whole_tensors(self.optimizer, "An update is rehearsed on single elements")
        if self._follow_optimizer() is self._own:
            raise ValueError("The optimizer has hooks, or its state was edited. Remove them, or call reset().")
        return self._worker

    def settings(self, number: int) -> list[dict[str, Any]]:
        """The hyperparameters of each joined tensor in an update, counted from 0."""
        groups = settings_of(self.optimizer)
        rate = {} if self._learning_rate is None else {"lr": self._learning_rate(number)}
        return [{**groups[part.group], **rate} for part in self._flat]

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Takes hyperparameters and state from another optimizer over the same parameters."""
        if type(optimizer) is not type(self.optimizer):
            kinds = [type(one).__name__ for one in (self.optimizer, optimizer)]
            raise ValueError(f"The model was compiled with {kinds[0]}, not {kinds[1]}; wrap it again.")
        self._require_same_groups(optimizer)
        if optimizer is not self.optimizer:
            self.optimizer = self._own.optimizer = optimizer
            self._groups = self._adopted = None
            self._keep_types()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps next to the optimizer's own state."""
        kept: dict[str, Any] = {"num_updates": self.num_updates, "rounding_seed": self.seed}
        return kept if self.scale is None else {**kept, "loss_scale": self.scale.state()}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Counts updates, draws the random numbers of their rounding and scales the loss as when `state` was kept."""
        self.num_updates, self._adopted = content["num_updates"], None
        self.seed = content.get("rounding_seed", self.seed)
        if self.scale is not None and "loss_scale" in content:
            self.scale.restore(content["loss_scale"])

    def share_seed(self, replicas: Replicas) -> None:
        """Gives every process the random numbers of the first, so that all round alike."""
        if self._rounds and replicas.world_size > 1:
            seed = torch.tensor(self.seed % 2**63)
            replicas.share_weights([seed])
            self.seed, self._adopted = int(seed), None

    def follow_memory(self) -> None:
        """Takes the memory in which the parameters are, at first and where an owner has exchanged it since."""
        if max([part.follow_memory() for part in self._flat]):
            self._adopted = None  # a captured update is bound to memory
        self._shares_memory = overlap([p for part in self._flat for p in part.members])
        self._keep_types()

    def _keep_types(self) -> None:
        if self._worker.keeps_types:
            keep_types_when_loading(self.optimizer)

    def _named(self, views: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        names = [name for part in self.members() for name in part]
        return dict(zip(names, (view for part in views for view in part), strict=True))

    def _follow_optimizer(self) -> Worker:
        """Takes settings and state from the user's optimizer, and says what steps it as it is now.

        Raises:
            ValueError: its groups hold other parameters; or only its own step will do, and the options exclude that.
        """
        groups = self.optimizer.param_groups
        is_new = self._learning_rate is not None or not holds_the_same(groups, self._groups)
        if is_new:
            self._require_same_groups(self.optimizer)
        if self._learning_rate is not None:
            for part, chosen in zip(self._flat, self.settings(self.num_updates), strict=True):
                groups[part.group]["lr"] = chosen["lr"]
        if self._worker is self._own:
            return self._own
        for part in self._flat:
            part.take_values()
        why = "has hooks; remove them" if wants_itself(self.optimizer) else ""
        why = "steps parameters that share memory; untie them" if self._shares_memory else why
        if not why and self._adopt():
            if is_new or self._worker.keeps_types:  # which looks at the weights too
                own = settings_of(self.optimizer)
                self._worker.follow([own[part.group] for part in self._flat])
                self._groups = noted_groups(self.optimizer)
            return self._worker
        if self._worker.keeps_types or any(part.is_divided for part in self._flat):
            why = why or "had state edited for some parameters; call reset()"
            raise ValueError(
                f"{type(self.optimizer).__name__} {why}, or leave out shard_optimizer_state, optimizer_state_dtype, "
                "master_weights, stochastic_rounding and accumulation_dtype: with these its own step() cannot run."
            )
        self._adopted = None
        return self._own

    def _require_same_groups(self, optimizer: Optimizer) -> None:
        if not holds_the_same([list(group["params"]) for group in optimizer.param_groups], self._shape):
            raise ValueError(
                "The optimizer holds other parameters or groups than the model was compiled with; call reset() first."
            )

    def _adopt(self) -> bool:
        """Takes the user's state if it is not the one that was shown; False if joined parameters differ in it."""
        if holds_the_same(self.optimizer.state, self._adopted) and all(part.is_as_shown for part in self._flat):
            return True
        if not min([part.adopt(self.optimizer, self._worker.optimizer.state) for part in self._flat]):
            return False
        self._adopted = _noted(self.optimizer)
        self._worker.begin(self.num_updates, self.seed)
        return True

    def _check(self) -> None:
        """Raises where finite gradients gave weights of NaN or infinity."""
        finite = [part for part in self._flat if part.total.isfinite().all()]
        names = [self._names[id(p)] for part in finite for p in part.members if not p.isfinite().all()]
        if names:
            raise FloatingPointError(
                f"{type(self.optimizer).__name__}'s update of step {self.num_updates} gave NaN or infinity "
                f"from finite gradients: {', '.join(sorted(names))}"
            )


def _noted(optimizer: Optimizer) -> dict[Any, Any]:
    """An optimizer's state as it is now: which pieces it holds, not what they hold."""
    return {key: dict(held) if isinstance(held, Mapping) else held for key, held in optimizer.state.items()}
