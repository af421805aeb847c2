"""Sums in steps captured as CUDA graphs: edges are sorted once per end, however many layers a model has."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import popgeo
from popgeo.nn import GCN, GIN, GPS, GraphSAGE, PairInteractionGraph, SchNet
from popgeo.ops import sum_on_device
from tests.support.fake_cuda import FakeCuda

NUM_NODES, NUM_GRAPHS = 12, 2


def of_edges(make: Callable[..., nn.Module]) -> Callable[[int], nn.Module]:
    class Step(nn.Module):
        def __init__(self, num_layers: int) -> None:
            super().__init__()
            self.model = make(8, 8, num_layers=num_layers)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, pos: Tensor) -> Tensor:
            return self.model(x, edge_index, batch=batch, num_graphs=NUM_GRAPHS).square().mean()

    return Step


class OfAtoms(nn.Module):
    def __init__(self, num_layers: int) -> None:
        super().__init__()
        graph = PairInteractionGraph(5.0, max_num_nodes=NUM_NODES // NUM_GRAPHS)
        self.model = SchNet(8, 8, num_interactions=num_layers, interaction_graph=graph, filters="edges")

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, pos: Tensor) -> Tensor:
        z = torch.ones_like(batch)
        return self.model(z, pos, batch, num_graphs=NUM_GRAPHS).square().mean()


MODELS = {one.__name__: of_edges(one) for one in (GCN, GIN, GraphSAGE)}
MODELS |= {"GPS": of_edges(partial(GPS, conv="gin")), "SchNet": OfAtoms}


@pytest.mark.parametrize("name", MODELS)
def test_more_layers_need_no_more_sorts(cuda: FakeCuda, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sum_on_device, "serves", Tensor.is_floating_point)
    generator = torch.Generator().manual_seed(0)
    batch = {
        "x": torch.randn(NUM_NODES, 8, generator=generator),
        "edge_index": torch.randint(0, NUM_NODES, (2, 30), generator=generator),
        "batch": torch.arange(NUM_GRAPHS).repeat_interleave(NUM_NODES // NUM_GRAPHS),
        "pos": torch.randn(NUM_NODES, 3, generator=generator),
    }
    counts, losses = [], []
    for num_layers in (2, 4):
        for backend in ("cuda", "cpu"):
            torch.manual_seed(0)
            step = MODELS[name](num_layers)
            run = popgeo.compile_step(step, torch.optim.SGD(step.parameters(), lr=1e-3), backend=backend)
            losses.append([run(**batch).item() for _ in range(6)])
        operations = [func._schema.name for func, *_ in cuda.graphs[-1].ops]
        counts.append(sum(one in ("aten::sort", "popgeo::plan") for one in operations))
    assert counts[0] == counts[1] <= 3, counts  # both ends of the edges, and the graphs of the nodes
    for captured, expected in (losses[:2], losses[2:]):
        assert captured == pytest.approx(expected, rel=1e-4)
