"""Names of attributes: the level of each, the names that a batch makes, and the values of padding."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from torch_geometric.transforms.pad import Padding


class FillValues(TypedDict, total=False):
    """The values of padding and the rows of graph attributes, as arguments of `FixedSizeOptions`."""

    node_pad_value: "float | Padding | None"
    edge_pad_value: "float | Padding | None"
    graph_pad_value: "float | Padding | None"
    pad_graph_defaults: Mapping[str, Any] | None
    num_rows: Mapping[str, int] | None


SPLIT_MASKS = ("train_mask", "val_mask", "test_mask")
"""Masks of the nodes of a split."""
TRIMMED = ("num_trimmed_nodes", "num_trimmed_edges")
"""Numbers of nodes and edges that trimming removed from each graph."""

COUNT_NODES = ("x", "feat", "pos", "node_type", "n_id")
"""Attributes by which PyG counts nodes: they have one row per node."""
COUNT_EDGES = ("edge_index", "edge_weight", "edge_attr", "edge_type", "e_id")
"""Attributes by which PyG counts edges: they have one row per edge."""
OF_NODES = {*COUNT_NODES, "z", "batch", "nodes_mask", *SPLIT_MASKS, "forces", "charges", "magmoms"}
"""Attributes with one row per node. A name that contains `node` belongs to nodes, too, if the numbers of rows agree."""
OF_EDGES = {*COUNT_EDGES, "edges_mask", "edge_shift"}
"""Attributes with one row per edge. A name that contains `edge` belongs to edges, too, if the numbers of rows agree."""
OF_GRAPHS = {"graphs_mask", *TRIMMED}
"""Attributes with one row per graph."""
OF_STRUCTURES = {"cell", "pbc", "stress", "virial", "virials", "dipole", "quadrupole"}
"""Attributes of the graph, even if they have as many rows as there are nodes."""
LABELS = {"y", "label", "labels", "target", "targets", "energy", "charge", "weight", "smiles", "name", "idx"}
LABELS |= {"cutoff", *OF_STRUCTURES}
"""Attributes whose only row belongs to the graph, even if the graph has one node."""
NODE_FEATURES, EDGE_FEATURES = {"x", "pos"}, {"edge_index", "edge_attr", "edge_weight"}
"""Attributes that never belong to the graph: a wrong number of rows is an error."""

NUMBERS = {*OF_NODES, *OF_EDGES}
"""Attributes that must be tensors: PyG would silently keep a list of them as a list."""

JOINS = {"edge_index", "ptr", "rowptr"}
"""Attributes that say how nodes, edges and graphs are connected."""
MADE_BY_BATCH = {"batch", "ptr", "num_nodes", "num_edges"}
"""Attributes that PyG's collate makes again for a batch, or keeps as plain numbers."""
MADE_BY_SAMPLING = ("seeds_mask", "tree", *TRIMMED)
"""Attributes that a batch of a large graph has in addition."""
MADE_FOR_LINKS = ("edge_label_index", "edge_label", "edge_label_mask")
"""Attributes that a batch has in addition if its seeds are edges."""

NEVER_PADDED = {*SPLIT_MASKS, *MADE_BY_SAMPLING, "edge_label_mask", "n_id", "e_id"}
"""Attributes that are 0 in padding, whatever fills the features: padding is in no split, is no seed, and its numbers
name an existing row."""

PADDED_WITH = {"edge_shift": 1e3}
"""Default values of padding other than 0. An edge of length 0 has no direction, so its derivatives are NaN. The shift
of a padding edge is longer than any cutoff (1,732 in the unit of positions)."""

_FIXED = {
    **dict.fromkeys((*COUNT_NODES, "batch", "nodes_mask"), "node"),
    **dict.fromkeys((*COUNT_EDGES, "edges_mask"), "edge"),
    **dict.fromkeys(OF_GRAPHS, "graph"),
}
_REGISTERED: dict[str, str] = {}


def register_attributes(nodes: Collection[str] = (), edges: Collection[str] = (), graphs: Collection[str] = ()) -> None:
    """Register the level of attributes once, instead of passing `levels=` in each call.

    Neither the name of an attribute nor its number of rows always tells its level: in a ring of 6 atoms, an attribute
    `twist` of 6 rows may belong to atoms or to bonds. Stores, loaders, collaters, `Pad` and `popgeo.data.write` use a
    registered level in every later call. The argument `levels=` of a call overrides it. Loaders, collaters and `Pad`
    keep the levels that were registered when they were made, so that worker processes use the same ones. A store on
    disk records the level of each attribute.

    Args:
        nodes: Names of attributes with one row per node.
        edges: Names of attributes with one row per edge.
        graphs: Names of attributes that belong to the whole graph.

    Raises:
        ValueError: a name has a different level in this call, by an earlier call, or by PyG's conventions.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from popgeo.data import FlatStore
        >>> register_attributes(edges=["bond_twist"])
        >>> bonds = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> ring = Data(x=torch.ones(3, 1), edge_index=bonds, bond_twist=torch.zeros(3))
        >>> FlatStore.from_dataset([ring])
        FlatStore(1 graphs, 3 nodes, 3 edges; x: node, edge_index: edge, bond_twist: edge)
    """
    known = {**_FIXED, **_REGISTERED}
    for level, names in (("node", nodes), ("edge", edges), ("graph", graphs)):
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{level}s is {names!r}; pass a list of names, as {level}s=['twist'].")
        for name in names:
            if known.setdefault(name, level) != level:
                raise ValueError(
                    f"Attribute {name!r} belongs to {known[name]}s, so it cannot be registered for {level}s. If only "
                    f"one dataset uses the name for {level}s, pass levels={{{name!r}: {level!r}}} with this dataset."
                )
    _REGISTERED.update({name: level for name, level in known.items() if name not in _FIXED})


def with_registered(levels: Mapping[Any, Any] | None) -> Mapping[Any, Any] | None:
    """Return the levels of one call together with the registered levels; None without any."""
    return {**_REGISTERED, **(levels or {})} or None
