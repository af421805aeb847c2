"""Private parts of torch on which a capture relies, tried with the versions named here.

When a claim fails after an update of torch or PyG, look at the file that the claim names.
"""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
import torch_geometric
from torch import nn
from torch_geometric.nn import knn

from popgeo.capture import static_forms
from popgeo.capture.capture import bind, capture
from popgeo.capture.free_slots import SlotCount
from popgeo.capture.held_state import noted_reads

TRIED_WITH = {"torch": ("2.8", "2.14"), "torch_geometric": ("2.7", "2.8")}


def version(library: Any) -> tuple[int, ...]:
    return tuple(map(int, library.__version__.split(".")[:2]))


@pytest.mark.parametrize("library", [torch, torch_geometric])
def test_the_installed_version_is_one_that_these_claims_were_tried_with(library: Any):
    first, last = (tuple(map(int, one.split("."))) for one in TRIED_WITH[library.__name__])
    assert first <= version(library) <= last, f"try tests/capture with {library.__name__} {library.__version__}"


def test_modules_look_attributes_up_as_objects_do_so_that_reads_can_be_noted():
    """`held_state.noted_reads` gives classes of modules a `__getattribute__` while a model is captured."""
    assert "__getattribute__" not in vars(nn.Module)

    class Own(nn.Linear):
        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__(name)

    for linear in (nn.Linear(2, 3), Own(2, 3)):
        with noted_reads(linear) as reads:
            assert linear.in_features == 2
        assert reads == {(id(linear), "in_features"): (2, 2)}
    assert "__getattribute__" not in {*vars(nn.Module), *vars(nn.Linear)}


@pytest.mark.parametrize("place", [place for place, form in static_forms._IN_PYG.items() if form is not False])
def test_each_function_with_a_static_form_exists_and_takes_the_arguments_of_the_form(place: tuple[str, str]):
    """`static_forms` replaces the code of a function, and the attribute of a method."""
    module, path = place
    if module == "torch_cluster":
        pytest.skip("torch_cluster is an extension that need not be installed")
    holder: Any = __import__(module, fromlist=["_"])
    for name in path.split("."):
        holder = inspect.getattr_static(holder, name)
    assert isinstance(holder, FunctionType)
    own, form = (inspect.signature(one).parameters for one in (holder, static_forms._IN_PYG[place]))
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in form.values())
    given = len(form) - 1 if "." in path else len(form)
    assert takes_all or given >= len(own), f"{path} takes {list(own)}, its form {list(form)}"


def test_a_function_in_a_list_runs_its_form_while_a_model_is_captured():
    held: list[Callable[..., Any]] = [knn]
    code = knn.__code__
    points = torch.rand(4, 2)

    def search(x: torch.Tensor) -> torch.Tensor:
        return held[0](x, x, 2)

    assert capture(search, bind(search, points)).graph.ops
    assert knn.__code__ is code


def test_a_shape_keeps_the_counts_that_it_is_made_of():
    """`free_slots` follows the number of rows by an int that knows its slots, within `torch.Size`."""
    count = SlotCount(3)
    assert torch.Size([count, 2])[0] is count
    assert torch.empty(3, 2).reshape(torch.Size([count, 2])).shape == (3, 2)
