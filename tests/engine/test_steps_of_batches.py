"""A step is called with a batch: the model gets the attributes with its arguments' names, or the batch itself."""

import copy

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData

from popgeo import (
    FixedSizeDataLoader,
    FixedSizeOptions,
    Options,
    Predictor,
    StepOptions,
    compile_forward,
    compile_step,
)
from popgeo.nn import GIN, mse_loss

GRAPHS = [
    Data(
        x=torch.randn(n, 3, generator=torch.Generator().manual_seed(n)),
        edge_index=torch.stack([torch.arange(n), torch.arange(n).roll(1)]),
        y=torch.tensor([float(n)]),
    )
    for n in (2, 5, 3, 4, 6, 2)
]
SIZES = FixedSizeOptions(16, 16, 4)


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.gin = GIN(3, 8, 2, out_channels=1, readout="sum")

    def forward(self, x, edge_index, batch, y, graphs_mask, num_graphs, factor=1.0):
        out = factor * self.gin(x, edge_index, batch=batch, num_graphs=num_graphs).flatten()
        return out, mse_loss(out, y, graphs_mask)


def batches_of(**choices):
    return list(FixedSizeDataLoader(GRAPHS, fixed_size_options=SIZES, **choices))


def by_hand(b):
    return b.x, b.edge_index, b.batch, b.y, b.graphs_mask, SIZES.num_graphs


def test_a_training_step_takes_the_models_arguments_from_a_batch():
    one, other = Regression(), Regression()
    other.load_state_dict(one.state_dict())
    step, twin = (compile_step(m, torch.optim.Adam(m.parameters(), lr=0.01)) for m in (one, other))
    batches = batches_of() * 3
    for batch in batches:
        given = {"factor": 2.0}
        found, expected = step(batch, **given), twin(*by_hand(batch), **given)
        assert all(map(torch.equal, found, expected))
    assert step.calls == len(batches)
    assert all(map(torch.equal, one.parameters(), other.parameters()))


def test_a_forward_pass_takes_the_models_arguments_from_a_batch():
    model, (batch, *others) = Regression().eval(), batches_of()
    step = compile_forward(model, batch)
    for one in (batch, *others):
        assert all(map(torch.equal, step(one), model(*by_hand(one))))


def test_num_graphs_counts_one_micro_batch_of_a_call_of_several():
    options = Options(device_iterations=2)
    loader = FixedSizeDataLoader(GRAPHS * 2, options=options, fixed_size_options=SIZES)
    model, item = Regression().eval(), next(iter(loader))
    out, _ = compile_forward(model, options=StepOptions(device_iterations=2))(item)
    assert torch.equal(out, torch.cat([model(*by_hand(batch))[0] for batch in batches_of()[:2]]))


@pytest.mark.parametrize("name", ["batch", "data"])
def test_a_model_that_takes_the_batch_itself_gets_the_batch(name):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.of_tensors = Regression()

        def loss(self, b):
            return self.of_tensors(b.x, b.edge_index, b.batch, b.y, b.graphs_mask, b.num_graphs)

    class OfData(Whole):
        def forward(self, data):
            return self.loss(data)

    class OfBatch(Whole):
        def forward(self, batch):
            return self.loss(batch)

    model = {"batch": OfBatch, "data": OfData}[name]()
    twin = copy.deepcopy(model)
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.01))
    peer = compile_step(twin.of_tensors, torch.optim.SGD(twin.parameters(), lr=0.01))
    for batch in batches_of():
        assert torch.equal(step(batch)[1], peer(batch)[1])
    expected = twin.of_tensors.eval()(*by_hand(batches_of()[0]))[0][:3]
    found = Predictor(model, SIZES, results=["out", "loss"])(GRAPHS[:3])["out"]
    torch.testing.assert_close(found, expected)


def test_an_argument_that_no_attribute_is_named_after_is_asked_for():
    class Weighted(nn.Linear):
        def forward(self, x, node_weight):
            return (super().forward(x) * node_weight).sum()

    batch = batches_of()[0]
    step = compile_forward(Weighted(3, 1))
    expected = r"takes node_weight, which the graphs do not have; they have .*x, y.* step\(batch, node_weight=\.\.\.\)"
    with pytest.raises(ValueError, match=expected):
        step(batch)
    assert torch.equal(step(batch, node_weight=torch.zeros(16, 1)), torch.zeros(()))


def test_an_attribute_that_only_a_later_batch_has_is_not_ignored():
    class Weighted(nn.Linear):
        def forward(self, x, edge_index, edge_weight=None):
            return super().forward(x).sum() + (0 if edge_weight is None else edge_weight.sum())

    batch = batches_of()[0]
    step = compile_forward(Weighted(3, 1))
    step(batch)
    batch.edge_weight = torch.ones(16)
    with pytest.raises(ValueError, match=r"`edge_weight` is float32\[16\], but the model was compiled for None"):
        step(batch)


def test_a_model_of_types_of_nodes_takes_dictionaries_by_type():
    graph = HeteroData()
    graph["atom"].x, graph["bond"].x = torch.ones(2, 3), torch.ones(4, 3)
    batch = Batch.from_data_list([graph, graph])

    class Sums(nn.Linear):
        def forward(self, x_dict, num_graphs):
            return sum(super(Sums, self).forward(x).sum() for x in x_dict.values()) / num_graphs

    model = Sums(3, 1)
    torch.testing.assert_close(compile_forward(model)(batch), model({"all": torch.ones(12, 3)}, 2))
