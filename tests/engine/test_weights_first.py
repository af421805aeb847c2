"""A compiled forward pass computes values of weights alone once, and again after any change of a weight."""

import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import popgeo
from popgeo.nn import PaiNN, SchNet


class Powers(nn.Module):
    """A model that multiplies x by a power of a matrix, and returns the power too."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(size, size) / size)
        self.register_buffer("scale", torch.ones(size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        power = self.weight * self.scale
        for _ in range(20):
            power = power @ self.weight
        return x @ power, power, power.t()


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Use float64: powers of a matrix grow so large that rounding exceeds small changes."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def change_by_optimizer(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), 0.1).step()
    model.zero_grad()


def change_behind_the_version(model: nn.Module) -> None:
    model.weight.data.numpy()[0, 0] += 0.5


def change_a_buffer(model: nn.Module) -> None:
    model.scale[1] = -2.0


def change_to_nan(model: nn.Module) -> None:
    model.weight.data[2, 2] = torch.nan


def change_the_sign_of_zero(model: nn.Module) -> None:
    model.scale.zero_()
    model.weight.data.abs_()
    model.scale.neg_()


def change_memory(model: nn.Module) -> None:
    model.weight.data = torch.randn(4, 4)


def change_parameter(model: nn.Module) -> None:
    model.weight = nn.Parameter(torch.randn(4, 4))


def change_by_loading(model: nn.Module) -> None:
    model.load_state_dict({name: tensor + 0.25 for name, tensor in model.state_dict().items()})


@pytest.mark.parametrize(
    "change",
    [
        change_by_optimizer,
        change_behind_the_version,
        change_a_buffer,
        change_to_nan,
        change_the_sign_of_zero,
        change_memory,
        change_parameter,
        change_by_loading,
    ],
)
@pytest.mark.usefixtures("in_float64")
def test_no_change_of_a_weight_is_missed(change):
    model, x = Powers(), torch.randn(3, 4)
    step = popgeo.compile_forward(model)
    for _ in range(2):
        for made, expected in zip(step(x), model(x), strict=True):
            torch.testing.assert_close(made, expected, equal_nan=True)
        change(model)
    for made, expected in zip(step(x), model(x), strict=True):
        torch.testing.assert_close(made, expected, equal_nan=True)
        assert torch.equal(made.signbit(), expected.signbit()) or made.isnan().any()


def test_weights_that_lie_apart_and_large_ones_are_followed():
    model, x = Powers(), torch.randn(3, 4)
    model.weight = nn.Parameter(torch.randn(4, 16)[:, ::4] / 4)  # its last element lies beyond the bytes that it has
    large = nn.Embedding(100_000, 4)
    whole = Doubled(model, large)
    step = popgeo.compile_forward(whole)
    for _ in range(2):
        torch.testing.assert_close(step(x), whole(x))
        model.weight.data[3, 3] += 0.5
        large.weight.data[99_999, 3] += 0.5
    torch.testing.assert_close(step(x), whole(x))


class Doubled(nn.Module):
    def __init__(self, model: nn.Module, large: nn.Embedding) -> None:
        super().__init__()
        self.model, self.large = model, large

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[0] + (2 * self.large.weight)[-1]


def test_results_that_a_caller_changes_are_made_again():
    model, x = Powers(), torch.randn(3, 4)
    step = popgeo.compile_forward(model)
    for made in step(x):
        made.detach().fill_(7.0)
    for made, expected in zip(step(x), model(x), strict=True):
        torch.testing.assert_close(made, expected)


@pytest.mark.skipif(not popgeo.native.library.is_available(), reason="weights are compared by a compiled function")
def test_work_on_weights_alone_is_not_repeated():
    model, x = Powers(300), torch.randn(3, 300)
    step, spent = popgeo.compile_forward(model), []
    for call in (step, model):
        call(x)
        start = time.process_time()
        for _ in range(20):
            call(x)
        spent.append(time.process_time() - start)
    assert 3 * spent[0] < spent[1]


def test_buffers_that_a_call_changes_are_not_taken_for_weights():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    step = popgeo.compile_forward(models[0])
    for x in torch.randn(3, 8, 4):
        torch.testing.assert_close(step(x), models[1](x))
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict())


def test_a_weight_norm_is_followed_through_training():
    torch.manual_seed(0)
    model, x = parametrizations.weight_norm(nn.Linear(4, 4)), torch.randn(3, 4)
    forward, training = (
        popgeo.compile_forward(model),
        popgeo.compile_step(Square(model), torch.optim.SGD(model.parameters(), 0.1)),
    )
    for _ in range(3):
        torch.testing.assert_close(forward(x), model(x))
        training(x)


class Square(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).square().mean()


@pytest.mark.parametrize("make_model", [SchNet, PaiNN])
@pytest.mark.parametrize("forces", [False, True])
def test_few_atoms_are_as_in_eager_mode(make_model, forces):
    torch.manual_seed(0)
    model = make_model(16, num_interactions=2, cutoff=5.0).eval()
    z, pos, batch = torch.randint(1, 9, (9,)), 2 * torch.rand(9, 3), torch.zeros(9, dtype=torch.long)
    function = popgeo.nn.forces.energy_and_forces if forces else lambda model, *given, **kept: (model(*given, **kept),)
    step = popgeo.compile_forward(Called(model, function))
    for _ in range(2):
        for made, expected in zip(step(z, pos, batch), function(model, z, pos, batch, num_graphs=1), strict=True):
            torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.01)


class Called(nn.Module):
    def __init__(self, model: nn.Module, function) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.function(self.model, z, pos, batch, num_graphs=1))
