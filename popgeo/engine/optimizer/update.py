"""Update of the weights by an optimizer, over flat parameters: a dozen operations per group, not per parameter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.op_graph import OpGraph
from popgeo.engine.loss_scaling import LossScale, LossScaling
from popgeo.engine.memory_plan import storage_bytes
from popgeo.engine.optimizer.capture_update import capture_later_update, capture_scaling
from popgeo.engine.optimizer.choose_worker import choose_worker
from popgeo.engine.optimizer.flat_parameters import flatten_groups, refuse_whole_tensors
from popgeo.engine.optimizer.gradient_scaling import GradientScaling, overflow_of, set_gradient
from popgeo.engine.optimizer.joined_memory import overlap
from popgeo.engine.optimizer.pairwise_sum import PairwiseSum
from popgeo.engine.optimizer.precision import keep_types_when_loading
from popgeo.engine.optimizer.worker import OwnWorker, Worker, has_step_hooks, require_gradients, settings_of
from popgeo.engine.replicas import Replicas
from popgeo.engine.same_objects import holds_the_same, same_tables
from popgeo.engine.step_options import StepOptions

_ALONE = Replicas((0,), 1)


class Update:
    """Updates of a module's parameters: add up gradients, scale and clip them, and step any `torch.optim` optimizer.

    Parameters of the same group and type are updated as one flat parameter. The module's parameters keep their own
    memory, which their owner may replace (see `follow_memory`). The user can read and write the state in the optimizer.

    Args:
        optimizer: The user's optimizer, with hyperparameters and state. A scheduler may change it at any time.
        parameters: Parameters of the module that have a gradient, by name.
        options: Options of the run.
        learning_rate: Function from the number of an update, from 0, to its learning rate. Default: the optimizer's
            own rates.
        part: Number of the part of the parameters that this process updates, and number of parts. The process keeps the
            state of this part only.

    Attributes:
        optimizer: The user's optimizer.
        gradients: Gradient of each parameter, by name. A step writes them.
        num_updates: Number of updates. Updates skipped because gradients overflowed do not count.
        scale: Scale of the loss. None if it is constant.
        seed: Seed of the random numbers that round weights.

    Raises:
        ValueError: `parameters` is empty, the optimizer runs the model itself (as L-BFGS does), it looks at whole
            tensors although each replica updates a part, or it does not accept gradients of the accumulated type.
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
        self._adds_up = any(part.total is not part.gradient for part in self._flat)
        self._totals = self._named([part.total_views for part in self._flat])
        # With `batch_invariant`, sums in pairs by the names of their parameters.
        self._pairs: dict[tuple[str, ...], PairwiseSum] | None = {} if options.batch_invariant else None
        self._own = OwnWorker(optimizer, self._flat)
        self._worker = choose_worker(self._own, self._flat, options, part[0])
        self._shares_memory = False
        # A copy of the user's groups at the last update, and a check of the state. None, _never: read them again.
        self._groups: list[dict[str, Any]] | None = None
        self._has_same_state: Callable[[], bool] = _never

    def accumulate(self, names: Sequence[str] | None = None, first: bool = False, replicas: Replicas = _ALONE) -> None:
        """Add the gradients of one micro-batch to the sums of the update.

        Args:
            names: Parameters that have gradients. Default: all.
            first: Whether this is the first micro-batch of the update, which replaces the sums.
            replicas: Replicas of all processes. With `batch_invariant`, their gradients are added up here.
        """
        if self._pairs is None and not self._adds_up:
            return
        if names is None:
            pairs = [(part.total, part.gradient) for part in self._flat]
        else:
            pairs = [(self._totals[name], self.gradients[name]) for name in names]
        if self._pairs is None:
            for total, gradient in pairs:
                if total.data_ptr() != gradient.data_ptr():
                    total.copy_(gradient) if first else total.add_(gradient)
            return
        gradients = [gradient for _, gradient in pairs]
        own = {part.gradient.untyped_storage().data_ptr() for part in self._flat if part.is_sharded}
        replicas.add_up_in_pairs([one for one in gradients if one.untyped_storage().data_ptr() not in own])
        if self._adds_up:
            places = [total for total, _ in pairs]
            self._pairs.setdefault(tuple(names or ()), PairwiseSum(places)).add(gradients)

    def tensors(self) -> list[Tensor]:
        """Return gradients and optimizer state."""
        held = [part for state in self._worker.optimizer.state.values() for part in state.values()]
        return [*self.totals(), *(part for part in held if isinstance(part, Tensor))]

    def totals(self) -> list[Tensor]:
        """Return the accumulated gradients, one tensor per flat parameter."""
        return [part.total for part in self._flat]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of a micro-batch, and of their sums if these have their own memory."""
        return storage_bytes(tensor for part in self._flat for tensor in (part.gradient, part.total))

    @property
    def joined_bytes(self) -> int:
        """Bytes of flat parameters that are copies of several parameters."""
        return sum(part.flat.nbytes for part in self._flat if part.is_joined)

    def sharded(self) -> frozenset[str]:
        """Return the gradients that exist in this process only, by their names in a captured update."""
        return frozenset(f"{number}" for number, part in enumerate(self._flat) if part.is_sharded)

    def apply(self, replicas: Replicas = _ALONE) -> None:
        """Update the parameters once with the gradients of all processes, or skip the update if gradients overflowed.

        Args:
            replicas: Replicas of all processes, which skip an update together. Gradients are added up over the
                processes, except of sharded parameters. Each process sends the part that it has updated to the others.
        """
        if self._pairs is None:
            replicas.add_up([part.total for part in self._flat if not part.is_sharded])
        for total in (self._pairs or {}).values():
            total.finish()
        worker = self._follow_optimizer()
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers warn without it
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
            self._has_same_state = _check_of_state(self.optimizer)

    @property
    def is_captured(self) -> bool | None:
        """Whether the last update was a captured graph instead of torch's own code. None before the second update."""
        return self._worker.is_captured

    def listing(self) -> str:
        """Return a text: how weights are updated."""
        known = {None: "not known before the second update", True: "native calls", False: "its own step()"}
        return f"update by {type(self.optimizer).__name__}: {known[self.is_captured]}"

    def capture(self, parts: int = 1) -> OpGraph:
        """Capture the operations of an update after the first one, which makes the optimizer's state.

        Args:
            parts: Number of replicas that share the update. The result is the update of the largest part.
        """
        if self._worker is not self._own:
            self._adopt()  # some optimizers have state before their first step
        is_whole = parts == 1 and not any(part.is_divided for part in self._flat)
        worker = self._worker if is_whole else self._worker.for_parameters([part.cut(parts) for part in self._flat])
        return capture_later_update(worker, self._scaling)

    def over_stand_ins(self, device: str) -> Worker:
        """Return a worker with the settings of this update, without state, over stand-ins of the flat parameters."""
        own = [nn.Parameter(torch.empty_like(part.own, device=device)) for part in self._flat]
        for one, part in zip(own, self._flat, strict=True):
            set_gradient(one, torch.zeros_like(one, dtype=part.total.dtype))
        return self._worker.for_parameters(own)

    def capture_scaling(self) -> OpGraph | None:
        """Capture the operations that scale gradients before each update. Return None if gradients are not scaled."""
        return None if self._scaling.changes_nothing else capture_scaling(self._worker, self._scaling)

    def members(self) -> list[list[str]]:
        """Return the names of the parameters in each flat parameter, in order."""
        return [[self._names[id(p)] for p in part.members] for part in self._flat]

    def worker(self) -> Worker:
        """Return the worker of the flat parameters, with the settings of the next update and the present state.

        Raises:
            ValueError: The optimizer looks at whole tensors, has hooks, or its state was edited.
        """
        refuse_whole_tensors(self.optimizer, "Programs of tiles update joined parameters")
        if self._follow_optimizer() is self._own:
            raise ValueError(
                "The optimizer has hooks or keeps progress outside of its state, or its state was edited. Remove the "
                "hooks and that progress, or call reset()."
            )
        return self._worker

    def settings(self, number: int) -> list[dict[str, Any]]:
        """Return the hyperparameters of each flat parameter in update `number`, counted from 0."""
        groups = settings_of(self.optimizer)
        rate = {} if self._learning_rate is None else {"lr": self._learning_rate(number)}
        return [{**groups[part.group], **rate} for part in self._flat]

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Use another optimizer of the same class over the same parameters, with its hyperparameters and state."""
        if type(optimizer) is not type(self.optimizer):
            kinds = [type(one).__name__ for one in (self.optimizer, optimizer)]
            raise ValueError(f"The model was compiled with {kinds[0]}, not {kinds[1]}; wrap it again.")
        self._require_same_groups(optimizer)
        if optimizer is not self.optimizer:
            self.optimizer = self._own.optimizer = optimizer
            self._groups, self._has_same_state = None, _never
            self._keep_types()

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint next to the optimizer's own state."""
        kept: dict[str, Any] = {"num_updates": self.num_updates, "rounding_seed": self.seed}
        return kept if self.scale is None else {**kept, "loss_scale": self.scale.state()}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Restore the count of updates, the seed of rounding and the scale of the loss from the result of `state`."""
        self.num_updates, self._has_same_state = content["num_updates"], _never
        self.seed = content.get("rounding_seed", self.seed)
        if self.scale is not None and "loss_scale" in content:
            self.scale.restore(content["loss_scale"])

    def share_seed(self, replicas: Replicas) -> None:
        """Use the seed of the first process in all processes, so that all round weights equally."""
        if self._rounds and replicas.world_size > 1:
            seed = torch.tensor(self.seed % 2**63)
            replicas.share_weights([seed])
            self.seed, self._has_same_state = int(seed), _never

    def follow_memory(self) -> None:
        """Use the present memory of the parameters. Call this at first, and after their owner has replaced it."""
        if max([part.follow_memory() for part in self._flat]):
            self._has_same_state = _never  # a captured update is bound to the memory of its state
        self._shares_memory = overlap([p for part in self._flat for p in part.members])
        self._keep_types()

    def _keep_types(self) -> None:
        if self._worker.keeps_types:
            keep_types_when_loading(self.optimizer)

    def _named(self, views: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        names = [name for part in self.members() for name in part]
        return dict(zip(names, (view for part in views for view in part), strict=True))

    def _follow_optimizer(self) -> Worker:
        """Read settings and state of the user's optimizer, and return the worker that steps it now.

        Raises:
            ValueError: The groups have changed, or only the optimizer's own step works and the options exclude that.
        """
        groups = self.optimizer.param_groups
        is_new = self._learning_rate is not None or not holds_the_same(groups, self._groups)
        if is_new:
            self._require_same_groups(self.optimizer)
        if self._learning_rate is not None:
            for part in self._flat:
                groups[part.group]["lr"] = self._learning_rate(self.num_updates)
        if self._worker is self._own:
            return self._own
        for part in self._flat:
            part.take_values()
        why = "has hooks; remove them" if has_step_hooks(self.optimizer) else ""
        why = "steps parameters that share memory; untie them" if self._shares_memory else why
        if not why and self._adopt():
            if is_new:
                own = settings_of(self.optimizer)
                self._settings = [own[part.group] for part in self._flat]
                self._groups = [{**one, "params": members} for one, members in zip(own, self._shape, strict=True)]
            if is_new or self._worker.keeps_types:  # changed weights reach the master weights here
                self._worker.take_settings(self._settings)
            return self._worker
        if self._worker.keeps_types or any(part.is_divided for part in self._flat):
            why = why or "had state edited for some parameters; call reset()"
            raise ValueError(
                f"{type(self.optimizer).__name__} {why}, or leave out shard_optimizer_state, optimizer_state_dtype, "
                "master_weights, stochastic_rounding and accumulation_dtype: with these its own step() cannot run."
            )
        self._has_same_state = _never
        return self._own

    def _require_same_groups(self, optimizer: Optimizer) -> None:
        if not holds_the_same([list(group["params"]) for group in optimizer.param_groups], self._shape):
            raise ValueError(
                "The optimizer holds other parameters or groups than the model was compiled with; call reset() first."
            )

    def _adopt(self) -> bool:
        """Read the user's state if it has changed. Return False if joined parameters have different kinds of state."""
        if self._has_same_state() and all(part.is_as_shown for part in self._flat):
            return True
        if not min([part.adopt(self.optimizer, self._worker.optimizer.state) for part in self._flat]):
            return False
        self._has_same_state = _check_of_state(self.optimizer)
        self._worker.begin(self.num_updates, self.seed)
        return True

    def _check(self) -> None:
        """Raise FloatingPointError if finite gradients gave weights of NaN or infinity."""
        finite = [part for part in self._flat if part.total.isfinite().all()]
        names = [self._names[id(p)] for part in finite for p in part.members if not p.isfinite().all()]
        if names:
            raise FloatingPointError(
                f"{type(self.optimizer).__name__}'s update of step {self.num_updates} gave NaN or infinity "
                f"from finite gradients: {', '.join(sorted(names))}"
            )


def _check_of_state(optimizer: Optimizer) -> Callable[[], bool]:
    """Return a function that checks whether an optimizer's state still holds the same objects."""
    states = [held for held in optimizer.state.values() if isinstance(held, dict)]
    return same_tables([optimizer.state, *states], [(vars(optimizer), "state")])


def _never() -> bool:
    return False
