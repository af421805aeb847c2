"""What a loader promises of its batches: whole graphs, edges and features in their places, masks that are true."""

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
    """The first row of which something is wrong."""
    return int(wrong.nonzero()[0]) if wrong.any() else None


@claim("graphs come whole", SubjectKind.LOADER)
def graphs_come_whole(subject: LoaderSubject, case: Case) -> None:
    """No node and no edge of a graph is cut off.

    Tried: nodes and edges of each graph are counted by their numbers.

    Cause: rows above a budget are cut off: refuse such a graph, or count it.
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
    """`batch` leads from each real node to its own graph.

    Tried: the graph in a node's features is compared to y[batch].

    Cause: batch is made of sizes before trimming or sorting, or counts from another start.
    """
    for rows in subject.epoch(subject.made(case.graphs), case, needs=["x", "batch"]):
        led = rows["y"][rows["batch"], 0]
        at = _first(rows["nodes_mask"] & (led != rows["x"][:, 1]))
        if at is not None:
            raise BrokenError(f"node {at} is of graph {int(rows['x'][at, 1])}, and batch leads to graph {int(led[at])}")


@claim("edges stay in their graph", SubjectKind.LOADER)
def edges_stay(subject: LoaderSubject, case: Case) -> None:
    """A real edge joins real nodes of one graph, and a padding edge joins padding nodes.

    Tried: the graphs of both ends of each edge, by their features.

    Cause: edge_index is not moved by the number of nodes before its graph, or padding edges join the real node 0.
    """
    for rows in subject.epoch(subject.made(case.graphs), case, needs=["x", "edge_index"]):
        ends, num_nodes = rows["edge_index"], len(rows["x"])
        if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < num_nodes:
            raise BrokenError(f"edges join nodes {int(ends.min())} to {int(ends.max())} of a batch of {num_nodes}")
        one, other = torch.where(rows["nodes_mask"], rows["x"][:, 1], 0)[ends]
        real = rows.get("edges_mask", torch.ones(ends.shape[1], dtype=torch.bool))
        at = _first((one != other) | ((one > 0) != real))
        if at is not None:
            found, kind = (int(one[at]), int(other[at])), "real" if real[at] else "padding"
            raise BrokenError(f"{kind} edge {at} joins nodes of graphs {found[0]} and {found[1]}; 0 is padding")


@claim("edge features by id", SubjectKind.LOADER)
def edge_features_belong(subject: LoaderSubject, case: Case) -> None:
    """The features of an edge are in its row.

    Tried: the ends that are in an edge's features are compared to its nodes.

    Cause: edges are sorted, filtered or reversed, and their features are left in the old order (PyG issue 9566).
    """
    for rows in subject.epoch(subject.made(case.graphs), case, needs=["x", "edge_index", "edge_attr"]):
        ends = rows["x"][rows["edge_index"].clamp(max=len(rows["x"]) - 1), 0]
        at = _first(rows["edges_mask"] & (ends != rows["edge_attr"][:, :2].T).any(0))
        if at is not None:
            said = rows["edge_attr"][at, :2].int().tolist()
            raise BrokenError(f"edge {at} joins nodes {ends[:, at].int().tolist()} and has the features of {said}")


@claim("masks tell the truth", SubjectKind.LOADER)
def masks_tell_the_truth(subject: LoaderSubject, case: Case) -> None:
    """Masks are True for all that is real, and for nothing else.

    Tried: each row marked as real is looked for in the data; each that is in the data is looked for among the real.

    Cause: the mask is made of sizes before trimming, is the previous batch's, or is False if something is real.
    """
    known = numbers_of(Batch.from_data_list(list(case.graphs)))
    for rows in subject.epoch(subject.made(case.graphs), case):
        for kind, numbers in numbers_of(rows).items():
            real, planted = rows[MASKS[kind]], torch.isin(numbers, known[kind])
            if len(real) != len(numbers):
                raise BrokenError(f"{MASKS[kind]} has {len(real)} entries for {len(numbers)} {kind}s")
            at = _first(real & ~planted)
            if at is not None:
                raise BrokenError(f"{kind} {at} of a batch is padding, and its mask says that it is real")
            at = _first(planted & ~real & ~torch.isin(numbers, numbers[real]))
            if at is not None:
                raise BrokenError(f"{kind} {at} of a batch is real, and its mask says that it is padding")


@claim("one shape", SubjectKind.LOADER)
def shapes_stay(subject: LoaderSubject, case: Case) -> None:
    """Batches with masks all have one shape, and there are the same number as the loader's length says.

    Tried: the shapes of all batches that have masks, and their number next to len.

    Cause: the last batch is shorter, or padded to its own size; or len counts before packing.
    """
    loader = subject.made(case.graphs)
    said = None
    with suppress(TypeError):  # one without a length, such as a stream's
        said = len(loader)
    batches = subject.epoch(loader, case)
    if said not in (None, len(batches)):
        raise BrokenError(f"len says {said} batches, and {len(batches)} come")
    if all(bool(rows[mask].all()) for rows in batches for mask in MASKS.values() if mask in rows):
        raise NotTriedError("batches have no padding")
    shapes = {tuple((name, tuple(tensor.shape)) for name, tensor in rows.items()) for rows in batches}
    if len(shapes) > 1:
        raise BrokenError(f"batches of one epoch have {len(shapes)} shapes: {sorted(shapes)[:2]}")


@claim("too large is loud", SubjectKind.LOADER)
def too_large_is_loud(subject: LoaderSubject, case: Case) -> None:
    """A graph above the budget is refused, comes whole, or is counted.

    Tried: a graph forty times as large as the largest is put among the others.

    Cause: graphs above the budget are skipped or cut silently: raise ValueError, or count it in num_skipped.
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
    """Making further batches changes neither those made before nor the graphs that were given.

    Tried: the graphs given and the first batch are compared to copies after the epoch.

    Cause: a collate function moves edge_index in place, or batches share memory that the next one is written to.
    """
    graphs = tuple(copy.deepcopy(graph) for graph in case.graphs)
    batches = iter(subject.made(graphs))
    first = subject.read(next(batches))
    held = read_rows(first, graphs)
    deque(islice(batches, 4 * len(graphs)), maxlen=0)
    after = read_rows(first, graphs)
    changed = [name for name in held if not torch.equal(held[name], after[name])]
    if changed:
        raise BrokenError(f"{changed[0]} of the first batch has changed when the last batch has been made")
    for given, kept in zip(graphs, case.graphs, strict=True):
        changed = [name for name, tensor in kept.items() if not torch.equal(given[name], tensor)]
        if changed:
            raise BrokenError(f"{changed[0]} of graph {int(kept.y)}, in the list that was given, was changed")
