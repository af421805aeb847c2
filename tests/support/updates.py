"""Updates without a model: parameters of every shape, gradients, optimizers of every kind."""

import functools

import torch
from torch import Tensor, nn, optim

from popgeo import Options
from popgeo.engine.optimizer.update import Update

SHAPES = {"rows": (3, 2), "line": (5,), "one": (1,), "scalar": (), "last": (2, 1, 2)}
KINDS = {
    "sgd": functools.partial(optim.SGD, lr=0.1),
    "momentum": functools.partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "nesterov": functools.partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": functools.partial(optim.Adam, lr=0.01, weight_decay=0.1),
    "amsgrad": functools.partial(optim.AdamW, lr=0.01, amsgrad=True, maximize=True),
    "foreach": functools.partial(optim.Adam, lr=0.01, foreach=True),
    "rmsprop": functools.partial(optim.RMSprop, lr=0.01, centered=True, momentum=0.5),
    "radam": functools.partial(optim.RAdam, lr=0.01),
    "adagrad": functools.partial(optim.Adagrad, lr=0.1, lr_decay=0.1),
    "adafactor": functools.partial(optim.Adafactor, lr=0.1),
}


def weights(dtype: torch.dtype = torch.float64) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for name, shape in SHAPES.items()
    }  # fmt: skip


def gradients(step: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def feed(update: Update, given: dict[str, Tensor], *, first: bool = True) -> None:
    for name, place in update.gradients.items():
        place.copy_(given[name])
    update.accumulate(first=first)


def step(optimizer: optim.Optimizer, held: dict[str, nn.Parameter], given: dict[str, Tensor]) -> None:
    for name, parameter in held.items():
        parameter.grad = given[name].clone()
    optimizer.step()


def make(kind: str = "adam", dtype: torch.dtype = torch.float64, part: tuple[int, int] = (0, 1), rate=None, **choices):
    held = weights(dtype)
    optimizer = KINDS[kind](held.values())
    update = Update(optimizer, held, Options(**choices), rate, part)
    update.follow_memory()
    return update, held


def assert_same(mine: dict[str, nn.Parameter], theirs: dict[str, nn.Parameter]) -> None:
    for name, parameter in mine.items():
        torch.testing.assert_close(parameter, theirs[name], rtol=1e-12, atol=1e-12)


def assert_same_state(mine: optim.Optimizer, theirs: optim.Optimizer) -> None:
    found, expected = mine.state_dict()["state"], theirs.state_dict()["state"]
    assert found.keys() == expected.keys()
    for number, state in expected.items():
        assert found[number].keys() == state.keys()
        for key, part in state.items():
            torch.testing.assert_close(found[number][key], part, rtol=1e-12, atol=1e-12)
