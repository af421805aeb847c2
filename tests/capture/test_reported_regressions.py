"""Programs that did not work in earlier versions are captured, or refused with the true reason."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import ChebConv

from popgeo import compile_forward, compile_step
from tests.contracts.test_checks_hold_when_captured import Function

RING = torch.tensor([[0, 1, 1, 2, 0], [1, 0, 2, 1, 0]])  # with an edge of node 0 to itself


def test_edges_with_a_loop_may_be_a_constant_of_the_model():
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = ChebConv(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x, RING)

    model, x = Constant(), torch.randn(3, 3)
    torch.testing.assert_close(compile_forward(model)(x), model(x).detach())


def test_a_generator_inside_of_a_function_that_the_module_holds_draws_on():
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.f = lambda x: x + torch.rand(8, generator=generator)

        def forward(self, x: Tensor) -> Tensor:
            return self.f(x)

    step, eager = compile_forward(Noisy()), torch.Generator().manual_seed(0)
    for _ in range(3):
        assert torch.equal(step(torch.zeros(8)), torch.rand(8, generator=eager))


def test_an_operation_that_resizes_what_it_changes_is_refused():
    def resized(x: Tensor) -> Tensor:
        y = torch.ones(1) * x
        return y.addbmm_(torch.ones(2, 5, 3), torch.ones(2, 3, 10))

    with pytest.raises(ValueError, match=r"addbmm_ gives a tensor of shape \[1\] the shape \[5, 10\] in place"):
        compile_forward(Function(resized))(torch.ones(1))


def test_a_rank_is_written_to_out():
    def rank(x: Tensor) -> Tensor:
        out = torch.zeros((), dtype=torch.long)
        torch.linalg.matrix_rank(x, out=out)
        return out + 0

    assert compile_forward(Function(rank))(torch.eye(3)) == 3


@pytest.mark.parametrize("name", ["inv", "det", "cholesky"])
def test_functions_that_resize_inside_with_out_are_refused_with_the_remedy(name):
    def into(x: Tensor) -> Tensor:
        out = torch.zeros(() if name == "det" else (3, 3))
        getattr(torch.linalg, name)(x, out=out)
        return out

    with pytest.raises(ValueError, match="leave out= out, and copy_\\(\\) the result"):
        compile_forward(Function(into))(torch.eye(3))


class Loss(nn.Module):
    """A function of a linear layer's result."""

    def __init__(self, end) -> None:
        super().__init__()
        self.lin, self.end = nn.Linear(3, 1), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.lin, x)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda lin, x: lin(x).flatten(), r"but float32\[6\]: take the mean\(\) or sum\(\)"),
        (lambda lin, x: lin(x) @ lin(x).T, r"but float32\[6, 6\]: take the mean"),
        (lambda lin, x: lin(x).sum().reshape(1), r"but float32\[1\]: take the mean"),
        (lambda lin, x: lin(x).mean().detach(), r"1 of one element are cut off .*detach\(\)"),
        (lambda lin, x: checkpoint(lin, x, use_reentrant=True).sum(), "use_reentrant=True"),
    ],
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_what_is_returned_instead_of_a_loss_is_told(end, words):
    model = Loss(end)
    step = compile_step(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=f"Couldn't find a loss.*{words}"):
        step(torch.ones(6, 3))
