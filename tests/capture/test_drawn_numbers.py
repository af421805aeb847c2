"""A step draws random numbers at the same places as its model, and repeats draws that the model repeats."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from popgeo import compile_forward, compile_step


class Drawing(nn.Module):
    """A loss of weights and of drawn numbers."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 64))
        self.function = function
        self.own = torch.Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x * self.weight).sum()


def trained(function, compiled: bool) -> tuple[list[float], Tensor]:
    """Return three losses, and the weights after them."""
    model = Drawing(function)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(11)
    x, losses = torch.linspace(0.1, 1, 64), []
    step = compile_step(model, optimizer) if compiled else model
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(x)
        if not compiled:
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return losses, model.weight.detach()


def noisy(x: Tensor) -> Tensor:
    return dropout(x, 0.5).exp()


def checkpointed(model: Drawing, x: Tensor) -> Tensor:
    return dropout(checkpoint(noisy, x, use_reentrant=False), 0.3)


def checkpointed_twice(model: Drawing, x: Tensor) -> Tensor:
    return checkpoint(lambda y: checkpointed(model, y) + torch.rand(64), x, use_reentrant=False)


def in_a_fork(model: Drawing, x: Tensor) -> Tensor:
    first = noisy(x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        second = noisy(x)
    return first * dropout(second, 0.3)


def the_same_again(model: Drawing, x: Tensor) -> Tensor:
    state = torch.default_generator.get_state()
    first = noisy(x)
    torch.default_generator.set_state(state)
    return first * noisy(x)


def seeded(model: Drawing, x: Tensor) -> Tensor:
    torch.manual_seed(1)
    return noisy(x)


def of_its_own(model: Drawing, x: Tensor) -> Tensor:
    return x * torch.rand(64, generator=model.own)


@pytest.mark.parametrize("function", [checkpointed, checkpointed_twice, in_a_fork, the_same_again, seeded, of_its_own])
def test_what_a_model_draws_and_draws_again_is_the_same_as_in_eager_code(function):
    assert_close(trained(function, compiled=True), trained(function, compiled=False), rtol=1e-5, atol=1e-6)


def made_meanwhile(model: Drawing, x: Tensor) -> Tensor:
    return x * torch.rand(64, generator=torch.Generator().manual_seed(0))


def seeded_meanwhile(model: Drawing, x: Tensor) -> Tensor:
    return x * torch.rand(64, generator=model.own.manual_seed(0))


def by_python(model: Drawing, x: Tensor) -> Tensor:
    return x * random.random()


def by_numpy(model: Drawing, x: Tensor) -> Tensor:
    return x * float(np.random.rand())  # noqa: NPY002


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (made_meanwhile, "made_meanwhile: .* made or seeded while the model runs.*Make it an attribute"),
        (seeded_meanwhile, "seeded_meanwhile: .* made or seeded while the model runs"),
        (by_python, "draws from Python's random or from numpy.random while it runs.*torch.rand"),
        (by_numpy, "draws from Python's random or from numpy.random while it runs.*torch.rand"),
    ],
)
def test_numbers_that_a_step_would_draw_only_once_are_refused_and_nothing_is_drawn(function, words):
    model = Drawing(function)
    before = torch.get_rng_state(), model.own.get_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with pytest.raises(ValueError, match=words):
        compile_forward(model)(torch.ones(64))
    after = torch.get_rng_state(), model.own.get_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert_close(after[:2], before[:2])
    assert after[2:] == before[2:]


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (lambda: np.random.default_rng(0), lambda own: own.random()),
        (lambda: {"own": [np.random.RandomState(0)]}, lambda own: own["own"][0].rand()),
        (lambda: random.Random(0), lambda own: own.random()),
        (lambda: np.zeros(3), lambda own: own.__iadd__(1)[0]),
    ],
    ids=["a generator of NumPy", "an older one in a list", "a generator of Python", "an array as a counter"],
)
def test_numbers_that_an_attribute_without_tensors_gives_in_each_call_are_refused(generator, draw):
    model = Drawing(lambda model, x: x * float(draw(model.source)))
    model.source = generator()
    with pytest.raises(ValueError, match="The model reads source and changes it in each call"):
        compile_forward(model)(torch.ones(64))


def test_a_reentrant_checkpoint_is_refused_with_the_other_form_as_the_remedy():
    model = Drawing(lambda model, x: checkpoint(noisy, x, use_reentrant=True))
    with pytest.raises(ValueError, match="Call it with use_reentrant=False"):
        compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1))(torch.ones(64))


def test_inductor_refuses_what_draws_again():
    model = Drawing(checkpointed)
    with pytest.raises(ValueError, match=r"draws them again, .*backend='cpu'"):
        compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), backend="inductor")(torch.ones(64))


def test_a_step_that_draws_nothing_again_keeps_no_states():
    step = compile_forward(Drawing(lambda model, x: dropout(x, 0.5)))
    step(torch.ones(64))
    assert not any("random_state" in op.target for op in step.graph.ops)
