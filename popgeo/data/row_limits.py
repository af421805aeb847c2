"""The rows that a batch keeps for graph attributes with a varying number of rows."""

import warnings
from collections.abc import Mapping

import numpy as np

from popgeo.data.attribute_names import LABELS
from popgeo.data.axes import Level
from popgeo.data.flat_store import FlatStore


def row_limits(store: FlatStore, num_graphs: int, known: Mapping[str, int], each_once: bool) -> dict[str, int]:
    """Return `num_rows` for `FixedSizeOptions.with_rows_for`, which documents the errors and the warning.

    Args:
        store: The dataset.
        num_graphs: Real graphs of a batch.
        known: Rows that the user states.
        each_once: Whether a batch holds each graph at most once.
    """
    rows = dict(known)
    for axis, pointer in store.row_pointers.items():
        if axis.level is not Level.GRAPH or axis.name is None or axis.name in rows or not len(store):
            continue
        counts = store.counts(axis)
        largest, first = int(counts.argmax()), int(counts[0])
        if pointer.diff().min() == pointer.diff().max():
            continue
        needed = 1 + int(np.sort(counts)[-num_graphs:].sum() if each_once else counts[largest] * num_graphs)
        if axis.name in LABELS and (counts != first).any():
            other = int((counts != first).argmax())
            raise ValueError(
                f"Graph {other} has {counts[other]} rows in {axis.name!r} and graph 0 has {first}. A label has the "
                f"same number of rows in every graph, or one per node or edge. Correct the graphs, or pass "
                f"FixedSizeOptions(num_rows={{{axis.name!r}: {needed}}}) if the numbers of rows are right."
            )
        if not each_once and counts.mean() * num_graphs < 0.1 * needed:
            fewer = int(counts[largest] + 2 * counts.mean() * num_graphs) + 1
            warnings.warn(
                f"A batch keeps {needed:,} rows for {axis.name!r}, as graph {largest} has {counts[largest]:,}; "
                f"the mean is {counts.mean():.1f}, so more than 90 % of the rows are padding. Pass a smaller number, "
                f"as FixedSizeOptions(num_rows={{{axis.name!r}: {fewer}}}), take the sizes from "
                "FixedSizeOptions.tune, or leave that graph out.",
                stacklevel=5,
            )
        rows[axis.name] = needed
    return rows
