"""One compiled step in several threads, and its state after an interrupt, an error or an attempt to copy it."""

import copy
import pickle
import random
import signal
import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from popgeo import compile_forward, compile_step
from popgeo.ipu import CompiledStep, Options, inference_model, training_model


def in_threads(work: Callable[[int], object], number: int = 2) -> None:
    failed: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


class Deep(nn.Module):
    """A model that runs long enough for another thread to interfere."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


@pytest.mark.parametrize("door", [compile_forward, inference_model])
def test_threads_that_share_a_compiled_forward_pass_get_their_own_results(door: Callable[..., CompiledStep]):
    model = Deep()
    step = door(model)
    given = [torch.full((64, 32), float(index)) for index in range(3)]
    expected = [model(x).detach() for x in given]

    def work(index: int) -> None:
        for _ in range(60):
            torch.testing.assert_close(step(given[index]), expected[index])

    in_threads(work, number=3)
    assert step.calls == 180


class Total(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2048, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


@pytest.mark.parametrize("door", ["compile_step", "training_model"])
def test_threads_that_share_a_training_step_lose_and_double_no_update(door: str):
    model = Total()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = compile_step(model, optimizer) if door == "compile_step" else training_model(model, optimizer=optimizer)

    def work(index: int) -> None:
        for _ in range(100):
            step(torch.full((2048,), float(index + 1), dtype=torch.float64))

    in_threads(work)
    assert torch.equal(model.weight, torch.full_like(model.weight, -300.0))


class DrawCount(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            x = x + torch.rand_like(x)
        return x


def test_two_steps_that_draw_in_two_threads_have_the_random_numbers_of_each_alone():
    def run(seed: int) -> list[Tensor]:
        step = inference_model(DrawCount(), Options(random_seed=seed))
        return [step(torch.zeros(256)) for _ in range(40)]

    expected, found = [run(seed) for seed in range(2)], {}
    before = torch.get_rng_state()
    in_threads(lambda index: found.update({index: run(index)}))
    for index in range(2):
        assert all(map(torch.equal, found[index], expected[index]))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no alarm")
def test_an_interrupt_at_any_moment_leaves_torchs_random_numbers_and_a_step_that_goes_on():
    def interrupt(*of_the_signal: object) -> None:
        raise KeyboardInterrupt

    step, x, moments = inference_model(DrawCount(), Options(random_seed=3)), torch.zeros(64), random.Random(0)
    step(x)
    torch.manual_seed(5)
    before, handler = torch.get_rng_state(), signal.signal(signal.SIGALRM, interrupt)
    settings = torch.get_num_threads(), torch.is_grad_enabled(), sys.float_info.min / 2
    interrupted = 0
    try:
        for _ in range(150):
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(2e-5, 1e-3))
                while True:
                    step(x)
            except KeyboardInterrupt:
                interrupted += 1
            assert torch.equal(torch.get_rng_state(), before)
            assert (torch.get_num_threads(), torch.is_grad_enabled(), sys.float_info.min / 2) == settings
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert interrupted == 150
    assert step(x).shape == x.shape


def test_an_error_in_a_step_that_draws_leaves_random_numbers_counts_and_weights():
    class Divides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return (self.weight * torch.rand_like(x) / x).sum()

    model = Divides()
    options = Options(floating_point_exceptions=True, random_seed=1)
    step = training_model(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    step(torch.ones(3))
    weight, generator = model.weight.clone(), step.replica_states()[0].generator.get_state()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with pytest.raises(FloatingPointError):
        step(torch.zeros(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(step.replica_states()[0].generator.get_state(), generator)
    assert torch.equal(model.weight, weight)
    assert (step.calls, step.update.num_updates) == (1, 1)


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_compiled_step_that_is_pickled_or_copied_says_what_to_do_instead(act: Callable[[object], object]):
    with pytest.raises(TypeError, match=r"neither pickled nor copied. Pass on the model, or its state_dict\(\)"):
        act(compile_forward(nn.Linear(2, 2)))


def test_methods_of_the_model_that_return_it_return_the_step():
    step = compile_forward(nn.Linear(2, 2))
    assert step.to("cpu") is step
    assert step.requires_grad_(False) is step
    assert step.weight is step.model.weight
    x = torch.ones(1, 2, dtype=torch.float64)
    assert step.double()(x).dtype == torch.float64


def test_a_checkpoint_that_does_not_fit_the_replicas_is_refused_until_another_is_loaded(tmp_path):
    model = Total()
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=1.0))
    x = torch.ones(2048, dtype=torch.float64)
    step(x)
    step.save(tmp_path / "one")
    other = compile_step(model, torch.optim.SGD(model.parameters(), lr=1.0))
    other.load(tmp_path / "one")
    other._run_state = {**other._run_state, "replicas": [1]}
    for _ in range(2):
        with pytest.raises(ValueError, match=r"holds replicas \[1\], this process runs \[0\]"):
            other(x)
    other.load(tmp_path / "one")
    other(x)
