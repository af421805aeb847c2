"""Comparison of two runs of a model on the same graphs in different batches, with the usual cause of a difference."""

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
        batch: Batch of the run.
        run: Results of the run.
        places: Rows of each kind to compare, in order.
    """

    batch: FixedBatch
    run: Observation
    places: Mapping[str, Tensor]

    def rows(self, kind: str | None, tensor: Tensor) -> Tensor:
        """Return the rows of a tensor to compare; all rows if `kind` is None."""
        return tensor if kind is None else tensor[self.places[kind].to(tensor.device)]

    def graph_of(self, kind: str, row: int) -> int:
        """Return the graph of a row of `rows`."""
        return int(torch.searchsorted(self.batch.counts[kind].cumsum(0), self.places[kind][row], right=True))

    def of_graphs(self, order: Sequence[int]) -> "ModelRun":
        """Return the same run with only the rows of some graphs to compare, in this order."""
        places = {}
        for kind, counts in self.batch.counts.items():
            parts = torch.arange(int(counts.sum())).split(counts.tolist())
            places[kind] = torch.cat([parts[i] for i in order])
        return replace(self, places=places)


def kinds_of_rows(one: ModelRun, other: ModelRun) -> dict[str, str | None]:
    """Return whether each result has a row per graph, node or edge; None if its shape is fixed.

    Raises:
        ValueError: the rows of a result are none of these.
    """
    kinds = {}
    for name, tensor in one.run.tensors.items():
        known, kinds[name] = _kind_of_rows(tensor, other.run.tensors[name], one.batch, other.batch)
        if not known:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} in a batch of {dict(one.batch.slots)} and "
                f"{tuple(other.run.tensors[name].shape)} in a batch of {dict(other.batch.slots)}: no row for each "
                "graph, node or edge. Return such rows or scalars, or pass call=lambda model, batch: ... without it."
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
    """Raise BrokenError if a result, the loss, a buffer or a gradient differs.

    Args:
        found: A run.
        expected: Another run on the same graphs.
        why: The difference between their batches.
        kinds: Kind of the rows of each result, from `kinds_of_rows`.
        loss: Loss function, as in `check_padding_invariance`.
        tolerance: Largest relative difference, as in `difference`.
        rows_only: Whether to compare only results with rows of graphs, nodes and edges.
    """

    def require_alike(subject: str, new: Tensor, old: Tensor, usual: str = "scalar", **scale: float) -> None:
        if (apart := difference(new, old, tolerance, **scale)) is not None:
            _fail(subject, apart, found, expected, why, usual)

    for name, kind in kinds.items():
        result, old = found.run.tensors[name], expected.rows(kind, expected.run.tensors[name])
        if kind is not None and len(result) != (slots := found.batch.slots[kind]):
            raise BrokenError(
                f"{name} has {len(result)} rows in a batch of {slots} {kind}s, padding included.",
                "the number of graphs is inferred from the batch, as in a pooling without size: pass num_graphs",
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
        if not slope.isfinite().all() and not new_slopes[name].isfinite().all():  # these would count as equal
            raise BrokenError(
                f"the gradient of {name} is not finite at fixed size, neither with {expected.batch} nor with "
                f"{found.batch}.",
                CAUSES["not finite gradient"],
            )
        require_alike(f"the gradient of {name}", new_slopes[name], slope, scale=scale)


def _loss(seen: ModelRun, kinds: Mapping[str, str | None], loss: Callable[[Any, Any], Tensor] | None) -> Tensor | None:
    """Return the loss of a run; None if no result needs a gradient."""
    if loss is not None:
        return loss(seen.run.result, seen.batch.batch)
    trained = [seen.rows(kinds[name], tensor) for name, tensor in seen.run.tensors.items() if tensor.requires_grad]
    return loss_of(trained) if trained else None


def _kind_of_rows(one: Tensor, other: Tensor, in_one: FixedBatch, in_other: FixedBatch) -> tuple[bool, str | None]:
    """Return whether the rows of a tensor in two batches have a known kind, and the kind."""
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
        f"{subject} depends on {why}: {apart.found:.6g} with {found.batch}, but {apart.expected:.6g} with "
        f"{expected.batch}; a difference of {apart.allowed:.1e} is allowed.{_first_difference(found, expected)}",
        cause,
        found=apart.found,
        expected=apart.expected,
        allowed=apart.allowed,
    )


def _first_difference(found: ModelRun, expected: ModelRun) -> str:
    """Return a sentence that names the first submodule with a different result."""

    def differ(one: Tensor | None, other: Tensor | None) -> bool:
        """Check whether two tensors of the runs differ in their rows."""
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
            return f"\nThe difference begins before {new.name}."
        if differ(new.made, old.made):
            return f"\nThe difference begins in {new.name}."
    return ""
