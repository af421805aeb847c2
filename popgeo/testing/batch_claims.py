"""Claims about a loader's batches: whole graphs, edges and features in the right rows, correct masks."""

import copy
from collections import deque
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor
from torch_geometric.data import Batch

from popgeo.testing.claims import BrokenError, Case, NotTriedError, SubjectKind, claim
from popgeo.testing.loader_subject import LoaderSubject, order_of, require_once
from popgeo.testing.planted_graphs import MASKS, numbers_of, planted_graphs, read_rows


def _first(wrong: Tensor) -> int | None:
    """Return the first row that is wrong, if there is one."""
    return int(wrong.nonzero()[0]) if wrong.any() else None


@claim("graphs come whole", SubjectKind.LOADER)
def graphs_come_whole(subject: LoaderSubject, case: Case) -> None:
    """Check that no node and no edge of a graph is cut off.

    Tried: the nodes and edges of each graph are counted by their numbers.

    Cause: rows above a budget are cut off. Refuse such a graph, or count it.
    """
    for rows in subject.epoch(subject.made(case.graphs), case, needs=["x"]):
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
    for rows in subject.epoch(subject.made(case.graphs), case, needs=["x", "batch"]):
        led = rows["y"][rows["batch"], 0]
        at = _first(rows["nodes_mask"] & (led != rows["x"][:, 1]))
        if at is not None:
            raise BrokenError(f"node {at} is in graph {int(rows['x'][at, 1])}, but batch assigns graph {int(led[at])}")


@claim("edges stay in their graph", SubjectKind.LOADER)
def edges_stay(subject: LoaderSubject, case: Case) -> None:
    """Check that a real edge joins real nodes of one graph, and a padding edge joins padding nodes.

    Tried: the graphs of both ends of each edge are compared, by the nodes' features.

    Cause: edge_index is not shifted by the number of earlier nodes, or padding edges join the real node 0.
    """
    for rows in subject.epoch(subject.made(case.graphs), case, needs=["x", "edge_index"]):
        ends, num_nodes = rows["edge_index"], len(rows["x"])
        if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < num_nodes:
            found = f"{int(ends.min())} to {int(ends.max())}"
            raise BrokenError(f"edges join nodes {found}, but the batch has {num_nodes} nodes")
        one, other = torch.where(rows["nodes_mask"], rows["x"][:, 1], 0)[ends]
        real = rows.get("edges_mask", torch.ones(ends.shape[1], dtype=torch.bool))
        at = _first((one != other) | ((one > 0) != real))
        if at is not None:
            kind = "real" if real[at] else "padding"
            raise BrokenError(f"{kind} edge {at} joins nodes of graphs {one[at]:.0f} and {other[at]:.0f}; 0 is padding")


@claim("edge features by id", SubjectKind.LOADER)
def edge_features_belong(subject: LoaderSubject, case: Case) -> None:
    """Check that the features of an edge are in its row.

    Tried: the ends in an edge's features are compared to its nodes.

    Cause: edges are sorted, filtered or reversed, but their features keep the old order (PyG issue 9566).
    """
    for rows in subject.epoch(subject.made(case.graphs), case, needs=["x", "edge_index", "edge_attr"]):
        ends = rows["x"][rows["edge_index"].clamp(max=len(rows["x"]) - 1), 0]
        at = _first(rows["edges_mask"] & (ends != rows["edge_attr"][:, :2].T).any(0))
        if at is not None:
            features = rows["edge_attr"][at, :2].int().tolist()
            raise BrokenError(f"edge {at} joins nodes {ends[:, at].int().tolist()}, but has the features of {features}")


@claim("masks tell the truth", SubjectKind.LOADER)
def masks_tell_the_truth(subject: LoaderSubject, case: Case) -> None:
    """Check that masks are True for real rows and False for padding.

    Tried: each row with a True mask must be in the data, and each row of the data must have a True mask.

    Cause: the mask is computed from sizes before trimming, belongs to the previous batch, or is False for real rows.
    """
    known = numbers_of(Batch.from_data_list(list(case.graphs)))
    for rows in subject.epoch(subject.made(case.graphs), case):
        for kind, numbers in numbers_of(rows).items():
            real, planted = rows[MASKS[kind]], torch.isin(numbers, known[kind])
            if len(real) != len(numbers):
                raise BrokenError(f"{MASKS[kind]} has {len(real)} entries for {len(numbers)} {kind}s")
            at = _first(real & ~planted)
            if at is not None:
                raise BrokenError(f"{kind} {at} of a batch is padding, but its mask is True")
            at = _first(planted & ~real & ~torch.isin(numbers, numbers[real]))
            if at is not None:
                raise BrokenError(f"{kind} {at} of a batch is real, but its mask is False")


@claim("one shape", SubjectKind.LOADER)
def shapes_stay(subject: LoaderSubject, case: Case) -> None:
    """Check that all batches with masks have one shape, and that their number is the loader's length.

    Tried: the shapes of all batches with masks are compared, and their number is compared to len.

    Cause: the last batch is shorter, or padded to its own size; or len counts before packing.
    """
    loader = subject.made(case.graphs)
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
        loader = subject.made(larger.graphs)
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
    batches = iter(subject.made(graphs))
    first = subject.read(next(batches))
    held = read_rows(first, graphs)
    deque(islice(batches, 4 * len(graphs)), maxlen=0)
    after = read_rows(first, graphs)
    changed = [name for name in held if not torch.equal(held[name], after[name])]
    if changed:
        raise BrokenError(f"making later batches changed {changed[0]} of the first batch")
    for given, kept in zip(graphs, case.graphs, strict=True):
        changed = [name for name, tensor in kept.items() if not torch.equal(given[name], tensor)]
        if changed:
            raise BrokenError(f"the loader changed {changed[0]} of graph {int(kept.y)} in the given list")
