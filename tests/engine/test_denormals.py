"""A step treats denormal numbers as zeros on every thread, and restores the caller's setting."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.nn.models import SchNet as PygSchNet

from popgeo import ipu
from popgeo.engine.denormals import DenormalFlushing
from popgeo.ipu import TileExact
from popgeo.native import library
from tests.support.denormals import DenormalsMade, count_denormals

SMALL, LARGE = torch.full((4,), 1e-30), torch.full((1 << 17,), 1e-30)  # the latter is divided among threads


@pytest.fixture(autouse=True)
def _ends_as_it_began() -> Iterator[None]:
    assert flushed_elements(SMALL) == 0
    yield
    assert flushed_elements(SMALL) == 0
    torch.set_flush_denormal(False)


def flushed_elements(x: Tensor) -> int:
    """Return how many elements of 1e-30 become zero, not 1e-40, when they are multiplied by 1e-10."""
    return x.numel() - count_denormals(x * 1e-10)


@pytest.mark.parametrize("caller_flushes", [False, True])
def test_the_caller_has_its_own_setting_back_after_a_block_and_after_an_error(native: str, caller_flushes: bool):
    torch.set_flush_denormal(caller_flushes)
    with DenormalFlushing():
        with DenormalFlushing():
            assert flushed_elements(SMALL) == 4
        assert flushed_elements(SMALL) == 4
    assert flushed_elements(SMALL) == 4 * caller_flushes
    with pytest.raises(RuntimeError, match="no such"), DenormalFlushing():
        raise RuntimeError("no such thing")
    assert flushed_elements(SMALL) == 4 * caller_flushes
    torch.set_flush_denormal(False)


@pytest.mark.skipif(not library.is_available(), reason=library.reason())
def test_threads_that_are_there_already_flush_too_and_stop_with_the_caller():
    torch.set_num_threads(2)
    assert flushed_elements(LARGE) == 0
    torch.set_flush_denormal(True)
    assert flushed_elements(LARGE) == LARGE.numel() // 2, "torch's own switch has come to reach every thread"
    torch.set_flush_denormal(False)
    with DenormalFlushing():
        assert flushed_elements(LARGE) == LARGE.numel()
    assert flushed_elements(LARGE) == 0


def test_other_threads_of_the_program_keep_their_setting(native: str):
    found = []
    with DenormalFlushing():
        inside = threading.Thread(target=lambda: found.append(flushed_elements(SMALL)))
        # A thread starts with what the one has that starts it.
        inside.start()
        inside.join()
    outside = threading.Thread(target=lambda: found.append(flushed_elements(SMALL)))
    outside.start()
    outside.join()
    assert found == [4, 0]


class Shrinks(nn.Module):
    """A product with a weight, and a small loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1e-10))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        product = x * self.weight
        return product, product.sum()


def test_a_compiled_step_its_update_and_its_tiles_flush(native: str):
    model = Shrinks()
    training = ipu.training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-10))
    product, loss = training(SMALL)
    exact = TileExact(training)
    assert (product == 0).all()
    assert float(loss.detach()) == 0
    assert_close(exact(SMALL), training(SMALL), rtol=0, atol=0)
    # A rate of 1e-10 times a slope of 4e-30 is 4e-40.
    assert float(model.weight.detach()) == float(torch.tensor(1e-10))
    with torch.no_grad():
        model.weight.zero_()
    training(SMALL)
    assert count_denormals(model.weight) == 0


def test_inference_and_plain_functions_flush(native: str):
    assert flushed_elements(ipu.inference_model(nn.Identity())(SMALL)) == 0
    model = Shrinks().requires_grad_(False)
    assert count_denormals(ipu.inference_model(model)(SMALL)[0]) == 0
    assert count_denormals(ipu.compile(lambda x: x * 1e-10, [SMALL])(SMALL)) == 0
    assert count_denormals(SMALL * 1e-10) == 4


class Apply(nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_the_caller_has_its_setting_back_where_a_step_fails():
    broken = ipu.inference_model(Apply(torch.log), ipu.Options(floating_point_exceptions=True))
    with pytest.raises(FloatingPointError, match=r"log.* gave infinity"):
        broken(torch.zeros(4))
    assert flushed_elements(SMALL) == 0


def test_the_check_for_infinity_sees_the_arithmetic_of_the_step():
    # 1e-10 / 1e-40 is 1e30; a step divides by zero, with the check and without it.
    tiny, checks = torch.tensor([1e-40]), ipu.Options(floating_point_exceptions=True)
    assert ipu.inference_model(Apply(lambda x: 1e-10 / x))(tiny).isinf()
    with pytest.raises(FloatingPointError, match=r"reciprocal.* gave infinity"):
        ipu.inference_model(Apply(lambda x: 1e-10 / x), checks)(tiny)


class Chain(nn.Module):
    """PyG's SchNet, whose Gaussians have no floor, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.schnet = PygSchNet(8, 8, 1, 50, 5.0, interaction_graph=Neighbors())
        self.schnet.readout = SumOfAll()  # PyG's reads a size from the data

    def forward(self, z: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.schnet(z, pos, torch.zeros_like(z))
        return energy, energy.square().sum()


class SumOfAll(nn.Module):
    """A readout for one molecule."""

    def forward(self, x: Tensor, batch: Tensor, dim: int) -> Tensor:
        return x.sum(dim, keepdim=True)


class Neighbors(nn.Module):
    """A neighbor list of each atom and the next one."""

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        one = torch.arange(len(pos) - 1)
        return torch.stack([one, one + 1]), (pos[1:] - pos[:-1]).square().sum(1).sqrt()


def test_pygs_schnet_makes_denormal_numbers_and_under_a_compiled_step_its_results_hold_none():
    z, pos = torch.arange(1, 9), torch.linspace(0, 20, 8).unsqueeze(1) * torch.tensor([1.0, 0.0, 0.0])
    eager, model = Chain(), Chain()
    with DenormalsMade() as made:
        eager(z, pos)[1].backward()
    assert made.found
    assert sum(count_denormals(p.grad) for p in eager.parameters() if p.grad is not None)
    training = ipu.training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    energy, _ = training(z, pos)
    assert_close(energy, eager(z, pos)[0])
    gradients = training.update.gradients.values()
    assert sum(gradient.count_nonzero() for gradient in gradients)
    assert sum(map(count_denormals, gradients)) == 0
