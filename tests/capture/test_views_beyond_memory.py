"""A view that ends beyond the memory of its tensor is an error when a step is captured, as it is in eager mode."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from popgeo import compile_forward

BEYOND: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "offset": lambda m, x: torch.as_strided(x, (4,), (1,), 40) + 0.0,
    "size": lambda m, x: x.as_strided((40,), (1,)) * 1,
    "stride": lambda m, x: x.as_strided((4,), (9,)) * 1,
    "one element": lambda m, x: x.view(4, 4).t().as_strided((4, 5), (4, 1)) + 1,
    "parameter": lambda m, x: m.weight.as_strided((4,), (1,), 40) + x.sum(),
    "constant": lambda m, x: m.held[0].as_strided((4,), (1,), 40) + x.sum(),
    "result": lambda m, x: (x * 2).as_strided((4,), (1,), 40) + x.sum(),
    "in place": lambda m, x: (x * 2).as_strided_((4,), (1,), 40) + x.sum(),
    "written to": lambda m, x: (x * 2).as_strided((4,), (1,), 40).add_(1) + x.sum(),
    "other type": lambda m, x: x.view(torch.int32).as_strided((40,), (1,)) * 1,
    "copy": lambda m, x: torch.as_strided_copy(x, (4,), (1,), 40) + 1,
    "scatter": lambda m, x: torch.as_strided_scatter(x, torch.ones(4), (4,), (1,), 40) + 1,
    "view of a view": lambda m, x: x[2:6].as_strided((20,), (1,)) + 1,
}
WITHIN: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "windows": lambda m, x: x.as_strided((3, 4), (2, 1), 2) + 0.0,
    "start": lambda m, x: x[8:].as_strided((4,), (1,), 0) + 0.0,
    "last": lambda m, x: x.as_strided((1,), (1,), 15) + 0.0,
    "none": lambda m, x: x.as_strided((0,), (1,), 90) + 0.0,
    "unfold": lambda m, x: x.unfold(0, 4, 2) * m.weight.as_strided((4,), (2,)),
}


class Viewed(nn.Module):
    def __init__(self, view: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.view = view
        self.weight = nn.Parameter(torch.arange(8.0))
        self.held = [torch.arange(6.0)]

    def forward(self, x: Tensor) -> Tensor:
        return self.view(self, x)


@pytest.mark.parametrize("name", BEYOND)
def test_a_view_beyond_memory_is_refused_as_eager_mode_does(name: str):
    model, x = Viewed(BEYOND[name]), torch.arange(16.0)
    with pytest.raises(RuntimeError, match="out of bounds"):
        model(x)
    step = compile_forward(model)
    with pytest.raises((ValueError, RuntimeError), match=r"beyond the [\d,]+ bytes|out of bounds"):
        step(x)
    assert model.weight.untyped_storage().nbytes() == 32


@pytest.mark.parametrize("name", WITHIN)
def test_a_view_within_memory_is_computed(name: str):
    model, x = Viewed(WITHIN[name]), torch.arange(16.0)
    torch.testing.assert_close(compile_forward(model)(x), model(x).detach(), check_stride=False)


@pytest.mark.parametrize("view", [lambda x: x[4:14], lambda x: x.view(8, 2)[:, 0]], ids=["offset", "gaps"])
def test_as_strided_of_an_argument_that_is_a_view_is_refused_as_it_would_count_from_elsewhere(view):
    class Strided(nn.Module):
        def forward(self, x):
            return torch.as_strided(x, (4,), (1,), 2) + 0.0

    whole = torch.arange(16.0)
    torch.testing.assert_close(compile_forward(Strided())(whole), torch.tensor([2.0, 3, 4, 5]))
    with pytest.raises(ValueError, match="as_strided counts from the memory of an argument that is itself a view"):
        compile_forward(Strided())(view(whole))
