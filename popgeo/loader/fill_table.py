"""How full the batches of an epoch are: one line for a terminal, a table for a notebook."""

import numpy as np
import pandas as pd

from popgeo.data.axes import Axis
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.packing import Packs, totals_of_packs


def filling(sizes: np.ndarray, packs: Packs, options: FixedSizeOptions, axes: tuple[Axis, ...]) -> pd.DataFrame:
    """What a batch has room for and what the graphs of an epoch use of it.

    Args:
        sizes: Nodes and edges (of each type) of each graph. int64 [num_graphs, num_dimensions]
        packs: The batches of an epoch.
        options: Sizes of a batch.
        axes: The node or edge type of each dimension.

    Returns:
        One row for each of `axes`, and one for the graphs: `slots` of a batch, `real` ones of a mean batch, and their
        share, `full`, 0 to 1.
    """
    real = totals_of_packs(sizes, packs.indices, packs.ptr).sum(axis=0) / max(1, len(packs))
    slots = [options.slots(axis) for axis in axes]
    table = pd.DataFrame(
        {"slots": [*slots, options.num_graphs], "real": [*real, packs.num_graphs / max(1, len(packs))]},
        index=[*(axis.label for axis in axes), "graphs"],
    )
    return table.assign(full=table["real"] / table["slots"].clip(lower=1))


def in_one_line(table: pd.DataFrame | None, packs: Packs, options: FixedSizeOptions, num_node_types: int) -> str:
    """`4 graphs -> 2 batches of 8 nodes, 9 edges, 4 graphs; 68.8 % full`, where full is said of the nodes.

    Without a table, as long as sizes have not been read, it does not say how full they are.
    """
    full = ""
    if table is not None:
        nodes = table.iloc[:num_node_types]
        full = f"; {100 * nodes['real'].sum() / max(1, nodes['slots'].sum()):.1f} % full"
    skipped = f"; {len(packs.skipped):,} skipped" if len(packs.skipped) else ""
    return (
        f"{packs.num_graphs:,} graphs -> {len(packs):,} batches of {options.total_num_nodes:,} nodes, "
        f"{options.total_num_edges:,} edges, {options.num_graphs:,} graphs{full}{skipped}"
    )


def as_html(table: pd.DataFrame) -> str:
    """The table as a notebook shows it."""
    shown = {"slots": "{:,}".format, "real": "{:,.1f}".format, "full": "{:.1%}".format}
    renamed = {"slots": "slots of a batch", "real": "real, on average", "full": "full"}
    formatted = {renamed[name]: table[name].map(form) for name, form in shown.items()}
    return pd.DataFrame(formatted).to_html()
