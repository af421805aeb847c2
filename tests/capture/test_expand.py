"""popgeo's operations are decomposed into the graph that a model of plain operations has."""

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from popgeo.capture.expand import expand, trace
from popgeo.capture.op_graph import Value
from popgeo.engine.graph_runner import GraphRunner
from popgeo.ipu import TileExact, training_model
from popgeo.ops import interaction
from tests.support.check_graph import check_graph

WHOLE = {"popgeo.interaction.default", "popgeo.interaction_backward.default"}


class Interacts(nn.Module):
    """Sums of messages with filters on a grid; the table of filters is trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.table = nn.Linear(4, 4), nn.Parameter(torch.randn(12, 4).cumsum(0))

    def forward(self, x: Tensor, r: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
        out = interaction(self.lin(x), self.table, r, src, dst, 6, 3.0)
        return out, out.square().mean()


def compiled():
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(6, (2, 20), generator=generator)
    inputs = torch.randn(6, 4, generator=generator), 4 * torch.rand(20, generator=generator), src, dst
    model = Interacts()
    step = training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    return step.compile(*inputs), inputs


def test_an_interaction_is_expanded_into_interpolation_and_convolution():
    step, _ = compiled()
    assert {op.target for op in step.graph.ops} >= WHOLE
    expanded = expand(step.graph)
    check_graph(expanded)
    assert not {op.target for op in expanded.ops} & WHOLE
    assert {op.phase for op in expanded.ops if op.target.startswith("popgeo.cfconv")} == {"forward", "backward"}
    assert expand(expanded) is expanded


def test_tiles_run_what_it_stands_for():
    step, inputs = compiled()
    exact = TileExact(step)
    assert_close(exact(*inputs), step(*inputs), rtol=1e-5, atol=1e-5)
    assert step.report.total_cycles > 0


def test_a_function_is_traced_with_its_gradients():
    value = Value(shape=(3,), stride=(1,), offset=0, dtype=torch.float32, storage=0, producer=None)

    def slope(x: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return list(torch.autograd.grad(leaf.sin(), leaf, torch.ones(3)))

    graph = trace(slope, [value])
    (made,) = GraphRunner(graph, {}).run([torch.zeros(3)])
    assert made.tolist() == [1.0, 1.0, 1.0]
