"""Loops like PyG's examples print the same metrics with a fixed-size loader as with PyG's own loader.

Each loop runs twice: on PyG's batches, and on batches of fixed size with the same graphs in the same order. The only
differences are the changes in the table of `docs/from_pyg.md`.
"""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, SAGEConv, global_add_pool, global_mean_pool
from torch_geometric.transforms.pad import AttrNamePadding
from torch_geometric.utils import k_hop_subgraph, subgraph, to_dense_batch

import popgeo
from popgeo.nn import binary_cross_entropy, cross_entropy, l1_loss, roc_auc
from tests.support.large_graphs import library, random_graph

NUM_GRAPHS, BATCH = 11, 4  # the last batch of PyG has three graphs


def some_graphs() -> list[Data]:
    """Return graphs of several sizes with a class, a target, partly unknown tasks, and labels of nodes."""
    torch.manual_seed(0)
    graphs = []
    for i in range(NUM_GRAPHS):
        nodes = 3 + i % 4
        tasks = torch.randint(2, (1, 3)).float()
        tasks[0, i % 3] = torch.nan
        graph = Data(x=torch.randn(nodes, 4), edge_index=torch.randint(nodes, (2, 2 * nodes)), y=torch.tensor([i % 2]))
        graph.target, graph.tasks = torch.randn(1), tasks
        graph.edge_attr, graph.node_labels = torch.randn(2 * nodes, 4), torch.randint(2, (nodes, 3)).float()
        graphs.append(graph)
    return graphs


GRAPHS = some_graphs()
RECIPE = AttrNamePadding({"y": -100, "tasks": torch.nan})  # labels of padding, ignored by torch's losses and evaluators


def mask_of(batch: Data, level: str) -> Tensor:
    """Return the mask of real graphs, nodes or edges; all True for PyG's batches."""
    real = torch.ones(getattr(batch, f"num_{level}"), dtype=torch.bool)
    return batch.to_dict().get(f"{level}_mask", real)


def number_of(batch: Data, level: str) -> int:
    """Return the number of real graphs, nodes or edges."""
    is_ours = hasattr(batch, "num_real_graphs")
    return getattr(batch, f"num_real_{level}" if is_ours else f"num_{level}")


class Net(nn.Module):
    """A layer with edge attributes and a sum over each graph."""

    def __init__(self, out_channels: int = 2, pool=global_add_pool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.lin, self.pool = GINEConv(nn.Linear(4, 4)), nn.Linear(4, out_channels), pool

    def forward(self, x, edge_index, edge_attr, batch, num_graphs):
        return self.lin(self.pool(self.conv(x, edge_index, edge_attr).relu(), batch, num_graphs))


def out_of(model: nn.Module, batch: Data) -> Tensor:
    return model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, batch.num_graphs)


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# Graphs


def classifies_with_labels_that_padding_lacks(loader):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    total = correct = 0
    for batch in loader:
        out = out_of(model, batch)
        loss = functional.cross_entropy(out, batch.y)  # padding has class -100
        update(optimizer, loss)
        total += loss.item() * len(batch)
        correct += int((out.argmax(1) == batch.y).sum())
    return total / len(loader.dataset), correct / len(loader.dataset)


def classifies_with_a_mask(loader):
    model, total, correct = Net(), 0.0, 0
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _epoch in range(2):
        for batch in loader:
            out, mask = out_of(model, batch), mask_of(batch, "graphs")
            loss = cross_entropy(out, batch.y, mask)
            update(optimizer, loss)
            total += loss.item() * number_of(batch, "graphs")
            correct += int(((out.argmax(1) == batch.y) & mask).sum())
    return total / len(loader.dataset), correct / len(loader.dataset)


def classifies_in_a_compiled_step(loader):
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x, edge_index, edge_attr, batch, y, graphs_mask, num_graphs):
            out = self.net(x, edge_index, edge_attr, batch, num_graphs)
            return out, cross_entropy(out, y, graphs_mask)

    model, total, correct = Step(), 0.0, 0
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    compiled = popgeo.compile_step(model, optimizer)
    for batch in loader:
        mask = mask_of(batch, "graphs")
        if hasattr(batch, "num_real_graphs"):
            out, loss = compiled(batch)
        else:
            arguments = batch.x, batch.edge_index, batch.edge_attr, batch.batch, batch.y, mask, batch.num_graphs
            out, loss = model(*arguments)
            update(optimizer, loss)
        total += loss.item() * number_of(batch, "graphs")
        correct += int((out.argmax(1)[mask] == batch.y[mask]).sum())
    return total / len(loader.dataset), correct / len(loader.dataset)


def regresses(loader):
    model, total, error = Net(1, global_mean_pool), 0.0, 0.0
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for batch in loader:
        out, mask = out_of(model, batch).squeeze(1), mask_of(batch, "graphs")
        loss = l1_loss(out, batch.target, mask)
        update(optimizer, loss)
        total += loss.item() * number_of(batch, "graphs")
        error += float((out - batch.target)[mask].detach().abs().sum())
    return total / len(loader.dataset), error / len(loader.dataset)


@torch.no_grad()
def evaluates_one_task(loader):
    model, truth, scores = Net(1), [], []
    for batch in loader:
        mask = mask_of(batch, "graphs")
        scores.append(out_of(model, batch)[mask].squeeze(1))
        truth.append(batch.y[mask])
    return (float(roc_auc(torch.cat(scores), torch.cat(truth))),)


def evaluates_tasks_that_are_partly_unknown(loader):
    model, truth, scores = Net(3), [], []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for batch in loader:
        out = out_of(model, batch)
        known = batch.tasks == batch.tasks  # padding has tasks of NaN
        update(optimizer, functional.binary_cross_entropy_with_logits(out[known], batch.tasks[known]))
        truth.append(batch.tasks)
        scores.append(out.detach())
    truth, scores = torch.cat(truth), torch.cat(scores)
    of_tasks = zip(truth.T, scores.T, strict=True)
    return tuple(float(roc_auc(score[one == one], one[one == one])) for one, score in of_tasks)


@torch.no_grad()
def scores_nodes_of_many_graphs(loader):
    model, hits, found, wanted, total = SAGEConv(4, 3), 0, 0, 0, 0.0
    for batch in loader:
        mask = mask_of(batch, "nodes")
        out, labels = model(batch.x, batch.edge_index)[mask], batch.node_labels[mask]
        total += functional.binary_cross_entropy_with_logits(out, labels).item() * number_of(batch, "nodes")
        predicted = (out > 0).float()
        hits, found = hits + float((predicted * labels).sum()), found + float(predicted.sum())
        wanted += float(labels.sum())
    return 2 * hits / (found + wanted), total


@torch.no_grad()
def pools_dense_graphs(loader):
    total = 0.0
    for batch in loader:
        mask = mask_of(batch, "nodes")
        dense, filled = to_dense_batch(batch.x[mask], batch.batch[mask])
        assert len(dense) == number_of(batch, "graphs")
        total += float(dense.max(1).values.sum()) + float(filled.float().mean())
    return (total,)


def looks_at_single_graphs(loader):
    seen, edges = [], 0
    for batch in loader:
        seen += [float(graph.x.sum()) for graph in batch.to_data_list()]
        seen += [len(batch), float(batch[0].target), float(batch.get_example(len(batch) - 1).target)]
        seen += [graph.num_nodes for graph in batch[1:]] + [graph.num_nodes for graph in batch[[0, 2]]]
        edges += number_of(batch, "edges")
    return (*seen, edges)


@torch.no_grad()
def encodes_graphs_and_decodes_their_edges(loader):
    torch.manual_seed(2)
    encode, total, divergence = SAGEConv(4, 3), 0.0, 0.0
    for batch in loader:
        z, real = encode(batch.x, batch.edge_index), mask_of(batch, "edges")
        source, target = batch.edge_index[:, real]
        total += float(-torch.sigmoid((z[source] * z[target]).sum(1)).log().mean()) * number_of(batch, "edges")
        per_node = (1 - z.square() - z.exp()).sum(1)[mask_of(batch, "nodes")]
        divergence += float(-0.5 * per_node.mean()) / number_of(batch, "nodes")
    return total, divergence


def regresses_edges(loader):
    torch.manual_seed(7)
    model, total, error = nn.Linear(8, 4), 0.0, 0.0
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for batch in loader:
        out, mask = model(batch.x[batch.edge_index].transpose(0, 1).flatten(1)), mask_of(batch, "edges")
        loss = l1_loss(out, batch.edge_attr, mask)
        update(optimizer, loss)
        total += loss.item() * number_of(batch, "edges")
        error += float((out - batch.edge_attr)[mask].detach().abs().sum())
    return total, error


# Large graphs: PyG's sampling needs extensions, so this test makes batches with all neighbors itself.

WHOLE = random_graph()
WHOLE.x = WHOLE.x / 100
WHOLE.train_mask = torch.arange(WHOLE.num_nodes) % 3 > 0
SEEDS = torch.arange(50, 5, -2)


class Plain(list):
    """Batches in place of the batches of a PyG loader."""

    dataset = range(len(SEEDS))


def in_batches(ids: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.arange(len(ids)).split(size), ids.split(size), strict=True)


def with_all_neighbors(data: Data, seeds: Tensor, size: int) -> Plain:
    """Return the batches of `NeighborLoader(data, [-1, -1], seeds, batch_size=size)`."""
    made = Plain()
    for places, own in in_batches(seeds, size):
        nodes, _, _, _ = k_hop_subgraph(own, 2, data.edge_index, num_nodes=data.num_nodes)
        order = torch.cat([own, nodes[~torch.isin(nodes, own)]])
        number = torch.full((data.num_nodes,), -1)
        number[order] = torch.arange(len(order))
        edges = data.edge_index[:, torch.isin(data.edge_index, order).all(0)]
        made.append(
            Data(x=data.x[order], y=data.y[order], edge_index=number[edges], n_id=order, input_id=places,
                 batch_size=len(own), train_mask=data.train_mask[order])
        )  # fmt: skip
    return made


class Layers(nn.Module):
    """Two layers; their results at the seeds need two hops."""

    def __init__(self, out_channels: int = 4) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = SAGEConv(3, 8), SAGEConv(8, out_channels)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def trains_on_seeds(loader):
    model, total, correct, examples = Layers(), 0.0, 0, 0
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        y = batch.y[: batch.batch_size]
        loss = functional.cross_entropy(out, y)
        update(optimizer, loss)
        total += loss.item() * batch.batch_size
        correct += int((out.argmax(1) == y).sum())
        examples += batch.batch_size
    return total / examples, correct / examples


def trains_on_seeds_in_a_compiled_step(loader):
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Layers()

        def forward(self, x, edge_index, y, seeds_mask):
            out = self.net(x, edge_index)
            return out, cross_entropy(out, y, seeds_mask)

    model, total, correct = Step(), 0.0, 0
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = popgeo.compile_step(model, optimizer)
    for batch in loader:
        if "seeds_mask" in batch:
            out, loss = step(batch)
        else:
            out, loss = model(batch.x, batch.edge_index, batch.y, torch.arange(len(batch.x)) < batch.batch_size)
            update(optimizer, loss)
        total += loss.item() * batch.batch_size
        correct += int((out[: batch.batch_size].argmax(1) == batch.y[: batch.batch_size]).sum())
    return total / len(loader.dataset), correct / len(loader.dataset)


@torch.no_grad()
def fills_a_table_of_predictions(loader):
    model, table = Layers(), torch.zeros(len(SEEDS), 4)
    for batch in loader:
        table[batch.input_id] = model(batch.x, batch.edge_index)[: batch.batch_size]
        assert torch.equal(batch.n_id[: batch.batch_size], SEEDS[batch.input_id])
    return tuple(table.flatten().tolist())


@torch.no_grad()
def evaluates_splits_among_the_seeds(loader):
    model, correct, examples = Layers(), 0, 0
    for batch in loader:
        mask = batch.train_mask[: batch.batch_size]
        hits = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(1) == batch.y[: batch.batch_size]
        correct, examples = correct + int(hits[mask].sum()), examples + int(mask.sum())
    return correct, examples


LINKS, OF_LINKS = WHOLE.edge_index[:, ::9], torch.arange(27) % 2.0


def with_links(data: Data, links: Tensor, labels: Tensor, size: int) -> Plain:
    """Return the batches of `LinkNeighborLoader` for given links, on the whole graph."""
    return Plain(
        Data(x=data.x, edge_index=data.edge_index, edge_label_index=links[:, own], edge_label=labels[own], input_id=own)
        for _, own in in_batches(torch.arange(len(labels)), size)
    )


def predicts_links(loader):
    model, total, examples, scores, truth = Layers(), 0.0, 0, [], []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in loader:
        z, real = model(batch.x, batch.edge_index), mask_of_links(batch)
        score = (z[batch.edge_label_index[0]] * z[batch.edge_label_index[1]]).sum(1)
        loss = binary_cross_entropy(score, batch.edge_label, real)
        update(optimizer, loss)
        total += loss.item() * len(batch.input_id)
        examples += int(real.sum())
        scores.append(score[real].detach())
        truth.append(batch.edge_label[real])
    return total / examples, float(roc_auc(torch.cat(scores), torch.cat(truth)))


def mask_of_links(batch: Data) -> Tensor:
    real = torch.ones(len(batch.edge_label), dtype=torch.bool)
    return batch.edge_label_mask if "edge_label_mask" in batch else real


@torch.no_grad()
def looks_up_the_links_that_are_seeds(loader):
    ends = []
    for batch in loader:
        nodes = batch.n_id if "n_id" in batch else torch.arange(len(batch.x))
        found = nodes[batch.edge_label_index[:, mask_of_links(batch)]]
        assert torch.equal(found, LINKS[:, batch.input_id])
        ends += found.flatten().tolist()
    return tuple(ends)


PARTS = torch.arange(WHOLE.num_nodes) % 4


def of_parts(data: Data) -> Plain:
    """Return the batches of `ClusterLoader` with one cluster per batch, in order."""
    made = Plain()
    for part in range(4):
        own = (part == PARTS).nonzero().flatten()
        edges, _ = subgraph(own, data.edge_index, relabel_nodes=True, num_nodes=data.num_nodes)
        made.append(Data(x=data.x[own], y=data.y[own], edge_index=edges, train_mask=data.train_mask[own]))
    return made


def trains_on_clusters(loader):
    model, total, examples = Layers(), 0.0, 0
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in loader:
        out, mask = model(batch.x, batch.edge_index), batch.train_mask  # False in padding
        loss = functional.cross_entropy(out[mask], batch.y[mask])
        update(optimizer, loss)
        total += loss.item() * int(mask.sum())
        examples += int(mask.sum())
    return total / examples, examples


# Graphs with types


def hetero_graphs() -> list[HeteroData]:
    torch.manual_seed(4)
    graphs = []
    for i in range(NUM_GRAPHS):
        graph = HeteroData(y=torch.tensor([i % 2]))
        graph["atom"].x, graph["bond"].x = torch.randn(2 + i % 3, 4), torch.randn(3, 4)
        graph["atom", "in", "bond"].edge_index = torch.randint(2, (2, 4 + i % 2))
        graphs.append(graph)
    return graphs


@torch.no_grad()
def classifies_graphs_with_types(loader):
    model, correct, seen = SAGEConv((4, 4), 2), 0, []
    for batch in loader:
        out = model((batch["atom"].x, batch["bond"].x), batch["atom", "in", "bond"].edge_index)
        out = global_add_pool(out, batch["bond"].batch, batch.num_graphs)
        correct += int((out.argmax(1) == batch.y).sum())  # padding has class -100
        seen += [graph["atom"].num_nodes for graph in batch.to_data_list()]
        seen += [len(batch), number_of(batch, "nodes"), float(out.sum(1)[: len(batch)].sum())]
    return correct / len(loader.dataset), *seen


PAPERS = torch.arange(25, 2, -1)


def papers_with_all_authors(data: HeteroData, size: int) -> Plain:
    """Return the batches of `NeighborLoader(data, [-1], ("paper", PAPERS), batch_size=size)`, with all nodes."""
    made = Plain()
    for places, own in in_batches(PAPERS, size):
        batch = HeteroData()
        left = torch.arange(data["paper"].num_nodes)
        order = torch.cat([own, left[~torch.isin(left, own)]])
        number = order.argsort()
        batch["paper"].x, batch["author"].x = data["paper"].x[order], data["author"].x
        edges = data["author", "writes", "paper"].edge_index
        batch["author", "writes", "paper"].edge_index = torch.stack([edges[0], number[edges[1]]])
        batch["paper"].input_id, batch["paper"].batch_size = places, len(own)
        made.append(batch)
    return made


@torch.no_grad()
def predicts_papers(loader):
    torch.manual_seed(5)
    model, table = SAGEConv((1, 1), 2), torch.zeros(len(PAPERS), 2)
    total = 0
    for batch in loader:
        ends = batch["author"].x, batch["paper"].x
        out = model(ends, batch["author", "writes", "paper"].edge_index)[: batch["paper"].batch_size]
        table[batch["paper"].input_id] = out
        total += batch["paper"].batch_size
    return total, *table.flatten().tolist()


def of_pyg(graphs=GRAPHS):
    return DataLoader(graphs, BATCH)


def of_fixed_size(graphs=GRAPHS, **choices):
    return popgeo.FixedSizeDataLoader(graphs, BATCH + 1, **choices)


def with_recipe(graphs=GRAPHS):
    sizes = popgeo.FixedSizeOptions.from_dataset(graphs, BATCH + 1, graph_pad_value=RECIPE)
    return of_fixed_size(graphs, fixed_size_options=sizes)


LIBRARY = library()
SAMPLED = (
    partial(with_all_neighbors, WHOLE, SEEDS, 8),
    partial(popgeo.FixedSizeNeighborLoader, WHOLE, [-1, -1], SEEDS, batch_size=8),
)
OF_EDGES = (
    partial(with_links, WHOLE, LINKS, OF_LINKS, 10),
    partial(popgeo.FixedSizeLinkLoader, WHOLE, [-1, -1], LINKS, OF_LINKS, batch_size=10),
)
LOOPS = {
    classifies_with_labels_that_padding_lacks: (of_pyg, with_recipe),
    classifies_with_a_mask: (of_pyg, of_fixed_size),
    classifies_in_a_compiled_step: (of_pyg, of_fixed_size),
    regresses: (of_pyg, of_fixed_size),
    evaluates_one_task: (of_pyg, of_fixed_size),
    evaluates_tasks_that_are_partly_unknown: (of_pyg, with_recipe),
    scores_nodes_of_many_graphs: (of_pyg, of_fixed_size),
    pools_dense_graphs: (of_pyg, of_fixed_size),
    looks_at_single_graphs: (of_pyg, of_fixed_size),
    encodes_graphs_and_decodes_their_edges: (of_pyg, of_fixed_size),
    regresses_edges: (of_pyg, of_fixed_size),
    trains_on_seeds: SAMPLED,
    trains_on_seeds_in_a_compiled_step: SAMPLED,
    fills_a_table_of_predictions: SAMPLED,
    evaluates_splits_among_the_seeds: SAMPLED,
    predicts_links: OF_EDGES,
    looks_up_the_links_that_are_seeds: OF_EDGES,
    trains_on_clusters: (
        partial(of_parts, WHOLE),
        partial(popgeo.FixedSizeClusterLoader, WHOLE, parts=PARTS, batch_size=1, shuffle=False),
    ),
    classifies_graphs_with_types: (partial(of_pyg, hetero_graphs()), partial(with_recipe, hetero_graphs())),
    predicts_papers: (
        partial(papers_with_all_authors, LIBRARY, 7),
        partial(popgeo.FixedSizeNeighborLoader, LIBRARY, [-1], ("paper", PAPERS), batch_size=7),
    ),
}


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_prints_what_it_prints_with_the_loader_of_pyg(loop):
    plain, fixed = LOOPS[loop]
    torch.manual_seed(6)
    expected = loop(plain())
    torch.manual_seed(6)
    assert loop(fixed()) == pytest.approx(expected, rel=1e-4, abs=1e-6)
