"""Habits of PyTorch around a compiled step raise or warn: a second update, norms over padding, a mode, a seed."""

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader, FixedSizeOptions, Predictor, compile_forward, compile_step
from popgeo.nn import GIN, BatchNorm, mse_loss
from popgeo.ops import global_add_pool


class Graphs(nn.Module):
    """A node-wise layer, a norm and a sum over each graph."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.lin, self.norm, self.drop = nn.Linear(2, 2), norm, nn.Dropout(0.5)

    def forward(self, x, batch, y, nodes_mask, graphs_mask):
        x = self.lin(x)
        if self.norm is not None:
            x = self.norm(x, nodes_mask=nodes_mask) if isinstance(self.norm, BatchNorm) else self.norm(x)
        return mse_loss(global_add_pool(x, batch, len(y)).sum(1), y, graphs_mask)


def batch_of_graphs():
    edge = torch.tensor([[0], [1]])
    graphs = [Data(x=torch.ones(n, 2), edge_index=edge, y=torch.ones(1)) for n in (2, 3, 4)]
    batch = next(iter(FixedSizeDataLoader(graphs, 4)))
    return batch, (batch.x, batch.batch, batch.y, batch.nodes_mask, batch.graphs_mask)


def test_a_second_backward_pass_or_update_is_explained():
    model = Graphs()
    optimizer = torch.optim.Adam(model.parameters())
    step, (_, arguments) = compile_step(model, optimizer), batch_of_graphs()
    loss = step(*arguments)
    with pytest.raises(RuntimeError, match="has run the backward pass and the optimizer's update already"):
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(RuntimeError, match="clip_grad_norm_ before it; gradients are clipped by compile_step"):
        optimizer.step()
    model(*arguments).backward()  # eager updates in turn are as they were
    before = model.lin.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model.lin.weight, before)
    optimizer.zero_grad()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step(*arguments)
    scheduler.step()
    assert step(*arguments).isfinite()


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(2), nn.BatchNorm1d(2, momentum=None)])
def test_norms_that_count_padding_are_named(norm):
    _, arguments = batch_of_graphs()
    model = Graphs(norm)
    step = compile_step(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.warns(UserWarning, match="norm of the model takes means over all rows of a batch, padding included"):
        step(*arguments)


def test_norms_that_do_not_are_not():
    _, arguments = batch_of_graphs()
    model = Graphs(BatchNorm(2))
    compile_step(model, torch.optim.SGD(model.parameters(), 0.1))(*arguments)
    compile_forward(Graphs(nn.BatchNorm1d(2)).eval())(*arguments)
    images = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    compile_forward(images)(torch.randn(2, 1, 5, 5))


class Unmasked(nn.Module):
    """A sum over each graph, with a loss that is set."""

    def __init__(self, loss):
        super().__init__()
        self.lin, self.loss = nn.Linear(2, 2), loss

    def out(self, x, batch, num_graphs):
        return global_add_pool(self.lin(x), batch, num_graphs)

    def forward(self, x, batch, y, label, weight, num_graphs):
        return self.loss(self.out(x, batch, num_graphs), y, label, weight)


class OfTheBatch(Unmasked):
    def forward(self, batch):
        return self.loss(self.out(batch.x, batch.batch, batch.num_graphs), batch.y, batch.label, batch.weight)


class OfNodes(Unmasked):
    def forward(self, x, node_labels, target):
        return self.loss(self.lin(x), target, node_labels, None)


class Masked(Unmasked):
    def forward(self, x, batch, y, label, weight, num_graphs, graphs_mask):
        out = self.out(x, batch, num_graphs)
        return (self.loss(out, y, label, weight) * graphs_mask).sum() / graphs_mask.sum()


def labelled(**values):
    edge = torch.tensor([[0], [1]])
    graphs = [
        Data(
            x=torch.ones(n, 2),
            edge_index=edge,
            y=torch.ones(1, 2),
            label=torch.tensor([n % 2]),
            weight=torch.ones(1, 1),
            target=torch.ones(n, 2),
            node_labels=torch.ones(n).long(),
        )
        for n in (2, 3, 4)
    ]
    sizes = FixedSizeOptions.from_dataset(graphs, 4, **values)
    return next(iter(FixedSizeDataLoader(graphs, fixed_size_options=sizes, levels={"target": "node"})))


OVER_ALL_ROWS = {
    "a class": lambda out, y, label, weight: nn.functional.cross_entropy(out, label),
    "a target": lambda out, y, label, weight: nn.functional.mse_loss(out, y),
    "a column": lambda out, y, label, weight: (out[:, 0] - y[:, 1]).abs().mean(),
    "a sum": lambda out, y, label, weight: (out - y).square().sum() / 3,
}
OVER_REAL_ROWS = {
    "chosen rows": lambda out, y, label, weight: (out[:3] - y[:3]).square().mean(),
    "known rows": lambda out, y, label, weight: torch.where(y.isnan(), 0, out - y).sum(),
    "weights": lambda out, y, label, weight: ((out - y) * weight).sum(),
    "no labels": lambda out, y, label, weight: out.sum(),
}


def first_loss(kind, loss, given=lambda batch: (batch,), **values):
    model = kind(loss)
    return compile_step(model, torch.optim.SGD(model.parameters(), 0.1))(*given(labelled(**values)))


def by_tensors(batch):
    return batch.x, batch.batch, batch.y, batch.label, batch.weight, batch.num_graphs


@pytest.mark.parametrize("loss", OVER_ALL_ROWS.values(), ids=OVER_ALL_ROWS)
def test_a_loss_over_padding_is_warned_of(loss):
    ways = [(Unmasked, {}), (OfTheBatch, {}), (OfNodes, {}), (Unmasked, {"given": by_tensors})]
    for kind, given in ways:
        with pytest.warns(UserWarning, match=r"The loss reads all rows of .*, padding included, and no mask"):
            first_loss(kind, loss, **given)


@pytest.mark.parametrize("loss", OVER_REAL_ROWS.values(), ids=OVER_REAL_ROWS)
def test_a_loss_of_real_rows_is_not(loss):
    first_loss(Unmasked, loss)
    first_loss(OfTheBatch, loss)


def test_a_loss_with_a_mask_or_with_classes_that_torch_leaves_out_is_not():
    first_loss(Masked, lambda out, y, label, weight: (out - y).square().sum(1))
    first_loss(Unmasked, OVER_ALL_ROWS["a class"], graph_pad_value=-100)
    edge = torch.tensor([[0], [1]])
    whole = Data(x=torch.ones(3, 2), edge_index=edge, target=torch.ones(3, 2), node_labels=torch.ones(3).long())
    first_loss(OfNodes, OVER_ALL_ROWS["a class"], lambda _: (whole,))  # a whole graph has no padding
    model = Unmasked(OVER_ALL_ROWS["a target"])
    compile_forward(model.eval())(labelled())


def test_a_call_that_fits_no_argument_says_what_there_is():
    batch, model = labelled(), OfNodes(OVER_ALL_ROWS["a class"])
    step = compile_step(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(TypeError, match=r"forward\(x, node_labels, target\) .* unexpected keyword argument 'labels'"):
        step(batch, labels=batch.y)

    class OfFeatures(nn.Module):
        def forward(self, features):
            return nn.functional.relu(features).sum()

    with pytest.raises(ValueError, match=r"The batch has no attribute features; it has batch, edge_index, .*, x, y\."):
        compile_forward(OfFeatures())(batch)


def test_a_seed_set_before_each_call_draws_alike_as_in_eager_code():
    drop, x = nn.Dropout(0.5), torch.ones(64)
    step = compile_forward(drop)
    step(x)
    drawn = []
    for run in (step, step, drop):
        torch.manual_seed(3)
        drawn.append(run(x))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(step(x), step(x))


def test_a_predictor_leaves_the_padding_graph_of_a_batch_out():
    batch, _ = batch_of_graphs()
    predictions = Predictor(GIN(2, 4, 1, out_channels=1, readout="sum"))(batch)
    assert predictions.num_graphs == 3


def test_a_forward_pass_compiled_in_training_says_once_that_it_goes_on_dropping():
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), torch.ones(2, 3)
    step = compile_forward(model)
    step(x)
    model.eval()
    with pytest.warns(UserWarning, match=r"forward pass keeps that of train\(\)"):
        step(x)
    step(x)  # said once
    step.eval()
    assert torch.equal(step(x), step(x))


class SlopeByBackward(nn.Module):
    """A model that calls backward() for the derivative of its input, which also gives weights a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        self.line(x).sum().backward()
        return (self.line(x) - x.grad).square().mean()


def test_a_backward_pass_inside_the_model_is_refused_where_weights_are_trained_by_it():
    model, x = SlopeByBackward(), torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"calls backward\(\) in forward, which adds to the gradients"):
        compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1))(x)
    torch.testing.assert_close(compile_forward(model)(x), model(x).detach())
