"""FlatWorker compared with a plain loop: types, rounding, stored state and loaded state."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from popgeo.engine.optimizer.flat_worker import COUNTER, MASTER, FlatWorker, needs_mixed
from popgeo.engine.optimizer.precision import keep_types_when_loading, restore_types, rounding_counter
from popgeo.engine.step_options import StepOptions
from popgeo.ops import round_stochastic

Make = Callable[[list[Tensor]], optim.Optimizer]
KINDS: dict[str, Make] = {
    "momentum": functools.partial(optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1),
    "adam": functools.partial(optim.Adam, lr=0.01),
    "rmsprop": functools.partial(optim.RMSprop, lr=0.01, centered=True),
}
SHAPES = ((6, 5), (4,))
STEPS = 4


def start(dtype: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def gradients(dtype: torch.dtype) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES] for _ in range(STEPS)]


def wrapped(make: Make, parameters: list[nn.Parameter], options: StepOptions) -> FlatWorker:
    return FlatWorker(make(parameters), options)


def plain_loop(make: Make, dtype: torch.dtype, options: StepOptions) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """Train with one float32 optimizer per parameter, and round weights and state after each step."""
    weights, states = [], []
    for number, first in enumerate(start(dtype)):
        weight = first.detach().clone()
        wide = nn.Parameter(weight.to(torch.float64 if dtype is torch.float64 else torch.float32))
        optimizer = make([wide])
        for counter, given in enumerate(gradients(dtype), start=1):
            wide.grad = given[number].to(wide.dtype)
            optimizer.step()

            def narrowed(part: Tensor, dtype: torch.dtype, stream: int, counter: int = counter) -> Tensor:
                if not options.stochastic_rounding or part.dtype is torch.float64 or dtype is torch.float32:
                    return part.to(dtype)
                return round_stochastic(part, torch.tensor(counter + stream * 2**40), dtype)

            weight = narrowed(wide.detach(), dtype, 0)
            if not options.master_weights:
                wide.data.copy_(weight)
            for stream, part in enumerate(optimizer.state[wide].values(), start=1):
                if options.optimizer_state_dtype is not None and part.shape == wide.shape:
                    part.copy_(narrowed(part, options.optimizer_state_dtype, stream))
        weights.append(weight)
        states.append(optimizer.state[wide] | {MASTER: wide.detach()})
    return weights, states


PRECISIONS = [
    (torch.float16, StepOptions(optimizer_state_dtype=torch.float32)),
    (torch.bfloat16, StepOptions(optimizer_state_dtype=torch.float32, master_weights=True)),
    (torch.float16, StepOptions(optimizer_state_dtype=torch.float16)),
    (torch.float16, StepOptions(optimizer_state_dtype=torch.bfloat16, stochastic_rounding=True)),
    (torch.bfloat16, StepOptions(stochastic_rounding=True)),
    (torch.float32, StepOptions(optimizer_state_dtype=torch.float16, master_weights=True)),
    (torch.float32, StepOptions(optimizer_state_dtype=torch.float16, stochastic_rounding=True)),
    (torch.float64, StepOptions(optimizer_state_dtype=torch.float32, stochastic_rounding=True)),
    (torch.float64, StepOptions(optimizer_state_dtype=torch.float16)),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "options"), PRECISIONS)
def test_it_is_a_plain_loop_whatever_the_types(kind: str, dtype: torch.dtype, options: StepOptions):
    parameters = start(dtype)
    worker = wrapped(KINDS[kind], parameters, options)
    places: set[tuple[int, ...]] = set()
    for given in gradients(dtype):
        for parameter, gradient in zip(parameters, given, strict=True):
            parameter.grad = gradient.clone()
        worker.step_once()
        # Captured updates need the state to keep its memory.
        states = [worker.optimizer.state[p] for p in parameters]
        places.add(tuple(part.data_ptr() for state in states for key, part in state.items() if key != "step"))
        assert all(torch.equal(p.grad, gradient) for p, gradient in zip(parameters, given, strict=True))
    weights, states = plain_loop(KINDS[kind], dtype, options)
    assert len(places) == 1
    for parameter, weight, expected in zip(parameters, weights, states, strict=True):
        assert torch.equal(parameter.detach(), weight)
        state = worker.optimizer.state[parameter]
        narrow = dtype in (torch.float16, torch.bfloat16)
        assert (MASTER in state) is (options.master_weights and narrow)
        if MASTER in state:
            assert state[MASTER].grad is None
            assert torch.equal(state[MASTER], expected[MASTER])
        assert (COUNTER in state) is options.stochastic_rounding
        assert state.get(COUNTER, STEPS) == STEPS
        for key in expected.keys() - {MASTER, "momentum_buffer" if kind == "rmsprop" else ""}:
            own = (
                options.optimizer_state_dtype
                if expected[key].dim() and options.optimizer_state_dtype
                else expected[key].dtype
            )
            assert state[key].dtype is own
            torch.testing.assert_close(state[key].to(expected[key].dtype), expected[key], rtol=0, atol=0)


def test_a_parameter_without_a_gradient_stays_and_gets_no_state():
    for dtype in (torch.float16, torch.float32):
        parameters = start(dtype)
        worker = wrapped(
            KINDS["adam"], parameters, StepOptions(optimizer_state_dtype=torch.float16, stochastic_rounding=True)
        )
        before = parameters[1].detach().clone()
        parameters[0].grad = gradients(dtype)[0][0]
        worker.step_once()
        assert torch.equal(parameters[1].detach(), before)
        assert not worker.optimizer.state.get(parameters[1])


def test_what_is_there_before_the_first_step_is_made_for_what_needs_it():
    half, single, scalar = start(torch.float16)[0], start(torch.float32)[1], nn.Parameter(torch.ones(()).half())
    turned = nn.Parameter(torch.randn(2, 3).half().t())
    for choices in ({"master_weights": True}, {"stochastic_rounding": True}, {"optimizer_state_dtype": torch.float32}):
        worker = FlatWorker(KINDS["momentum"]([half, single, scalar, turned]), StepOptions(**choices), part=2)
        worker.begin(7, seed=4)
        assert not worker.has_stepped
        if "master_weights" in choices:
            assert torch.equal(worker.optimizer.state[half][MASTER], half.float())
            assert [MASTER in worker.optimizer.state[p] for p in (half, single, scalar)] == [True, False, True]
            kept = worker.optimizer.state[half][MASTER]
            worker.begin(8, seed=4)
            assert worker.optimizer.state[half][MASTER] is kept
        elif "stochastic_rounding" in choices:
            # Divided parameters get random numbers of this process. Undivided ones round equally in all processes.
            own = [rounding_counter(4, number, 7, part=2 if number < 2 else 0) for number in range(4)]
            assert [int(worker.optimizer.state[p][COUNTER]) for p in (half, single, scalar, turned)] == own
            assert own[0] != rounding_counter(4, 0, 7)
        else:
            assert not any(worker.optimizer.state.values())


def test_weights_changed_from_outside_are_followed_element_by_element():
    half, single = start(torch.float16)[0], start(torch.float32)[1]
    worker = wrapped(KINDS["momentum"], [half, single], StepOptions(master_weights=True))
    worker.begin(0, seed=0)
    master = worker.optimizer.state[half][MASTER]
    master.add_(2.0**-30)  # less than half the spacing of float16
    expected, before = master.clone(), single.detach().clone()
    half.data[2, 3] = expected[2, 3] = 9.0
    worker.take_settings([{"lr": 0.5}])
    assert worker.optimizer.param_groups[0]["lr"] == 0.5
    assert torch.equal(master, expected)
    assert worker.optimizer.state[half][MASTER] is master
    assert torch.equal(single.detach(), before)


def narrow_state(options: StepOptions, kind: str = "adam", step: float = 3.0, **more: Any) -> dict[str, Any]:
    (parameter, _) = parameters = start(torch.float16)
    worker = wrapped(KINDS[kind], parameters, options)
    worker.optimizer.state[parameter].update(
        step=torch.tensor(step), square=torch.ones(6, 5).half(), mean=torch.ones(6, 5).half(), note="kept", **more
    )
    worker.begin(3, seed=0)
    return worker.optimizer.state[parameter]


@pytest.mark.parametrize(
    "options", [StepOptions(optimizer_state_dtype=torch.float32), StepOptions(master_weights=True)]
)
def test_narrow_state_is_widened_with_a_warning_once_steps_were_counted(options: StepOptions):
    with pytest.warns(UserWarning, match=r"optimizer's mean, square came in a narrow type and is stored in float32"):
        state = narrow_state(options)
    assert (state["mean"].dtype, state["step"].dtype, state["note"]) == (torch.float32, torch.float32, "kept")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert narrow_state(options, step=0.0)["mean"].dtype is torch.float32  # state from before the first step
        assert narrow_state(StepOptions(optimizer_state_dtype=torch.float16))["mean"].dtype is torch.float16
        assert wide_only(options) == {torch.float32}


def wide_only(options: StepOptions) -> set[torch.dtype]:
    (parameter, _) = parameters = start(torch.float16)
    worker = wrapped(KINDS["momentum"], parameters, options)
    worker.optimizer.state[parameter]["momentum_buffer"] = torch.ones(6, 5)
    worker.begin(1, seed=0)
    return {part.dtype for part in worker.optimizer.state[parameter].values()}


class Counting(optim.Optimizer):
    """Optimizer outside of torch, with integer state and state of another shape."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.5})

    @torch.no_grad()
    def step(self) -> None:
        for p in (p for group in self.param_groups for p in group["params"]):
            state = self.state[p]
            state["signs"] = state.get("signs", torch.zeros_like(p, dtype=torch.int32)) + p.grad.sign().int()
            state["grown"] = state.get("grown", torch.zeros(p.shape, dtype=torch.float32)) + p.grad
            state["row"] = torch.ones(3)
            p.sub_(p.grad * 0.5)


def test_state_of_another_s_optimizer_is_its_own_affair_without_a_type_for_it():
    (parameter, _) = start(torch.float16)
    worker = wrapped(Counting, [parameter], StepOptions(master_weights=True))
    worker.optimizer.state[parameter]["grown"] = torch.ones(6, 5).half()
    worker.begin(1, seed=0)
    assert worker.optimizer.state[parameter]["grown"].dtype is torch.float16


def test_only_floating_point_of_the_parameter_s_shape_is_kept_in_another_type():
    (parameter, _) = start(torch.float16)
    worker = wrapped(Counting, [parameter], StepOptions(optimizer_state_dtype=torch.bfloat16))
    total, signs = torch.zeros(6, 5), torch.zeros(6, 5, dtype=torch.int32)
    for given, _ in gradients(torch.float16):
        parameter.grad = given
        worker.step_once()
        total = (total + given.float()).bfloat16().float()
        signs += given.sign().int()
    state = worker.optimizer.state[parameter]
    assert {key: part.dtype for key, part in state.items()} == {
        "signs": torch.int32, "grown": torch.bfloat16, "row": torch.float32
    }  # fmt: skip
    assert torch.equal(state["signs"], signs)
    assert torch.equal(state["grown"].float(), total)


def test_what_may_be_a_count_of_steps_keeps_its_type():
    """The moments of a scalar parameter look like a step count."""
    scalar = nn.Parameter(torch.ones(()).half())
    worker = wrapped(KINDS["adam"], [scalar], StepOptions(optimizer_state_dtype=torch.float16))
    for _ in range(2):
        scalar.grad = torch.ones(()).half()
        worker.step_once()
    assert {part.dtype for part in worker.optimizer.state[scalar].values()} == {torch.float32}


@pytest.mark.parametrize(
    ("types", "options", "wraps"),
    [
        ((torch.float16,), StepOptions(), False),
        ((torch.float16,), StepOptions(accumulation_dtype=torch.float16), False),
        ((torch.float16,), StepOptions(accumulation_dtype=torch.float32), True),
        ((torch.float16,), StepOptions(master_weights=True), True),
        ((torch.bfloat16,), StepOptions(stochastic_rounding=True), True),
        ((torch.float16,), StepOptions(optimizer_state_dtype=torch.float16), True),
        ((torch.float16,), StepOptions(optimizer_state_dtype=torch.float32), True),
        ((torch.float32,), StepOptions(master_weights=True), False),
        ((torch.float32,), StepOptions(optimizer_state_dtype=torch.float32), False),
        ((torch.float32,), StepOptions(optimizer_state_dtype=torch.float16), True),
        ((torch.float64,), StepOptions(optimizer_state_dtype=torch.float32), True),
        ((torch.float64, torch.float32), StepOptions(stochastic_rounding=True), False),
        ((torch.float32, torch.bfloat16), StepOptions(stochastic_rounding=True), True),
        ((torch.float32, torch.bfloat16), StepOptions(optimizer_state_dtype=torch.float32), True),
    ],
)
def test_it_is_needed_where_types_differ(types, options: StepOptions, wraps: bool):
    inner = optim.SGD([{"params": [nn.Parameter(torch.ones(2, dtype=dtype))]} for dtype in types])
    assert needs_mixed(inner, options) is wraps


def test_state_is_loaded_in_the_types_that_it_was_saved_in():
    (parameter, other) = start(torch.float16)
    optimizer = optim.SGD([{"params": [parameter]}, {"params": [other]}], momentum=0.5)
    saved = optimizer.state_dict()
    given = {"momentum_buffer": torch.full((6, 5), 0.1), "wide": torch.full((6, 5), 0.1), "count": 3}
    saved["state"] = {0: given}
    optimizer.load_state_dict(saved)
    assert optimizer.state[parameter]["momentum_buffer"].dtype is torch.float16
    del optimizer.state[parameter]["wide"]
    restore_types(optimizer, saved)
    assert torch.equal(optimizer.state[parameter]["momentum_buffer"], given["momentum_buffer"])
    assert optimizer.state[parameter]["momentum_buffer"] is not given["momentum_buffer"]
    assert optimizer.state[parameter]["momentum_buffer"].data_ptr() != given["momentum_buffer"].data_ptr()
    assert optimizer.state[parameter]["count"] == 3
    assert "wide" not in optimizer.state[parameter]
    assert not optimizer.state.get(other)
    single = start(torch.float32)[0]
    wide = optim.SGD([single], momentum=0.5)
    wide.load_state_dict(wide.state_dict() | {"state": {0: {"momentum_buffer": torch.ones(6, 5).half()}}})
    held = wide.state[single]["momentum_buffer"]
    restore_types(wide, {"param_groups": [{"params": [0]}], "state": {0: {"momentum_buffer": held.half()}}})
    assert wide.state[single]["momentum_buffer"] is held  # nothing was rounded


def test_an_optimizer_is_told_once_to_keep_types_when_it_loads():
    (parameter, _) = start(torch.float16)
    optimizer = optim.SGD([parameter], momentum=0.5)
    for _ in range(3):
        keep_types_when_loading(optimizer)
    assert len(optimizer._optimizer_load_state_dict_pre_hooks) == 1
    assert len(optimizer._optimizer_load_state_dict_post_hooks) == 1
    for value in (0.1, 0.3):
        given = torch.full((6, 5), value)
        optimizer.load_state_dict(optimizer.state_dict() | {"state": {0: {"momentum_buffer": given}}})
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], given)
