"""The sizes of a batch as PopTorch Geometric has them: an object whose fields may be assigned to."""

from collections.abc import Sequence
from typing import Any

from popgeo import data


class FixedSizeOptions(data.FixedSizeOptions):
    """How many nodes, edges and graphs every batch has, padding included, and what fills padding.

    Everything else is `popgeo.data.FixedSizeOptions`, which says what each field means.

    Args:
        num_nodes: Nodes of a batch, or a number for each node type.
        num_edges: Edges of a batch, or a number for each edge type. None means `num_nodes * (num_nodes - 1)`, of all
            nodes together, which then holds for each edge type.
        num_graphs: Graphs of a batch, at least 2.
        node_pad_value: Fills node attributes of padding; None means 0.
        edge_pad_value: Fills edge attributes of padding; None means 0.
        graph_pad_value: Fills graph attributes of padding; None means 0.
        pad_graph_defaults: What padding graphs carry for attributes that are no tensors.

    Raises:
        ValueError: `num_graphs` is below 2.

    Example:
        >>> options = FixedSizeOptions(num_nodes=5)
        >>> options.num_graphs = 300
        >>> options.num_edges, options.num_graphs
        (20, 300)
        >>> options.to_hetero(["a", "b"], [("a", "to", "b")]).num_nodes
        {'a': 5, 'b': 5}
        >>> options.total_num_nodes
        10
    """

    __setattr__ = object.__setattr__
    __hash__ = None  # type: ignore[assignment]  # its fields change

    def __post_init__(self) -> None:
        validate_num_graphs(self.num_graphs)
        own = self.__dict__
        own["num_edges"] = None if self.num_edges == {} else self.num_edges
        own["pad_graph_defaults"] = dict(self.pad_graph_defaults or {})
        pads = ("node_pad_value", "edge_pad_value", "graph_pad_value")
        own.update({name: 0.0 if own[name] is None else own[name] for name in pads})
        super().__post_init__()

    def to_hetero(self, node_types: Sequence[Any], edge_types: Sequence[Any]) -> "FixedSizeOptions":
        """Gives every type a size of its own, in place: that of all, where there is one number."""
        if not isinstance(self.num_nodes, dict):
            self.__dict__["num_nodes"] = dict.fromkeys(node_types, self.num_nodes)
        if not isinstance(self.num_edges, dict):
            self.__dict__["num_edges"] = dict.fromkeys(edge_types, self.num_edges)
        return self

    def __repr__(self) -> str:
        kept = {name: f" (At least one {name[4:-1]} reserved for padding)" for name in _SIZES}
        fields = (f"{name}={value}{kept.get(name, '')}" for name, value in self._chosen().items())
        return f"{type(self).__name__}({', '.join(fields)})"


def validate_num_graphs(num_graphs: int) -> None:
    """Raises ValueError if a batch has no room for a real graph and a graph of padding."""
    if num_graphs < 2:
        raise ValueError(
            f"The number of graphs in the batch must be at least 2, a real one and one of padding; it is {num_graphs}."
        )


_SIZES = ("num_nodes", "num_edges", "num_graphs")
