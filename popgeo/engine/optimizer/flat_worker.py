"""Worker that steps an optimizer over flat parameters: as a captured graph, and narrow types in float32."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.optimizer.capture_update import UpdateGraph
from popgeo.engine.optimizer.coming_updates import ComingUpdates
from popgeo.engine.optimizer.precision import NARROW, is_mixed, rounding_counter
from popgeo.engine.optimizer.worker import Worker, settings_of
from popgeo.engine.step_options import StepOptions
from popgeo.ops.round_stochastic import round_stochastic

MASTER, COUNTER = "master_weights", "rounding"


class FlatWorker(Worker):
    """Worker over flat parameters, which runs updates as captured graphs.

    The optimizer itself makes the first update after `begin`, which makes the state, and each update that cannot be
    captured. `ComingUpdates` gives the graph and the numbers of every other update.

    With `options`, an update widens float16 and bfloat16 weights and narrow state to float32, steps, and rounds the
    results to their types. float32 and float64 weights keep their type during the step. Next to the optimizer's own
    state, the options add `master_weights`, the weights in float32, and `rounding`, the counter of the random numbers
    that round. An optimizer may have an attribute `state_types`: the type of each piece of its state, by name.
    `optimizer_state_dtype` overrides it.

    Args:
        optimizer: Optimizer of the flat parameters. It owns their state, in which the worker keeps numbers, too.
        options: Options of the run. Used: `optimizer_state_dtype`, `master_weights` and `stochastic_rounding`. Default:
            the update has the types of the weights.
        part: Part of the weights that this process updates. Default: 0, also when it updates all of them.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
        >>> sgd = torch.optim.SGD([weight], lr=1e-4, momentum=0.9)
        >>> worker = FlatWorker(sgd, StepOptions(master_weights=True))
        >>> weight.grad = torch.ones(1, dtype=torch.float16)
        >>> for _ in range(3):
        ...     worker.step()
        >>> weight.item(), sgd.state[weight]["master_weights"], sgd.state[weight]["momentum_buffer"]
        (0.99951171875, tensor([0.9994]), tensor([2.7100]))
    """

    def __init__(self, optimizer: Optimizer, options: StepOptions | None = None, part: int = 0) -> None:
        super().__init__(optimizer)
        self.keeps_types, self._options, self._part = options is not None, options or StepOptions(), part
        self._types: Mapping[str, torch.dtype] | None = getattr(optimizer, "state_types", None)
        self._settings: Sequence[Mapping[str, Any]] = settings_of(optimizer)
        self._forget(has_state=False)

    def _forget(self, has_state: bool) -> None:
        """Forget captured updates."""
        self._has_state, self.is_captured = has_state, None
        self._coming: ComingUpdates | None = None
        self._is_ahead = False  # whether the optimizer itself has stepped since the state was read
        self._numbers: list[float] | None = None  # of the last captured update
        self._runners: dict[int, GraphRunner | None] = {}  # by id of the update's graph, which `ComingUpdates` keeps

    @torch.no_grad()
    def begin(self, num_updates: int, seed: int) -> None:
        """Continue from the optimizer's state: widen it, and create master weights and counters of rounding."""
        self._forget(has_state=all(self.optimizer.state.get(p) for p in self.parameters))
        if self.keeps_types:
            self._widen_state()
        for number, parameter in enumerate(self.parameters):
            if self._options.stochastic_rounding:
                # Every process updates an undivided parameter, so all use the same random numbers for it.
                is_divided = parameter.dim() > 0 and parameter.is_contiguous()
                start = rounding_counter(seed, number, num_updates, self._part if is_divided else 0)
                self.optimizer.state[parameter][COUNTER] = torch.tensor(start, device=parameter.device)
            if self._options.master_weights and parameter.dtype in NARROW:
                self.optimizer.state[parameter].setdefault(MASTER, parameter.float())

    @torch.no_grad()
    def take_settings(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Set the settings, and copy to the master weights each weight that the user has changed."""
        self._settings = settings
        super().take_settings(settings)
        for parameter in self.parameters:
            master = self.optimizer.state.get(parameter, {}).get(MASTER)
            if master is not None and not torch.equal(master.to(parameter.dtype), parameter):
                same = master.to(parameter.dtype) == parameter
                master.copy_(torch.where(same, master, parameter.to(master.dtype)))

    def step(self) -> None:
        """Update the parameters once with their gradients, as a captured graph if that is possible."""
        runner = self._next_runner() if self._has_state else None
        if runner is None:
            self.step_once()
            self._has_state = self._is_ahead = True
            return
        runner.run([])
        assert self._coming is not None
        for (number, key), count in self._coming.plain_counts().items():
            self.optimizer.state[self.parameters[number]][key] = count

    def _next_runner(self) -> GraphRunner | None:
        """Return the runner of the next update, with its numbers set. None if the update cannot be captured."""
        if self._coming is None:
            self._coming = ComingUpdates(self)
        elif self._is_ahead:
            self._coming.read_state()
        update, numbers = self._coming.next(self._settings)
        self._is_ahead = False
        if id(update) not in self._runners:
            self._runners[id(update)] = None if update is None else self._make_runner(update)
        runner = self._runners[id(update)]
        self.is_captured = runner is not None
        if runner is not None and numbers is not self._numbers:
            runner.set_numbers(numbers)
            self._numbers = numbers
        return runner

    def _make_runner(self, update: UpdateGraph) -> GraphRunner | None:
        graph = update.graph
        given = {graph.values[v].storage for v in graph.inputs.values()}
        # State in a new tensor would be lost.
        if any(graph.values[v].storage not in given for v in graph.outputs if v is not None):
            return None
        return GraphRunner(replace(graph, outputs=()), self.tensors(), pauses=False)

    def step_once(self) -> None:
        """Let the optimizer itself update the parameters once, in float32 if the worker keeps types."""
        if self.keeps_types:
            self._step_wide()
        else:
            self.optimizer.step()

    @torch.no_grad()
    def _step_wide(self) -> None:
        parameters = self.parameters
        wide = [self._widened(parameter) for parameter in parameters]
        inner = Worker(self.optimizer).for_parameters(wide).optimizer
        if self._types is not None:
            inner.state_types = {}  # type: ignore[attr-defined]  # this worker converts the state
        for parameter, one in zip(parameters, wide, strict=True):
            inner.state[one] = self._wide_state(parameter)
        inner.step()
        for parameter, one in zip(parameters, wide, strict=True):
            if one.grad is not None:
                self._keep(parameter, one, inner.state[one])

    def state(self, parameter: Tensor) -> Mapping[str, Any]:
        """Return the state of a parameter without the counter of rounding, which follows from the number of updates."""
        own = super().state(parameter)
        return {key: part for key, part in own.items() if key != COUNTER} if COUNTER in own else own

    @property
    def has_stepped(self) -> bool:
        """Whether a step has made its state. Master weights and counters do not count."""
        return any(map(self._own_state, self.parameters))

    def _own_state(self, parameter: Tensor) -> dict[str, Any]:
        """Return the state that the optimizer itself has made."""
        return {key: part for key, part in self.state(parameter).items() if key != MASTER}

    def _widened(self, parameter: Any) -> Any:
        """Return a parameter in the type of the computation, with its gradient."""
        if parameter.dtype not in NARROW:
            return parameter
        master = self.optimizer.state.get(parameter, {}).get(MASTER)
        wide = parameter.detach().float() if master is None else master
        if parameter.grad is not None:
            wide.grad = parameter.grad.to(wide.dtype)
        return wide

    def _wide_state(self, parameter: Tensor) -> dict[str, Any]:
        own = self._own_state(parameter)
        if self._options.optimizer_state_dtype is None and self._types is None:
            return own
        dtype = torch.float64 if parameter.dtype is torch.float64 else torch.float32
        return {key: part.to(dtype) if _is_of(part, parameter) else part for key, part in own.items()}

    def _widen_state(self) -> None:
        """Convert loaded narrow state to float32 if it is stored so, and warn that digits were lost."""
        own = type(self.optimizer).__module__.startswith("torch.optim")
        kept = self._options.optimizer_state_dtype or (torch.float32 if own else None)
        if kept is not torch.float32:
            return
        narrow = set()
        for parameter in self.parameters:
            state = self.optimizer.state.get(parameter, {})
            is_new = isinstance(state.get("step"), Tensor) and not state["step"].is_meta and not state["step"].any()
            for key, part in state.items():
                if isinstance(part, Tensor) and part.dtype in NARROW:
                    state[key] = part.float()
                    if not is_new:  # Adagrad makes its state before the first step
                        narrow.add(key)
        if narrow:
            warnings.warn(
                f"The optimizer's {', '.join(sorted(narrow))} came in a narrow type and is stored in float32 from now "
                "on, but its last digits are lost: torch's load_state_dict rounds state to the type of the weights. "
                "Load the state after the model has been compiled, or with CompiledStep.load.",
                stacklevel=2,
            )

    def _keep(self, parameter: Tensor, wide: Tensor, state: dict[str, Any]) -> None:
        """Write the weights and the state of a parameter after a step."""
        kept, options = self.optimizer.state[parameter], self._options
        if options.stochastic_rounding:
            if COUNTER not in kept:
                kept[COUNTER] = torch.zeros((), dtype=torch.int64, device=parameter.device)
            kept[COUNTER].add_(1)
        if parameter.dtype in NARROW:
            if options.master_weights and MASTER not in kept:
                kept[MASTER] = wide
            wide.grad = None  # master weights hold no gradient between updates
            parameter.copy_(self._narrowed(wide, parameter.dtype, kept, 0))
        for number, (key, part) in enumerate(state.items(), start=1):
            held, dtype = kept.get(key), options.optimizer_state_dtype or (self._types or {}).get(key)
            if held is part:
                continue
            if dtype is not None and _is_of(part, parameter) and part.dtype is not dtype:
                part = self._narrowed(part, dtype, kept, number)
                if isinstance(held, Tensor) and held.dtype is part.dtype:
                    held.copy_(part)
                    continue
            kept[key] = part

    def _narrowed(self, wide: Tensor, dtype: torch.dtype, kept: dict[str, Any], stream: int) -> Tensor:
        if not self._options.stochastic_rounding or wide.dtype is not torch.float32 or dtype not in NARROW:
            return wide.to(dtype)
        counter = kept[COUNTER] + (stream << 40) if stream else kept[COUNTER]
        return round_stochastic(wide, counter, dtype)


def needs_mixed(optimizer: Optimizer, options: StepOptions) -> bool:
    """Check whether an optimizer's update needs other types than its weights have.

    Example:
        >>> sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
        >>> needs_mixed(sgd, StepOptions()), needs_mixed(sgd, StepOptions(optimizer_state_dtype=torch.float16))
        (False, True)
    """
    own, chosen = getattr(optimizer, "state_types", None), options.optimizer_state_dtype
    types = {parameter.dtype for group in optimizer.param_groups for parameter in group["params"]}
    kept = set((own or {}).values()) if chosen is None else {chosen}
    return bool(kept and kept != types) or ((is_mixed(options) or own is not None) and bool(types & {*NARROW}))


def _is_of(part: Any, parameter: Tensor) -> bool:
    """Check whether a piece of state has one floating-point number for each element of the parameter."""
    return isinstance(part, Tensor) and part.is_floating_point() and part.dim() > 0 and part.shape == parameter.shape
