"""A compiled step uses the present content of tensors that its model holds without registering them."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from popgeo import StepOptions, compile_forward, compile_step
from popgeo.engine.compiled_step import CompiledStep


class Holds(nn.Module):
    def __init__(self, read: Callable[["Holds"], Tensor]) -> None:
        super().__init__()
        self.weight, self.read = nn.Parameter(torch.ones(3)), read
        self.alone = torch.ones(3)
        self.listed, self.by_name = [torch.ones(3)], {"inner": [torch.ones(3)]}
        self.pair, self.queue = (torch.ones(3), [(torch.ones(3),)]), deque([torch.ones(3)])
        self.record = SimpleNamespace(scale=torch.ones(3))

    def tensors(self) -> list[Tensor]:
        in_pair = [self.pair[0], self.pair[1][0][0]]
        return [self.alone, *self.listed, *self.by_name["inner"], *in_pair, *self.queue, self.record.scale]

    def forward(self, x: Tensor) -> Tensor:
        return (self.read(self) * x * self.weight).sum()


READS = {
    "alone": lambda m: m.alone.cos(),
    "a view": lambda m: m.alone[:2].exp().sum(),
    "with a weight": lambda m: m.weight * m.alone.cos(),
    "in a list": lambda m: m.listed[0].cos() + torch.arange(3.0).sin(),
    "in a dictionary": lambda m: m.by_name["inner"][0].cos(),
    "in a tuple": lambda m: m.pair[0].cos(),
    "in a tuple in a list in a tuple": lambda m: m.pair[1][0][0].cos(),
    "in a queue": lambda m: m.queue[0].cos(),
    "in an object": lambda m: m.record.scale.cos(),
    "unchanged": lambda m: m.alone,
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_change_in_place_has_the_effect_that_it_has_in_eager(native, read: str, trains: bool, kept: bool, tmp_path):
    options = StepOptions(cache_dir=tmp_path if kept else None)

    def compiled(model: Holds) -> CompiledStep:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        return compile_step(model, optimizer, options=options) if trains else compile_forward(model, options=options)

    x = torch.tensor([1.0, 2.0, 3.0])
    if kept:
        compiled(Holds(READS[read]))(x)
    model = Holds(READS[read])
    run = compiled(model)
    for number in range(4):
        torch.testing.assert_close(run(x).detach(), model(x).detach())
        for tensor in model.tensors():
            tensor.fill_(number + 2.0)
    torch.testing.assert_close(run(x).detach(), model(x).detach())
