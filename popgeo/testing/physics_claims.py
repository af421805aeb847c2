"""Claims about the physics of energies and forces: symmetry, additivity, consistency, and a smooth cutoff."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from popgeo.testing.claims import BrokenError, Case, NotTriedError, SubjectKind, claim
from popgeo.testing.compare_runs import ModelRun
from popgeo.testing.differences import difference, require_alike
from popgeo.testing.gradient_claims import STEP
from popgeo.testing.input_claims import first_nodes
from popgeo.testing.model_subject import ModelSubject

_TURN = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
_TURN = _TURN * torch.linalg.det(_TURN).sign()
_MIRROR = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64))
_MOTIONS = {"translation": torch.eye(3, dtype=torch.float64), "rotation": _TURN, "reflection": _MIRROR @ _TURN}
_TOLERANCE = 1e-6  # in float64, relative to the largest entry


@claim("translation", SubjectKind.MODEL, optional=True, settings=[{"motion": "translation"}])
@claim("rotation", SubjectKind.MODEL, optional=True, settings=[{"motion": "rotation"}])
@claim("reflection", SubjectKind.MODEL, optional=True, settings=[{"motion": "reflection"}])
def motion(subject: ModelSubject, case: Case) -> None:
    """Check that position and orientation of a graph do not change energies, and that forces rotate with it.

    Tried: positions, cells and shifts are moved in float64; results of three columns, or of three by three, may rotate
    with them, and all other numbers must stay.

    Cause: positions, or components of vectors, are used as features. Use distances, angles or equivariant layers
    instead, and subtract the center.
    """
    name = case.settings["motion"]
    turn = _MOTIONS[name]
    shift = torch.tensor([3.0, -2.0, 1.0], dtype=torch.float64) * (name == "translation")

    def move(batch: Batch) -> Batch:
        _positions(batch)
        for key in subject.vectors:
            if key in batch and batch[key].shape[-1:] == (3,):
                batch[key] = batch[key] @ turn.T + (shift if key == "pos" else 0.0)
        return batch

    before, after = subject.see(case.graphs, wide=True), subject.see(case.graphs, wide=True, change=move)
    for key, kind in subject.kinds().items():
        old, new = (seen.rows(kind, seen.run.tensors[key]) for seen in (before, after))
        if old.is_floating_point():
            old, new = old.double(), new.double()
            ways = [old, *([old @ turn.T] if old.shape[-1:] == (3,) else ())]
            ways += [turn @ old @ turn.T] if old.shape[-2:] == (3, 3) else []
            apart = [difference(new, way, _TOLERANCE) for way in ways]
            worst = apart[-1]
            if worst is not None and None not in apart:
                raise BrokenError(
                    f"{key} is {worst.found:.6g} after a {name}, but {worst.expected:.6g} is expected (row {worst.row})"
                )


@claim("extensive energy", SubjectKind.MODEL, optional=True)
def extensive(subject: ModelSubject, case: Case) -> None:
    """Check that two copies of a graph that are far apart have twice its energy.

    Tried: two copies of a graph, far apart, as one graph, in float64.

    Cause: a mean over nodes instead of a sum, a term of the number of nodes, or an interaction without a cutoff.
    """
    graph = min(case.graphs, key=lambda graph: graph.num_nodes or 0)
    if not isinstance(graph, Data) or "cell" in graph:
        raise NotTriedError("it needs graphs of one type without a cell")
    graph = graph.clone().apply(lambda x: x.double() if x.is_floating_point() else x)
    other = graph.clone()
    if "pos" in graph:
        other.pos = graph.pos + 100.0 * (1.0 + float(graph.pos.abs().max()))
    both = Batch.from_data_list([graph, other])
    joined = graph.clone()
    for name in graph.to_dict():
        if graph.is_node_attr(name) or graph.is_edge_attr(name):
            joined[name] = both[name]
    if "num_nodes" in graph:
        joined.num_nodes = 2 * graph.num_nodes
    one, two = (_energies(subject, subject.see([g], wide=True)) for g in (graph, joined))

    words = "is {found:.6g}, but twice the energy of one is {expected:.6g}"
    require_alike("the energy of two copies", two, 2 * one, _TOLERANCE, words)


@claim("forces", SubjectKind.MODEL)
def forces(subject: ModelSubject, case: Case) -> dict[str, float]:
    """Check that forces are the negative gradient of the energy with respect to the positions.

    Tried: forces in float64 along random directions of all positions are compared to differences of the energy. If the
    model returns only energies, the gradient of their sum is used.

    Cause: a wrong sign, a gradient of scaled or detached energies or of one graph's energy only, or forces from their
    own output layer.
    """
    seen = subject.see(case.graphs, wide=True)
    if subject.named(seen, subject.energy) is None:
        raise NotTriedError(
            f"no result has the key {subject.energy!r}; pass the keys of the model's results as energy= and forces="
        )
    force = subject.named(seen, subject.forces)
    if force is None:  # the model returns only energies, and users compute forces as their gradient
        force = _negative_gradient(subject, *_run_at(subject, case.graphs))
    way = torch.randn(force.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def moved(sign: float) -> Tensor:
        def move(batch: Batch) -> Batch:
            batch.pos = _positions(batch) + sign * STEP * way[: batch.num_nodes]
            return batch

        return _energies(subject, subject.see(case.graphs, wide=True, change=move))

    expected = -(moved(1.0) - moved(-1.0)).flatten() / (2 * STEP)
    owner = seen.batch.batch.batch
    along = (force.detach() * way).sum(1).double()
    found = torch.zeros(owner.max() + 1, dtype=torch.float64).index_add(0, owner, along)

    words = "of graph {row} along a random direction are {found:.6g}, but the energy decreases by {expected:.6g}"
    require_alike("the forces", found[: len(expected)], expected, 1e-4, words)
    return {"largest difference": float((found[: len(expected)] - expected).abs().detach().max())}


def _run_at(subject: ModelSubject, graphs: Sequence[Any], place: Tensor | None = None) -> tuple[ModelRun, Tensor]:
    """Return a run in float64, with atoms at given positions, and the differentiable positions."""
    leaves: list[Tensor] = []

    def track(batch: Batch) -> Batch:
        batch.pos = (_positions(batch) if place is None else place).detach().clone().requires_grad_()
        leaves.append(batch.pos)
        return batch

    return subject.see(graphs, wide=True, change=track), leaves[-1]


@torch.enable_grad()
def _negative_gradient(subject: ModelSubject, seen: ModelRun, pos: Tensor) -> Tensor:
    """Return the forces [num_nodes, 3]: the negative gradient of the sum of energies, or NaN without a gradient."""
    energy = _energies(subject, seen)
    if not energy.requires_grad:
        raise NotTriedError("the energy has no gradient with respect to the positions")
    (slope,) = torch.autograd.grad(energy.sum(), pos, allow_unused=True)
    return torch.full_like(pos, torch.nan) if slope is None else -slope


@claim("smooth cutoff", SubjectKind.MODEL)
def smooth_cutoff(subject: ModelSubject, case: Case) -> dict[str, float]:
    """Check that energy and forces do not jump at the cutoff distance.

    Tried: the energy of three atoms and its slope are compared on both sides of the cutoff, in float64.

    Cause: a cutoff without an envelope, or an envelope with a slope at the cutoff. Multiply messages by a cosine or
    polynomial envelope.
    """
    cutoff = subject.cutoff if subject.cutoff is not None else getattr(subject.what, "cutoff", None)
    if not isinstance(cutoff, int | float | Tensor):
        raise NotTriedError("the cutoff is unknown; pass cutoff=")
    cutoff = float(cutoff)
    three = first_nodes(case.graphs[0], 3)

    def at(distance: float) -> tuple[float, float]:
        place = torch.tensor([[0.0, 0, 0], [distance, 0, 0], [0, 0.6 * cutoff, 0]], dtype=torch.float64)
        graph = three.clone()
        graph.pos = place.float()
        for name in [name for name in three.to_dict() if three.is_edge_attr(name) and name != "edge_index"]:
            del graph[name]
        if "edge_index" in graph:
            apart = torch.cdist(place, place) + torch.eye(3) * 2 * cutoff
            graph.edge_index = (apart < cutoff).nonzero().T
        try:
            seen, pos = _run_at(subject, [graph], place)
        except Exception as error:
            raise NotTriedError(f"the model does not run on three atoms without edge attributes: {error}") from error
        force = subject.named(seen, subject.forces)
        force = _negative_gradient(subject, seen, pos) if force is None else force
        return float(_energies(subject, seen).sum().detach()), float(-force[1, 0].detach())

    step = 1e-7 * cutoff
    inside, outside, near, far = (at(x) for x in (cutoff - step, cutoff + step, 0.8 * cutoff, 1.2 * cutoff))
    scales = [max(abs(near[0] - far[0]), 1e-9), max(abs(near[1] - far[1]), 1e-9)]
    if near == far:
        raise NotTriedError("two atoms at 0.8 of the cutoff do not interact")
    figures = {}
    for name, a, b, scale in zip(("energy", "slope"), inside, outside, scales, strict=True):
        figures[f"jump of the {name}"] = abs(a - b) / scale
        if not abs(a - b) <= 1e-3 * scale:
            raise BrokenError(
                f"the {name} is {a:.6g} just inside of the cutoff of {cutoff:g}, but {b:.6g} just outside; at 0.8 of "
                f"the cutoff, the two atoms change it by {scale:.3g}"
            )
    return figures


def _positions(batch: Any) -> Tensor:
    if "pos" not in batch:
        raise NotTriedError("the graphs have no pos")
    return batch.pos


def _energies(subject: ModelSubject, seen: ModelRun) -> Tensor:
    """Return the energies of graphs: the result with this key, or else all results with a row per graph."""
    energy = subject.named(seen, subject.energy)
    if energy is None:
        of_graphs = [name for name, kind in subject.kinds().items() if kind == "graph"]
        tensors = [seen.run.tensors[name].flatten(1) for name in of_graphs if seen.run.tensors[name].dim()]
        if not tensors:
            raise NotTriedError("no result has one row per graph")
        energy = torch.cat(tensors, 1)
    rows = energy.reshape(len(energy) if energy.dim() else 1, -1)
    return rows[: len(seen.places["graph"])].double()
