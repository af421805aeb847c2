"""Two runs of a model on the same graphs in different batches: if they differ, and what usually causes it."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from popgeo.testing.claims import BrokenError
from popgeo.testing.differences import Difference, difference, loss_of, noise_of
from popgeo.testing.fixed_batches import FixedBatch
from popgeo.testing.observe import Observation

with Path(__file__).with_name("causes.csv").open(newline="", encoding="utf-8") as _file:
    CAUSES = {row["of"]: row["cause"] for row in csv.DictReader(_file)}


@dataclass(frozen=True, kw_only=True)
class ModelRun:
    """A run of the model on a batch.

    Attributes:
        batch: What it ran on.
        run: What it left.
        places: The rows of each kind that are compared, in which order.
    """

    batch: FixedBatch
    run: Observation
    places: Mapping[str, Tensor]

    def rows(self, kind: str | None, tensor: Tensor) -> Tensor:
        """The rows of a tensor that are compared; all where `kind` is None."""
        return tensor if kind is None else tensor[self.places[kind].to(tensor.device)]

    def graph_of(self, kind: str, row: int) -> int:
        """The graph that a row of `rows` belongs to."""
        return int(torch.searchsorted(self.batch.counts[kind].cumsum(0), self.places[kind][row], right=True))

    def of_graphs(self, order: Sequence[int]) -> "ModelRun":
        """The same run, of which the rows of some graphs are compared, in this order."""
        places = {}
        for kind, counts in self.batch.counts.items():
            parts = torch.arange(int(counts.sum())).split(counts.tolist())
            places[kind] = torch.cat([parts[i] for i in order])
        return replace(self, places=places)


def kinds_of_rows(one: ModelRun, other: ModelRun) -> dict[str, str | None]:
    """For each result whether it has a row for each graph, node or edge; None if it has as many in any batch.

    Raises:
        ValueError: a result is none of that.
    """
    kinds = {}
    for name, tensor in one.run.tensors.items():
        known, kinds[name] = _kind_of_rows(tensor, other.run.tensors[name], one.batch, other.batch)
        if not known:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} in a batch of {dict(one.batch.slots)} and "
                f"{tuple(other.run.tensors[name].shape)} in one of {dict(other.batch.slots)}: no row for each graph, "
                "node or edge. Return such rows or scalars, or pass call=lambda model, batch: ... that leaves it out."
            )
    return kinds


def compare_runs(
    found: ModelRun,
    expected: ModelRun,
    why: str,
    *,
    kinds: Mapping[str, str | None],
    loss: Callable[[Any, Any], Tensor] | None = None,
    tolerance: float | None = None,
    rows_only: bool = False,
) -> None:
    """Raises BrokenError if a result, the loss, a buffer or a gradient differs.

    Args:
        found: A run.
        expected: Another, on the same graphs.
        why: In what their batches differ.
        kinds: The kind of rows that each result has, from `kinds_of_rows`.
        loss: What gradients are taken of, as in `check_padding_invariance`.
        tolerance: See `difference`.
        rows_only: Whether only the results of graphs, nodes and edges are compared.
    """

    def require_alike(subject: str, new: Tensor, old: Tensor, usual: str = "scalar", **scale: float) -> None:
        apart = difference(new, old, tolerance, **scale)
        if apart is not None:
            _fail(subject, apart, found, expected, why, usual)

    for name, kind in kinds.items():
        result, old = found.run.tensors[name], expected.rows(kind, expected.run.tensors[name])
        if kind is not None and len(result) != (slots := found.batch.slots[kind]):
            raise BrokenError(
                f"{name} has {len(result)} rows in a batch of {slots} {kind}s, padding included.",
                "a number of graphs that is read off the batch, as by a pooling without its size: pass num_graphs",
            )
        apart = None if kind is None and rows_only else difference(found.rows(kind, result), old, tolerance)
        if apart is not None:
            place = "" if kind is None or apart.row is None else f" of graph {expected.graph_of(kind, apart.row)}"
            if apart.row is not None and kind != "graph":
                place += f" ({f'{kind} ' if kind else ''}row {apart.row})"
            _fail(name + place, apart, found, expected, why, "scalar" if apart.row is None else "rows")
    if rows_only:
        return
    new, old_loss = (_loss(seen, kinds, loss) for seen in (found, expected))
    if new is not None and old_loss is not None:
        require_alike("the loss", new, old_loss)
    for name, buffer in expected.run.buffers.items():
        require_alike(f"buffer {name}", found.run.buffers[name], buffer, "buffer")
    if new is None or old_loss is None:
        return
    new_slopes, slopes = found.run.gradients(new), expected.run.gradients(old_loss)
    scale = noise_of(slopes)
    for name, slope in slopes.items():
        if not slope.isfinite().all() and not new_slopes[name].isfinite().all():  # which would count as alike
            raise BrokenError(
                f"the gradient of {name} is not finite at fixed size, neither with {expected.batch} nor with "
                f"{found.batch}.",
                CAUSES["not finite gradient"],
            )
        require_alike(f"the gradient of {name}", new_slopes[name], slope, scale=scale)


def _loss(seen: ModelRun, kinds: Mapping[str, str | None], loss: Callable[[Any, Any], Tensor] | None) -> Tensor | None:
    """What is trained on; None if nothing is."""
    if loss is not None:
        return loss(seen.run.result, seen.batch.batch)
    trained = [seen.rows(kinds[name], tensor) for name, tensor in seen.run.tensors.items() if tensor.requires_grad]
    return loss_of(trained) if trained else None


def _kind_of_rows(one: Tensor, other: Tensor, in_one: FixedBatch, in_other: FixedBatch) -> tuple[bool, str | None]:
    """Whether it is known how a tensor of two batches goes by rows, and by which."""
    if one.dim() and other.dim() and one.shape[1:] == other.shape[1:]:
        for kind in in_one.slots:
            if (one.shape[0], other.shape[0]) == (in_one.slots[kind], in_other.slots[kind]):
                return True, kind
        if (one.shape[0], other.shape[0]) == (in_one.used_graphs, in_other.used_graphs):
            return True, "graph"
    return one.shape == other.shape, None


def _fail(subject: str, apart: Difference, found: ModelRun, expected: ModelRun, why: str, usual: str) -> None:
    cause = CAUSES["not finite" if not math.isfinite(apart.found) else usual] if why == "padding" else ""
    raise BrokenError(
        f"{subject} depends on {why}: {apart.found:.6g} with {found.batch}, and {apart.expected:.6g} with "
        f"{expected.batch}; {apart.allowed:.1e} apart is allowed.{_entry(found, expected)}",
        cause,
        found=apart.found,
        expected=apart.expected,
        allowed=apart.allowed,
    )


def _entry(found: ModelRun, expected: ModelRun) -> str:
    """The submodule whose result differs first, and whether what it was given differs already."""

    def differ(one: Tensor | None, other: Tensor | None) -> bool:
        if one is None or other is None:
            return False
        known, kind = _kind_of_rows(one, other, found.batch, expected.batch)
        if not known:
            return False
        new, old = found.rows(kind, one), expected.rows(kind, other)
        return new.shape == old.shape and difference(new, old) is not None

    for new, old in zip(found.run.parts, expected.run.parts, strict=False):
        if new.name != old.name:
            break
        if differ(new.given, old.given):
            return f"\nIt comes in before {new.name}."
        if differ(new.made, old.made):
            return f"\nIt comes in with {new.name}."
    return ""
