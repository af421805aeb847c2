"""What a row of an attribute belongs to: a node, an edge or the whole graph."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch import Tensor

StoreKey: TypeAlias = str | tuple[str, str, str] | None
"""A node type, an edge type, or None for the one store of `Data` and the global store of `HeteroData`."""

Levels: TypeAlias = Mapping[Any, "str | Level"]
"""What attributes' rows belong to, as `{"y": "graph"}`; a key may also name the store, as `("paper", "y")`."""

_NODE_NAMES = {"x", "feat", "pos", "batch", "node_type", "n_id", "z", "train_mask", "val_mask", "test_mask"}


class Level(Enum):
    """What a row of an attribute belongs to.

    Example:
        >>> Level("graph")
        <Level.GRAPH: 'graph'>
    """

    NODE = "node"
    EDGE = "edge"
    GRAPH = "graph"


def infer_level(name: str, rows: Tensor, num_nodes: Tensor | None, num_edges: Tensor | None) -> Level:
    """Decides what the rows of an attribute belong to, from its name and from its row counts in all graphs.

    A name that says node or edge wins where the counts agree; one row in every graph is a graph's; otherwise the
    counts decide. Looking at every graph, not at one, keeps a label of five tasks from becoming a node attribute
    because one graph has five nodes.

    Args:
        name: Name of the attribute.
        rows: Its rows in each graph. [num_graphs]
        num_nodes: Nodes of each graph, None in a store that has no nodes. [num_graphs]
        num_edges: Edges of each graph, None in a store that has no edges. [num_graphs]

    Example:
        >>> infer_level("y", torch.tensor([1, 1]), torch.tensor([1, 1]), torch.tensor([0, 2]))
        <Level.GRAPH: 'graph'>
    """
    like_nodes = num_nodes is not None and torch.equal(rows, num_nodes)
    like_edges = num_edges is not None and torch.equal(rows, num_edges)
    if like_edges and ("edge" in name or name == "e_id"):
        return Level.EDGE
    if like_nodes and ("node" in name or name in _NODE_NAMES):
        return Level.NODE
    if bool((rows == 1).all()):
        return Level.GRAPH
    return Level.NODE if like_nodes else Level.EDGE if like_edges else Level.GRAPH
