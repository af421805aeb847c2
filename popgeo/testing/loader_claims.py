"""Claims about a loader or batch sampler: the graphs, order and ranks of its epochs, and the rows of its batches."""

import copy
from collections import deque
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor
from torch_geometric.data import Batch

from popgeo.testing.claims import BrokenError, Case, NotTriedError, SubjectKind, claim
from popgeo.testing.loader_subject import (
    DRAWS,
    MASKS,
    DrawnGraphs,
    LoaderSubject,
    numbers_of,
    order_of,
    planted_graphs,
    read_rows,
    require_once,
    set_epoch,
)

_BOTH = (SubjectKind.LOADER, SubjectKind.SAMPLER)
_RANKS = tuple({"world_size": number} for number in (2, 3, 4))


@claim("each graph once", *_BOTH, tried="two epochs, and one after an interrupted pass")
@claim("once over ranks", *_BOTH, tried="all ranks of 2, 3 and 4", settings=_RANKS)
@claim("once from workers", SubjectKind.LOADER, tried="2 workers", settings=({"num_workers": 2},))
def each_graph_once(subject: LoaderSubject, case: Case) -> None:
    """Check that each graph comes exactly once per epoch over all ranks or workers, or is counted as left out.

    Cause: the last batch is dropped, each worker or rank reads the whole dataset, or a sampler repeats graphs to
    balance ranks.
    """
    world_size = case.settings.get("world_size")
    ranks = [{"rank": rank, "world_size": world_size} for rank in range(world_size)] if world_size else [case.settings]
    loaders = [subject.make(case.graphs, **choices) for choices in ranks]
    for epoch in (0, 1):
        batches = [rows for loader in loaders for rows in subject.epoch(loader, case, epoch)]
        require_once(batches, case.graphs, loaders[0], f"in epoch {epoch} over {dict(case.settings) or 'one process'}")
    if not case.settings:
        next(iter(loaders[0]), None)
        again = subject.epoch(loaders[0], case)
        require_once(again, case.graphs, loaders[0], "after a pass that was interrupted at its first batch")


@claim("equal ranks", *_BOTH, settings=_RANKS)
def ranks_are_equal(subject: LoaderSubject, case: Case) -> None:
    """Check that all ranks have equally many batches.

    Tried: the batches of 2, 3 and 4 ranks are counted.

    Cause: batches are distributed unevenly. The rank with more batches then waits forever for the others.
    """
    size = case.settings["world_size"]
    lengths = [len(subject.epoch(subject.make(case.graphs, rank=r, world_size=size), case)) for r in range(size)]
    if len(set(lengths)) > 1:
        raise BrokenError(f"{size} ranks have {lengths} batches")


@claim("new random numbers", SubjectKind.LOADER, settings=tuple({"library": library} for library in DRAWS))
def random_numbers_are_new(subject: LoaderSubject, case: Case) -> None:
    """Check that a dataset draws a different random number for each graph and in each epoch.

    Tried: a dataset draws a number for each requested graph, from 2 workers, in two epochs.

    Cause: workers copy one state of a generator (numpy's issue of 2018 in torch's workers), or each epoch sets the same
    seed. Seed by torch.initial_seed() and the worker's number.
    """
    loader = subject.make(DrawnGraphs(case.graphs, case.settings["library"]), num_workers=2)
    drawn: list[set[float]] = []
    for epoch in (0, 1):
        batches = subject.epoch(loader, case, epoch, needs=["x"])
        drawn.append({float(draw) for rows in batches for draw in rows["x"][rows["nodes_mask"], 0]})
        if len(drawn[-1]) < len(case.graphs):
            raise BrokenError(f"{len(case.graphs)} graphs have {len(drawn[-1])} different random numbers")
    if drawn[0] & drawn[1]:
        raise BrokenError("epoch 1 repeats random numbers of epoch 0")


@claim("resumes", *_BOTH)
def resumes(subject: LoaderSubject, case: Case) -> None:
    """Check that a resumed run continues with the graphs that the whole run would have had.

    Tried: state_dict in the middle of epoch 1, load_state_dict into a new loader, and the next epoch.

    Cause: the position is not in the state, counts prefetched batches, or a restart draws another order.
    """
    whole, loader, again = (subject.make(case.graphs) for _ in range(3))
    if not hasattr(loader, "state_dict"):
        raise NotTriedError("the loader has no state_dict")
    expected = [order_of(subject.epoch(whole, case)) for _ in range(3)]
    half = max(1, len(subject.epoch(loader, case)) // 2)
    batches = iter(loader)
    used = [read_rows(subject.read(batch), case.graphs) for batch in islice(batches, half)]
    again.load_state_dict(copy.deepcopy(loader.state_dict()))
    found = [order_of([*used, *subject.epoch(again, case)]), order_of(subject.epoch(again, case))]
    for epoch, order in enumerate(found, 1):
        if order != expected[epoch]:
            raise BrokenError(
                f"after a stop at batch {half} of epoch 1, epoch {epoch} has the graphs {order[:9]}, but without a "
                f"stop {expected[epoch][:9]}"
            )


@claim("order changes", *_BOTH)
def order_changes(subject: LoaderSubject, case: Case) -> None:
    """Check that each epoch has its own order.

    Tried: the orders of three epochs are compared.

    Cause: set_epoch does not reach the sampler, or the sampler's generator is seeded again for each epoch.
    """
    loader = subject.make(case.graphs)
    orders = [order_of(subject.epoch(loader, case, epoch)) for epoch in range(3)]
    if all(order == sorted(order) for order in orders):  # the planted graphs are numbered in their order
        raise NotTriedError("the loader keeps the order of the graphs")
    if len(case.graphs) < 5:
        raise NotTriedError("there are too few graphs")
    if any(orders[i] == orders[k] for i, k in ((0, 1), (1, 2), (0, 2))):
        raise BrokenError(f"two of three epochs have the same order: {orders[0][:9]}")


@claim("order by seed", *_BOTH)
def order_comes_again(subject: LoaderSubject, case: Case) -> None:
    """Check that only the seed and the number of the epoch determine the order.

    Tried: two loaders of one seed, one of another seed, and one after set_epoch(1) are compared, while torch's global
    generator changes.

    Cause: the order is drawn from torch's global generator, or from a generator with other users.
    """
    orders = []
    with torch.random.fork_rng():
        for drawn, seed in enumerate((5, 5, 6)):
            torch.manual_seed(drawn)
            loader = subject.make(case.graphs, seed=seed)
            orders.append([order_of(subject.epoch(loader, case)) for _ in range(2)])
    if orders[0] != orders[1]:
        raise BrokenError(f"loaders of one seed have different orders: {orders[0][0][:9]} and {orders[1][0][:9]}")
    if orders[0] == orders[2] and len(case.graphs) > 4:
        raise BrokenError(f"loaders of seeds 5 and 6 have the same order: {orders[0][0][:9]}")
    late = subject.make(case.graphs, seed=5)
    if set_epoch(late, 1) and order_of(subject.epoch(late, case)) != orders[0][1]:
        raise BrokenError("after set_epoch(1), epoch 1 has a different order than after epoch 0")


def _first(wrong: Tensor) -> int | None:
    """Return the first row that is wrong, if there is one."""
    return int(wrong.nonzero()[0]) if wrong.any() else None


@claim("graphs come whole", SubjectKind.LOADER)
def graphs_come_whole(subject: LoaderSubject, case: Case) -> None:
    """Check that no node and no edge of a graph is cut off.

    Tried: the nodes and edges of each graph are counted by their numbers.

    Cause: rows above a budget are cut off. Refuse such a graph, or count it.
    """
    for rows in subject.epoch(subject.make(case.graphs), case, needs=["x"]):
        present = {kind: {*numbers.tolist()} for kind, numbers in numbers_of(rows).items()}
        for graph in (graph for graph in case.graphs if float(graph.y) in present["graph"]):
            for kind, numbers in numbers_of(graph).items():
                left = sum(number in present.get(kind, numbers) for number in numbers.tolist())
                if left < len(numbers):
                    raise BrokenError(f"graph {int(graph.y)} has {left} of its {len(numbers)} {kind}s in its batch")


@claim("nodes know their graph", SubjectKind.LOADER)
def nodes_know_their_graph(subject: LoaderSubject, case: Case) -> None:
    """Check that `batch` assigns each real node to its own graph.

    Tried: the graph number in a node's features is compared to y[batch].

    Cause: batch is computed from sizes before trimming or sorting, or starts at the wrong number.
    """
    for rows in subject.epoch(subject.make(case.graphs), case, needs=["x", "batch"]):
        led = rows["y"][rows["batch"], 0]
        if (at := _first(rows["nodes_mask"] & (led != rows["x"][:, 1]))) is not None:
            raise BrokenError(f"node {at} is in graph {int(rows['x'][at, 1])}, but batch assigns graph {int(led[at])}")


@claim("edges stay in their graph", SubjectKind.LOADER)
def edges_stay(subject: LoaderSubject, case: Case) -> None:
    """Check that a real edge joins real nodes of one graph, and a padding edge joins padding nodes.

    Tried: the graphs of both ends of each edge are compared, by the nodes' features.

    Cause: edge_index is not shifted by the number of earlier nodes, or padding edges join the real node 0.
    """
    for rows in subject.epoch(subject.make(case.graphs), case, needs=["x", "edge_index"]):
        ends, num_nodes = rows["edge_index"], len(rows["x"])
        if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < num_nodes:
            found = f"{int(ends.min())} to {int(ends.max())}"
            raise BrokenError(f"edges join nodes {found}, but the batch has {num_nodes} nodes")
        one, other = torch.where(rows["nodes_mask"], rows["x"][:, 1], 0)[ends]
        real = rows.get("edges_mask", torch.ones(ends.shape[1], dtype=torch.bool))
        if (at := _first((one != other) | ((one > 0) != real))) is not None:
            kind = "real" if real[at] else "padding"
            raise BrokenError(f"{kind} edge {at} joins nodes of graphs {one[at]:.0f} and {other[at]:.0f}; 0 is padding")


@claim("edge features by id", SubjectKind.LOADER)
def edge_features_belong(subject: LoaderSubject, case: Case) -> None:
    """Check that the features of an edge are in its row.

    Tried: the ends in an edge's features are compared to its nodes.

    Cause: edges are sorted, filtered or reversed, but their features keep the old order (PyG issue 9566).
    """
    for rows in subject.epoch(subject.make(case.graphs), case, needs=["x", "edge_index", "edge_attr"]):
        ends = rows["x"][rows["edge_index"].clamp(max=len(rows["x"]) - 1), 0]
        if (at := _first(rows["edges_mask"] & (ends != rows["edge_attr"][:, :2].T).any(0))) is not None:
            features = rows["edge_attr"][at, :2].int().tolist()
            raise BrokenError(f"edge {at} joins nodes {ends[:, at].int().tolist()}, but has the features of {features}")


@claim("masks tell the truth", SubjectKind.LOADER)
def masks_tell_the_truth(subject: LoaderSubject, case: Case) -> None:
    """Check that masks are True for real rows and False for padding.

    Tried: each row with a True mask must be in the data, and each row of the data must have a True mask.

    Cause: the mask is computed from sizes before trimming, belongs to the previous batch, or is False for real rows.
    """
    known = numbers_of(Batch.from_data_list(list(case.graphs)))
    for rows in subject.epoch(subject.make(case.graphs), case):
        for kind, numbers in numbers_of(rows).items():
            real, planted = rows[MASKS[kind]], torch.isin(numbers, known[kind])
            if len(real) != len(numbers):
                raise BrokenError(f"{MASKS[kind]} has {len(real)} entries for {len(numbers)} {kind}s")
            if (at := _first(real & ~planted)) is not None:
                raise BrokenError(f"{kind} {at} of a batch is padding, but its mask is True")
            if (at := _first(planted & ~real & ~torch.isin(numbers, numbers[real]))) is not None:
                raise BrokenError(f"{kind} {at} of a batch is real, but its mask is False")


@claim("one shape", SubjectKind.LOADER)
def shapes_stay(subject: LoaderSubject, case: Case) -> None:
    """Check that all batches with masks have one shape, and that their number is the loader's length.

    Tried: the shapes of all batches with masks are compared, and their number is compared to len.

    Cause: the last batch is shorter, or padded to its own size; or len counts before packing.
    """
    loader = subject.make(case.graphs)
    length = None
    with suppress(TypeError):  # a loader of a stream has no length
        length = len(loader)
    batches = subject.epoch(loader, case)
    if length not in (None, len(batches)):
        raise BrokenError(f"len is {length}, but {len(batches)} batches come")
    if all(bool(rows[mask].all()) for rows in batches for mask in MASKS.values() if mask in rows):
        raise NotTriedError("batches have no padding")
    shapes = {tuple((name, tuple(tensor.shape)) for name, tensor in rows.items()) for rows in batches}
    if len(shapes) > 1:
        raise BrokenError(f"batches of one epoch have {len(shapes)} shapes: {sorted(shapes)[:2]}")


@claim("too large is loud", SubjectKind.LOADER)
def too_large_is_loud(subject: LoaderSubject, case: Case) -> None:
    """Check that a graph above the budget is refused, comes whole, or is counted.

    Tried: a graph forty times as large as the largest is added to the others.

    Cause: graphs above the budget are silently skipped or cut. Raise ValueError, or count them in num_skipped.
    """
    sizes = [graph.num_nodes for graph in case.graphs]
    larger = replace(case, graphs=tuple(planted_graphs([*sizes, 40 * max(sizes)])))
    try:
        loader = subject.make(larger.graphs)
        batches = subject.epoch(loader, larger)
    except ValueError:
        return
    require_once(batches, larger.graphs, loader, "after one of them has grown")
    if len(larger.graphs) in order_of(batches):
        graphs_come_whole(subject, larger)


@claim("nothing is written over", SubjectKind.LOADER)
def nothing_is_written_over(subject: LoaderSubject, case: Case) -> None:
    """Check that making further batches changes neither earlier batches nor the given graphs.

    Tried: the given graphs and the first batch are compared to their copies after the epoch.

    Cause: a collate function changes edge_index in place, or several batches share memory.
    """
    graphs = tuple(copy.deepcopy(graph) for graph in case.graphs)
    batches = iter(subject.make(graphs))
    first = subject.read(next(batches))
    held = read_rows(first, graphs)
    deque(islice(batches, 4 * len(graphs)), maxlen=0)
    after = read_rows(first, graphs)
    if changed := [name for name in held if not torch.equal(held[name], after[name])]:
        raise BrokenError(f"making later batches changed {changed[0]} of the first batch")
    for given, kept in zip(graphs, case.graphs, strict=True):
        if changed := [name for name, tensor in kept.items() if not torch.equal(given[name], tensor)]:
            raise BrokenError(f"the loader changed {changed[0]} of graph {int(kept.y)} in the given list")
