"""A compiled step follows methods that are replaced in the model's class."""

import pytest
import torch
from torch import Tensor

from popgeo import compile_forward
from tests.support.small_models import EachMethod


class Named(EachMethod):
    """A model that calls one method of each kind."""

    def forward(self, x: Tensor) -> Tensor:
        return self.method(x) + self.of_class(x) + self.static(x) + self.attribute * x


@pytest.mark.parametrize("place", ["its own class", "a base", "a class between them"])
@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("method", lambda self, x: 3 * x),
        ("of_class", classmethod(lambda cls, x: 3 * x)),
        ("static", staticmethod(lambda x: 3 * x)),
        ("attribute", property(lambda self: 3.0)),
    ],
)
def test_a_method_that_is_replaced_is_followed(monkeypatch, place: str, name: str, new: object):
    between = type("Between", (Named,), {})
    model = type("Own", (between,), {})()
    run, x = compile_forward(model), torch.ones(2)
    assert run(x).tolist() == [8, 8]
    monkeypatch.setattr({"its own class": type(model), "a base": EachMethod}.get(place, between), name, new)
    assert run(x).tolist() == model(x).tolist() == [9, 9]
