"""A kept step gets a new name if anything that the model's methods read has changed, wherever it lies."""

import argparse
import functools
import logging
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from popgeo import StepOptions, compile_forward
from tests.support.small_models import EachMethod


class Config:
    factor = 2.0

    def inner(self) -> float:
        return self.hidden

    hidden = 3.0


@dataclass
class Choices:
    factor: float = 2.0


def scaled(x: Tensor) -> Tensor:
    return 2 * x


ARGS, NESTED = argparse.Namespace(factor=2.0), types.SimpleNamespace(inner=types.SimpleNamespace(factor=2.0))
ARRAY, CONFIG, CHOICES, ACT, LOG = np.full(1, 2.0), Config(), Choices(), nn.LeakyReLU(2.0), logging.getLogger("model")
PART = functools.partial(torch.mul, other=2.0)
OTHER = types.ModuleType("other_file")
OTHER.FACTOR, OTHER.scaled, OTHER.config = 2.0, scaled, CONFIG
BOX = {"factor": 2.0}


def of_closure() -> Callable[[nn.Module, Tensor], Tensor]:
    box = BOX
    return lambda self, x: box["factor"] * x


def through(x: Tensor) -> Tensor:
    LOG.debug("a call")
    return ARGS.factor * x


READS: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], Callable[[pytest.MonkeyPatch], None]]] = {
    "a namespace": (lambda self, x: ARGS.factor * x, lambda patch: patch.setattr(ARGS, "factor", 5.0)),
    "a function's namespace": (lambda self, x: through(x), lambda patch: patch.setattr(ARGS, "factor", 5.0)),
    "a nested one": (lambda self, x: NESTED.inner.factor * x, lambda p: p.setattr(NESTED.inner, "factor", 5.0)),
    "an array": (lambda self, x: float(ARRAY[0]) * x, lambda p: p.setitem(globals(), "ARRAY", ARRAY + 3)),
    "an object": (lambda self, x: CONFIG.factor * x, lambda patch: patch.setattr(CONFIG, "factor", 5.0)),
    "an object's class": (lambda self, x: CONFIG.factor * x, lambda patch: patch.setattr(Config, "factor", 5.0)),
    "an object's method": (lambda self, x: CONFIG.inner() * x, lambda patch: patch.setattr(CONFIG, "hidden", 5.0)),
    "a class": (lambda self, x: Config.factor * x, lambda patch: patch.setattr(Config, "factor", 5.0)),
    "a dataclass": (lambda self, x: CHOICES.factor * x, lambda patch: patch.setattr(CHOICES, "factor", 5.0)),
    "a module": (lambda self, x: ACT(-x), lambda patch: patch.setattr(ACT, "negative_slope", 5.0)),
    "a partial": (lambda self, x: PART(x), lambda p: p.setitem(globals(), "PART", functools.partial(PART, other=5))),
    "a replaced function": (lambda self, x: scaled(x), lambda p: p.setitem(globals(), "scaled", lambda x: 5 * x)),
    "another file": (lambda self, x: OTHER.FACTOR * x, lambda patch: patch.setattr(OTHER, "FACTOR", 5.0)),
    "its object": (lambda self, x: OTHER.config.factor * x, lambda patch: patch.setattr(CONFIG, "factor", 5.0)),
    "its function": (lambda self, x: OTHER.scaled(x), lambda p: p.setattr(OTHER, "scaled", lambda x: 5 * x)),
    "a closure": (of_closure(), lambda patch: patch.setitem(BOX, "factor", 5.0)),
    "a method": (
        lambda self, x: self.method(x),
        lambda p: p.setattr(EachMethod, "method", lambda self, x: 5 * x),
    ),
    "a class method": (
        lambda self, x: self.of_class(x),
        lambda patch: patch.setattr(EachMethod, "of_class", classmethod(lambda cls, x: 5 * x)),
    ),
    "a static method": (
        lambda self, x: self.static(x),
        lambda p: p.setattr(EachMethod, "static", staticmethod(lambda x: -x)),
    ),
    "a property": (
        lambda self, x: self.attribute * x,
        lambda p: p.setattr(EachMethod, "attribute", property(lambda self: 5)),
    ),
}


@pytest.mark.parametrize("read", READS)
def test_a_change_outside_of_the_model_has_a_step_of_its_own(
    read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    forward, change = READS[read]
    model, x, options = (
        type("Model", (EachMethod,), {"forward": forward})(),
        torch.ones(2),
        StepOptions(cache_dir=tmp_path),
    )
    before = compile_forward(model, options=options)(x)
    with monkeypatch.context() as patch:
        change(patch)
        after = compile_forward(model, options=options)(x)
        assert torch.equal(after, model(x))
        assert not torch.equal(after, before)
    monkeypatch.setattr("popgeo.capture.capture_step.capture", None)  # the first step is found again
    assert torch.equal(compile_forward(model, options=options)(x), before)


class Holds(nn.Module):
    def __init__(self, held: dict[str, Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return self.held["act"](x)


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(lambda module, given: through(*given))

    def forward(self, x: Tensor) -> Tensor:
        return x


ACTS = {"act": through}


class Looks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ACTS["act"](x)


@pytest.mark.parametrize("make", [lambda: Holds({"act": through}), Hooked, Looks], ids=["dictionary", "hook", "global"])
def test_a_function_that_is_held_counts_with_what_it_reads(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    x, options = torch.ones(2), StepOptions(cache_dir=tmp_path)
    assert compile_forward(make(), options=options)(x).tolist() == [2, 2]
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(ARGS, "factor", 5.0)
    assert compile_forward(make(), options=options)(x).tolist() == [5, 5]


def test_a_hook_of_all_modules_counts(tmp_path: Path):
    x, options = torch.ones(2), StepOptions(cache_dir=tmp_path)
    assert compile_forward(Holds({"act": scaled}), options=options)(x).tolist() == [2, 2]
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, made: 5 * made)
    try:
        assert compile_forward(Holds({"act": scaled}), options=options)(x).tolist() == [10, 10]
    finally:
        handle.remove()


def test_a_method_of_torch_that_the_program_replaces_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    layer, x, options = nn.Linear(2, 1), torch.ones(1, 2), StepOptions(cache_dir=tmp_path)
    before = compile_forward(layer, options=options)(x)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, input: 5 * input)
    assert compile_forward(layer, options=options)(x).tolist() == [[5, 5]]
    assert before.shape == (1, 1)


@pytest.mark.parametrize("read", [lambda self, x: x * len(__import__("os").environ), lambda self, x: x * SENTINEL()])
def test_a_model_that_reads_what_has_no_content_is_not_kept(read, tmp_path: Path):
    model = type("Model", (nn.Module,), {"forward": read})()
    compile_forward(model, options=StepOptions(cache_dir=tmp_path))(torch.ones(2))
    assert not list(tmp_path.iterdir())


class _Counter:
    __slots__ = ()

    def __call__(self) -> int:
        return 3


SENTINEL = _Counter()


def test_a_variable_of_an_outer_function_without_a_value_is_no_hindrance(tmp_path: Path):
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x if self.training else x * later

    model, x = type("Model", (nn.Module,), {"forward": forward})(), torch.ones(2)
    assert compile_forward(model, options=StepOptions(cache_dir=tmp_path))(x).tolist() == [1, 1]
    later = 3.0
    assert compile_forward(model.eval(), options=StepOptions(cache_dir=tmp_path))(x).tolist() == [3, 3]
    later = 4.0
    assert compile_forward(model.eval(), options=StepOptions(cache_dir=tmp_path))(x).tolist() == [4, 4]
