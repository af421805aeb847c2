"""The words of PyG on a batch of fixed size: real graphs and seeds, numbers of slots that go into sums, refusals."""

import copy
import linecache
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import popgeo
from popgeo.data.super_batch import join, split
from tests.support.large_graphs import library, random_graph

GRAPHS = [Data(x=torch.ones(n, 2), edge_index=torch.tensor([[0], [1]]), y=torch.ones(1)) for n in (2, 3, 4, 5, 2)]
WHOLE = random_graph()
WHOLE.train_mask = torch.arange(WHOLE.num_nodes) % 2 == 0


def batches_of_graphs(**choices):
    return popgeo.FixedSizeDataLoader(GRAPHS, 4, **choices)


def batches_of_seeds(**choices):
    return popgeo.FixedSizeNeighborLoader(WHOLE, [2], torch.arange(40, 17, -1), batch_size=8, **choices)


def summed(batch, loss):
    return 0.0 + float(loss) * batch.num_graphs


def added(batch, loss):
    total = 0
    total += batch.num_graphs
    return total


def named(batch, loss):
    size = batch.num_graphs
    return loss.item() * size


def in_a_comprehension(batch, loss):
    return sum(1.0 * one.num_graphs for one in [batch])


def first(batch, loss):
    return batch.num_graphs * loss.item()


def by_its_other_name(batch, loss):
    return loss.item() * batch.batch_size


def divided(batch, loss):
    return float((batch.y == 1).sum()) / batch.num_graphs


def of_nodes(batch, loss):
    return loss.item() * batch.num_nodes


def of_edges(batch, loss):
    return batch.num_edges * loss


def of_tensors(batch, loss):
    return loss * batch.num_graphs


def kept_as_a_product(batch, loss):
    losses = []
    losses.append(loss.item() * batch.num_graphs)


def over_lines(batch, loss):
    return (
        loss.item() * batch.num_graphs  # of the whole batch
    )


class Meter:
    def update(self, value, number=1):
        self.seen = value, number

    log = update


def in_a_meter(batch, loss):
    Meter().update(loss.item(), batch.num_graphs)


def in_a_log(batch, loss):
    Meter().log("loss", number=batch.batch_size)


def in_a_list(batch, loss):
    sizes = []
    sizes.append(batch.num_graphs)


SUMS = [
    in_a_meter,
    in_a_log,
    in_a_list,
    kept_as_a_product,
    over_lines,
    summed,
    added,
    named,
    in_a_comprehension,
    first,
    by_its_other_name,
    divided,
    of_nodes,
    of_edges,
    of_tensors,
]


@pytest.mark.parametrize("line", SUMS, ids=lambda line: line.__name__)
def test_slots_that_go_into_a_sum_of_a_loop_are_warned_of(line):
    batch = next(iter(batches_of_graphs()))
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"counts the slots of a batch.* Use batch.num_real_(graphs|nodes|edges)"):
            line(batch, torch.tensor(1.0))


def by_name(size, number=None):
    return torch.zeros(size)


def shapes(batch):
    made = torch.zeros(batch.num_graphs, 2 * batch.num_graphs, batch.num_nodes + 1)
    size, outs = batch.num_graphs, []
    outs.append(torch.zeros(batch.num_graphs))
    outs.append(by_name(size, number=batch.num_graphs))
    by_name(batch.num_graphs)
    width = 3
    torch.zeros(batch.num_graphs * width).view(batch.num_graphs * width, 1)[: batch.num_graphs * width]
    number = batch.num_graphs
    torch.zeros(number)
    number = 0.5  # has nothing to do with slots any more
    outs.append(number * 2.0)
    return made.sum(), batch.num_graphs == 4, f"{batch.num_edges}", range(size), torch.zeros(size)


def test_slots_that_make_a_shape_are_not():
    batch = next(iter(batches_of_graphs()))
    shapes(batch)
    (plain,) = [Data(x=torch.ones(2, 1))]
    assert 1.0 * plain.num_nodes == 2.0


@pytest.mark.parametrize("line", ["total += 1.5 * batch.num_graphs", "size = batch.num_graphs\ntotal += 1.5 * size"])
def test_a_cell_of_a_notebook_is_warned_of_and_code_without_text_runs(line, monkeypatch):
    text = f"total = 0.0\n{line}\n"
    names = {"batch": next(iter(batches_of_graphs())), "__name__": "__main__"}
    exec(compile(text, "<no text>", "exec"), names)
    assert names["total"] == 6.0
    monkeypatch.setitem(linecache.cache, "<cell 1>", (len(text), None, text.splitlines(keepends=True), "<cell 1>"))
    with pytest.warns(UserWarning, match="counts the slots of a batch"):
        exec(compile(text, "<cell 1>", "exec"), names)


class ByItsSlots(nn.Module):
    def forward(self, batch):
        return batch.x.sum() * batch.num_graphs / batch.num_nodes


def test_models_compute_with_slots():
    batch, model = next(iter(batches_of_graphs())), ByItsSlots()
    assert torch.equal(popgeo.compile_forward(model)(batch), model(batch))


@pytest.mark.parametrize("name", ["num_graphs", "num_edges", "num_nodes", "batch_size"])
def test_slots_are_numbers_while_torch_traces(name):
    def scaled(batch):
        return batch.x.sum() * getattr(batch, name)

    batch = next(iter(batches_of_graphs()))
    slots = {"num_nodes": batch.nodes_mask, "num_edges": batch.edges_mask}.get(name, batch.graphs_mask)
    traced = torch.compile(scaled, backend="eager", fullgraph=True)(batch)
    assert float(traced) == float(batch.x.sum()) * len(slots)


COPIES = {
    "itself": lambda batch: batch,
    "copied": copy.copy,
    "deeply": copy.deepcopy,
    "pickled": lambda batch: pickle.loads(pickle.dumps(batch)),
    "moved": lambda batch: batch.to("cpu"),
    "cloned": lambda batch: batch.clone(),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_know_their_graphs_and_their_seeds(copied):
    *_, last = batches_of_graphs()
    batch = copied(last)
    assert (len(batch), batch.num_graphs, batch.num_real_nodes, batch.num_real_edges) == (2, 4, 7, 2)
    assert [graph.num_nodes for graph in batch.to_data_list()] == [5, 2]
    *_, last = batches_of_seeds()
    batch = copied(last)
    assert (batch.batch_size, batch.input_id.tolist()) == (7, list(range(16, 23)))
    assert batch.n_id[: batch.batch_size].tolist() == list(range(24, 17, -1))


def test_batches_without_masks_know_their_graphs():
    *_, last = batches_of_graphs(add_pad_masks=False)
    assert (len(last), last.num_real_nodes, len(last[:])) == (2, 7, 2)
    assert [graph.num_nodes for graph in last[np.array([True, False, False, False])]] == [5]


@pytest.mark.parametrize("choices", [{}, {"num_workers": 1}, {"background": True}, {"sort_edges": True}], ids=str)
def test_seeds_come_first_and_are_numbered(choices):
    seen = []
    for batch in batches_of_seeds(shuffle=True, seed=1, **choices):
        assert torch.equal(batch.seeds_mask, torch.arange(batch.num_nodes) < batch.batch_size)
        assert torch.equal(batch.n_id[: batch.batch_size], 40 - batch.input_id)
        seen += batch.input_id.tolist()
    assert sorted(seen) == list(range(23))


@pytest.mark.parametrize(
    "how",
    [{"subgraph_type": "induced"}, {"subgraph_type": "bidirectional"}, {"disjoint": True}, {"replace": True}],
    ids=lambda how: next(iter(how)),
)
def test_seeds_come_first_however_neighbors_are_sampled(how):
    seeds = torch.tensor([7, 3, 7, 50, 1])  # one of them twice
    for batch in popgeo.FixedSizeNeighborLoader(WHOLE, [2, 2], seeds, batch_size=3, **how):
        assert batch.batch_size == int(batch.seeds_mask.sum())
        assert torch.equal(batch.n_id[: batch.batch_size], seeds[batch.input_id])


def test_types_know_their_seeds_and_their_real_numbers():
    papers = torch.arange(20, 3, -1)
    for batch in popgeo.FixedSizeNeighborLoader(library(), [2, 2], ("paper", papers), batch_size=7):
        own = batch["paper"]
        assert torch.equal(own.n_id[: own.batch_size], papers[own.input_id])
        assert (batch.batch_size, batch.input_type) == (own.batch_size, "paper")
        assert not hasattr(batch["author"], "batch_size")
        assert batch["author"].num_real_nodes == int(batch["author"].nodes_mask.sum())
        assert batch.num_real_edges == sum(int(store.edges_mask.sum()) for store in batch.edge_stores)
    writes = "author", "writes", "paper"
    *_, last = popgeo.FixedSizeLinkLoader(library(), [2], writes, batch_size=30)
    assert last[writes].input_id.tolist() == list(range(60, 80))
    assert int(last[writes].edge_label_mask.sum()) == last[writes].batch_size == last.batch_size == 20


def test_links_and_clusters_are_numbered():
    *_, last = popgeo.FixedSizeLinkLoader(WHOLE, [2], batch_size=100, neg_sampling="binary")
    assert (last.batch_size, int(last.edge_label_mask.sum())) == (40, 80)
    assert last.input_id.tolist() == list(range(200, 240))
    parts = torch.arange(60) % 5
    batches = popgeo.FixedSizeClusterLoader(WHOLE, parts=parts, batch_size=2)
    assert sorted(number for batch in batches for number in batch.input_id.tolist()) == list(range(5))
    assert len(batches.dataset) == 5
    assert len(popgeo.FixedSizeLinkLoader(WHOLE, [2], batch_size=100).dataset) == 240
    seeds = batches_of_seeds()
    assert (len(seeds.dataset), seeds.data) == (23, WHOLE)


def test_each_batch_of_an_item_has_its_own():
    item = next(iter(batches_of_seeds(options=2)))
    with pytest.raises(ValueError, match=r"holds 2 batches, each with its seeds.* Use seeds_mask"):
        item.batch_size  # noqa: B018
    assert len(item) == len(item.to_data_list()) == 2
    assert item.num_real_nodes == int(item.nodes_mask.sum())
    for parts in (split(item), split(join(split(item)))):
        assert [part.n_id[: part.batch_size].tolist() for part in parts] == [(40 - p.input_id).tolist() for p in parts]
        assert parts[0].input_id.tolist() == list(range(8))
        assert sum(part.num_real_nodes for part in parts) == item.num_real_nodes


class OfSeeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 4)


class TakesTheNumber(OfSeeds):
    def forward(self, x, y, batch_size):
        return nn.functional.cross_entropy(self.lin(x)[:batch_size], y[:batch_size])


class MayTakeTheNumber(OfSeeds):
    def forward(self, x, y, batch_size=None):
        return nn.functional.cross_entropy(self.lin(x)[:batch_size], y[:batch_size])


class ReadsTheNumber(OfSeeds):
    def forward(self, batch):
        return nn.functional.cross_entropy(self.lin(batch.x)[: batch.batch_size], batch.y[: batch.batch_size])


class CountsItself(OfSeeds):
    def forward(self, batch):
        return self.lin(batch.x).sum() / len(batch)


class CountsNodes(OfSeeds):
    def forward(self, batch):
        return self.lin(batch.x).sum() / batch.num_real_nodes


class TakesTheSplit(OfSeeds):
    def forward(self, x, y, train_mask):
        return popgeo.nn.cross_entropy(self.lin(x), y, train_mask)


class ReadsTheSplit(OfSeeds):
    def forward(self, batch):
        return popgeo.nn.cross_entropy(self.lin(batch.x), batch.y, batch.train_mask)


class JoinsBoth(OfSeeds):
    def forward(self, x, y, train_mask, seeds_mask):
        return popgeo.nn.cross_entropy(self.lin(x), y, train_mask & seeds_mask)


REFUSED = {
    TakesTheNumber: "The model takes batch_size.* Take seeds_mask",
    MayTakeTheNumber: "The model takes batch_size.* Take seeds_mask",
    ReadsTheNumber: "batches differ in batch_size and input_id. Use seeds_mask",
    CountsItself: "batches differ in num_real_graphs. Use graphs_mask",
    CountsNodes: "batches differ in num_real_nodes. Use nodes_mask",
    TakesTheSplit: r"takes train_mask of a batch with seeds.* step\(batch, train_mask=batch.seeds_mask\)",
    ReadsTheSplit: "takes train_mask of a batch with seeds.* read both masks",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_step_refuses_what_differs_between_batches_of_seeds(kind):
    model = kind()
    step = popgeo.compile_step(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=REFUSED[kind]):
        step(next(iter(batches_of_seeds())))


def test_a_step_takes_the_masks_that_the_messages_name():
    batches = list(batches_of_seeds())
    for kind, given in ((TakesTheSplit, lambda batch: {"train_mask": batch.seeds_mask}), (JoinsBoth, lambda _: {})):
        model = kind()
        step = popgeo.compile_step(model, torch.optim.SGD(model.parameters(), 0.1))
        losses = [step(batch, **given(batch)) for batch in batches]
        assert all(loss.isfinite() for loss in losses)
    model = TakesTheSplit()  # clusters have no sampled neighbors, so their masks are those of a split
    step = popgeo.compile_step(model, torch.optim.SGD(model.parameters(), 0.1))
    step(next(iter(popgeo.FixedSizeClusterLoader(WHOLE, num_parts=4, batch_size=2))))


def test_a_number_of_seeds_that_is_given_is_refused_in_the_last_batch():
    model = TakesTheNumber()
    step = popgeo.compile_step(model, torch.optim.SGD(model.parameters(), 0.1))
    *full, last = batches_of_seeds()
    for batch in full:
        step(batch.x, batch.y, batch.batch_size)
    with pytest.raises(ValueError, match=r"`batch_size` is 7, but .* for 8.* given as seeds_mask"):
        step(last.x, last.y, last.batch_size)


def test_models_of_pyg_get_the_number_of_graphs_by_its_name():
    model = GraphSAGE(3, 4, 2, norm="GraphNorm").eval()
    forward = popgeo.compile_forward(model)
    for batch in batches_of_seeds():
        expected = model(batch.x, batch.edge_index, batch=batch.batch, batch_size=2)
        torch.testing.assert_close(forward(batch), expected)


def test_no_warning_is_lost_in_a_filter():
    batch = next(iter(batches_of_graphs()))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        summed(batch, torch.tensor(1.0))
    assert seen[0].filename == __file__
