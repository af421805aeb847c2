"""A model makes the same of a transposed argument as in eager mode: views, random numbers, changes in place."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo import compile_forward, compile_step
from popgeo.native import library


def change(made: Tensor) -> Tensor:
    """Change a result in place, which changes the argument if the result is a view of it."""
    return made.mul_(2)


FUNCTIONS = {
    "dropout": lambda x, w: F.dropout(x * w, 0.5),
    "random numbers": lambda x, w: torch.rand_like(x) + w,
    "random numbers in place": lambda x, w: (x * w).exponential_(),
    "as_strided": lambda x, w: (x + w).as_strided((2, 2), (1, 3), 1) * 2,
    "as_strided of the argument": lambda x, w: x.as_strided((2, 2), (1, 3)) * 2,
    "reshape": lambda x, w: change(x.reshape(-1)),
    "contiguous": lambda x, w: change(x.t().contiguous()),
    "flatten": lambda x, w: change(x.t().flatten()),
    "view": lambda x, w: change(x.t().view(-1)),
    "products and sums": lambda x, w: (x @ w.t()).softmax(0) + (x * w).cumsum(0)[:, :4] + x.sum(1),
    "rows": lambda x, w: x.index_add(0, torch.tensor([1, 1]), w[:2])[torch.tensor([3, 1])],
    "norms": lambda x, w: F.layer_norm(x, (6,)) + F.batch_norm(x, None, None, training=True),
}


class Model(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.linspace(-1, 1, 24).reshape(4, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.function(x, self.weight)
        return (made * self.weight.mean()).sum(), made.detach()


def run(function, layout, wrap) -> list[Tensor]:
    """Return results and arguments of three calls, and the weight after them."""
    model, seen = Model(function), []
    torch.manual_seed(0)
    step = wrap(model)
    for _ in range(3):
        x = layout(torch.randn(4, 6))
        seen += [*(one.detach() for one in step(x)), x]
    return [*seen, model.weight.detach()]


def eager_step(model: nn.Module):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        loss, made = model(x)
        loss.backward()
        optimizer.step()
        return loss, made

    return step


def compiled_step(model: nn.Module):
    return compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1))


LAYOUTS = {"rows": lambda x: x, "columns": lambda x: x.t().contiguous().t()}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_transposed_argument_has_the_results_of_eager_mode(name, layout):
    function = FUNCTIONS[name]
    if name == "view" and layout is LAYOUTS["rows"]:
        with pytest.raises((RuntimeError, ValueError), match="view"):
            run(function, layout, compile_forward)
        return
    torch.testing.assert_close(run(function, layout, compile_forward), run(function, layout, lambda model: model))
    expected = run(function, layout, eager_step)
    torch.testing.assert_close(run(function, layout, compiled_step), expected)
    with library.without_native():
        torch.testing.assert_close(run(function, layout, compiled_step), expected)
