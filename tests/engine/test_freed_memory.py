"""Tensors whose memory was freed are refused, instead of ending the process."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import popgeo
from popgeo.native.plain_tensor import plain_tensor


def freed(tensor: Tensor, nbytes: int = 0) -> Tensor:
    tensor.untyped_storage().resize_(nbytes)
    return tensor


GIVEN: dict[str, Callable[[], Tensor]] = {
    "a tensor": lambda: freed(torch.randn(6, 4)),
    "a view with an offset": lambda: freed(torch.randn(9, 4)[3:]),
    "a transposed view": lambda: freed(torch.randn(4, 6).t()),
    "a storage that is too short": lambda: freed(torch.randn(6, 4), 16),
    "a view beyond the end of a storage that is too short": lambda: freed(torch.randn(100, 4)[50:56], 400),
    "no memory at all": lambda: torch.empty(6, 4, device="meta"),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm = nn.Linear(4, 2), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.line(x)).square().mean()


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("trains", [False, True])
def test_an_argument_without_memory_is_refused_in_the_first_call_and_later(given: str, trains: bool):
    model = Net()

    def compiled() -> popgeo.ipu.CompiledStep:
        return (
            popgeo.compile_step(model, torch.optim.Adam(model.parameters()))
            if trains
            else popgeo.compile_forward(model)
        )

    step = compiled()
    step(torch.randn(6, 4))
    for one in (step, compiled()):
        with pytest.raises(ValueError, match=r"no values|meta device"):
            one(GIVEN[given]())
    assert step(torch.ones(1, 4).expand(6, 4)).isfinite()  # more elements than memory, and right


def test_a_tensor_that_a_loader_or_a_program_reads_is_refused_beyond_the_end_of_its_storage():
    with pytest.raises(ValueError, match="x has no values"):
        plain_tensor("x", GIVEN["a view beyond the end of a storage that is too short"]())
    assert plain_tensor("x", freed(torch.randn(9, 4)[:6], 96)).shape == (6, 4)  # all that it looks at is left


@pytest.mark.parametrize("name", ["line.weight", "norm.running_mean"])
def test_weights_without_memory_are_refused_until_they_are_back(name: str):
    model, x = Net().eval(), torch.randn(6, 4)
    step = popgeo.compile_forward(model)
    expected, state = step(x), model.state_dict()[name].clone()
    held = model.state_dict()[name]
    size = held.untyped_storage().nbytes()
    freed(held)
    for one in (step, step, popgeo.compile_forward(model)):
        with pytest.raises(ValueError, match=f"{name} has no values"):
            one(x)
    held.untyped_storage().resize_(size)
    held.copy_(state)
    assert torch.equal(step(x), expected)


@pytest.mark.parametrize("call", ["gather", "scatter"])
def test_an_op_refuses_a_freed_view(call: str):
    view, index = freed(torch.randn(9, 4)[3:]), torch.tensor([0, 1, 1, 0, 2, 2])
    with pytest.raises((ValueError, RuntimeError), match=r"no memory|out of bounds|no values"):
        popgeo.gather(view, index) if call == "gather" else popgeo.scatter(view, index, dim_size=3)
