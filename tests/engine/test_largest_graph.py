"""A captured model handles the largest molecule that its loader knows of, and is captured again for a larger one."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch_geometric.data import Data

import popgeo
from popgeo import FixedSizeDataLoader, Predictor
from popgeo.nn import KNNInteractionGraph, PairInteractionGraph, RadiusInteractionGraph, SchNet
from tests.support.fake_cuda import FakeCuda

GRAPHS = {
    "knn": lambda size: KNNInteractionGraph(6, 3.0, size),
    "pairs": lambda size: PairInteractionGraph(3.0, size),
    "radius": lambda size: RadiusInteractionGraph(3.0, 2000, size),
}


def molecules(sizes: list[int]) -> list[Data]:
    generator = torch.Generator().manual_seed(sum(sizes))
    made = []
    for size in sizes:
        pos = 2 * torch.rand(size, 3, generator=generator) * size ** (1 / 3)
        made.append(Data(z=torch.randint(1, 9, (size,), generator=generator), pos=pos, y=pos.sum().view(1)))
    return made


class Energies(nn.Module):
    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = SchNet(16, 16, 2, interaction_graph=graph)

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, nodes_mask: Tensor, y: Tensor) -> Tensor:
        return self.model(z=z, pos=pos, batch=batch, num_graphs=len(y), nodes_mask=nodes_mask)


def tensors(batch: Data) -> list[Tensor]:
    return [batch.z, batch.pos, batch.batch, batch.nodes_mask, batch.y]


SMALL, LARGE = [3, 8, 11] * 20, [3, 25, 11] * 20


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", GRAPHS)
def test_a_step_needs_no_more_memory_than_with_the_number_by_hand(kind: str, workers: int):
    loader = FixedSizeDataLoader(molecules(SMALL), batch_size=20, num_workers=workers)
    steps = []
    for size in (None, 11):
        model = Energies(GRAPHS[kind](size))
        step = popgeo.compile_forward(model.eval())
        for batch in loader:
            torch.testing.assert_close(step(*tensors(batch)), model(*tensors(batch)), rtol=1e-5, atol=1e-5)
        steps.append(step)
    known, by_hand = (step.bound.figures()["buffer_bytes"] for step in steps)
    assert known <= by_hand


def test_a_larger_molecule_is_provided_for_when_it_comes():
    model = Energies(PairInteractionGraph(3.0)).eval()
    step = popgeo.compile_forward(model)
    sizes = FixedSizeDataLoader(molecules(LARGE), batch_size=20).fixed_size_options
    loaders = [FixedSizeDataLoader(molecules(some), fixed_size_options=sizes) for some in (SMALL, LARGE, SMALL)]
    captures = []
    for loader in loaders:
        for batch in loader:
            torch.testing.assert_close(step(*tensors(batch)), model(*tensors(batch)), rtol=1e-5, atol=1e-5)
        captures.append(step.bound)
    assert captures[0] is not captures[1]
    assert captures[1] is captures[2]  # which holds smaller ones too


def test_a_batch_of_unknown_origin_is_provided_for_with_a_warning():
    model = Energies(PairInteractionGraph(3.0)).eval()
    step = popgeo.compile_forward(model)
    batch = next(iter(FixedSizeDataLoader(molecules(SMALL), batch_size=20)))
    step(*tensors(batch))
    given = [tensor.clone() for tensor in tensors(batch)]  # one molecule may be as large as the batch
    given[2] = torch.where(given[3], 0, given[2])
    with pytest.warns(UserWarning, match=r"PairInteractionGraph\(max_num_nodes=\.\.\.\)"):
        made = step(*given)
    torch.testing.assert_close(made, model(*given), rtol=1e-5, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(*tensors(batch))


def test_updates_continue_when_a_larger_molecule_comes():
    sizes = FixedSizeDataLoader(molecules(LARGE), batch_size=20).fixed_size_options
    batches = [b for some in (SMALL, LARGE) for b in FixedSizeDataLoader(molecules(some), fixed_size_options=sizes)]
    weights = []
    for size in (None, 25):
        model = Energies(PairInteractionGraph(3.0, size))
        loss = Loss(model)
        step = popgeo.compile_step(loss, torch.optim.Adam(loss.parameters(), 1e-3))
        losses = [float(step(*tensors(batch))) for batch in batches]
        weights.append([*losses, *(p.detach().clone() for p in loss.parameters())])
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


class Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Tensor) -> Tensor:
        return (self.model(*given).squeeze(1)[:-1] - given[-1][:-1]).square().mean()


@pytest.mark.parametrize("kind", GRAPHS)
def test_predictions_are_right_when_larger_molecules_come(kind: str):
    torch.manual_seed(0)
    model = SchNet(16, 16, 2, interaction_graph=GRAPHS[kind](None)).eval()
    predictor = Predictor(model)
    for sizes in (SMALL, [7, 40, 9, 40, 3, 2], SMALL):
        graphs = molecules(sizes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a shape may grow
            made = predictor(graphs)
        alone = [model(z=g.z, pos=g.pos, batch=torch.zeros(len(g.z)).long(), num_graphs=1) for g in graphs]
        torch.testing.assert_close(made["out"], torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_a_cuda_graph_has_slots_for_the_largest_molecule_of_the_loader(cuda: FakeCuda):
    loader, model = FixedSizeDataLoader(molecules(SMALL), batch_size=20), Energies(PairInteractionGraph(3.0)).eval()
    step = popgeo.compile_forward(model, backend="cuda")
    for batch in [*loader, *loader]:
        torch.testing.assert_close(step(*tensors(batch)), model(*tensors(batch)), rtol=1e-5, atol=1e-5)
    (graph,) = cuda.graphs
    most = max(one.numel() for _, _, _, made in graph.ops for one in tree_leaves(made) if isinstance(one, Tensor))
    assert most <= loader.fixed_size_options.total_num_nodes * (11 // 2) * 50  # channels of the expanded distances
