"""The sizes of a batch as PopTorch Geometric has them: an object whose fields may be assigned to."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from popgeo import data

Sizes = int | dict[Any, int]


def validate_num_graphs(num_graphs: int) -> None:
    """Refuses batches that cannot hold a real graph and one of padding.

    Raises:
        ValueError: `num_graphs` is below 2.

    Example:
        >>> validate_num_graphs(2)
    """
    if num_graphs < 2:
        raise ValueError(
            f"The number of graphs in the batch must be at least 2, a real one and one of padding; it is {num_graphs}."
        )


class FixedSizeOptions:
    """How many nodes, edges and graphs every batch has, padding included, and what fills padding.

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

    def __init__(
        self,
        num_nodes: Sizes,
        num_edges: Sizes | None = None,
        num_graphs: int = 2,
        node_pad_value: float | None = None,
        edge_pad_value: float | None = None,
        graph_pad_value: float | None = None,
        pad_graph_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_nodes = num_nodes
        missing = num_edges is None or num_edges == {}
        self.num_edges: Sizes = self.total_num_nodes * (self.total_num_nodes - 1) if missing else num_edges  # type: ignore[assignment]
        validate_num_graphs(num_graphs)
        self.num_graphs = num_graphs
        self.node_pad_value = 0.0 if node_pad_value is None else node_pad_value
        self.edge_pad_value = 0.0 if edge_pad_value is None else edge_pad_value
        self.graph_pad_value = 0.0 if graph_pad_value is None else graph_pad_value
        self.pad_graph_defaults = dict(pad_graph_defaults or {})

    @property
    def total_num_nodes(self) -> int:
        """Nodes of a batch over all types."""
        return sum(self.num_nodes.values()) if isinstance(self.num_nodes, dict) else self.num_nodes

    @property
    def total_num_edges(self) -> int:
        """Edges of a batch over all types."""
        return sum(self.num_edges.values()) if isinstance(self.num_edges, dict) else self.num_edges

    def is_hetero(self) -> bool:
        """Whether both sizes are given per type."""
        return isinstance(self.num_nodes, dict) and isinstance(self.num_edges, dict)

    def to_hetero(self, node_types: Sequence[str], edge_types: Sequence[Any]) -> "FixedSizeOptions":
        """Gives every type a size of its own, in place: that of all, where there is one number."""
        if not isinstance(self.num_nodes, dict):
            self.num_nodes = dict.fromkeys(node_types, self.num_nodes)
        if not isinstance(self.num_edges, dict):
            self.num_edges = dict.fromkeys(edge_types, self.num_edges)
        return self

    def as_popgeo(self, **changes: Any) -> data.FixedSizeOptions:
        """The same as `popgeo.data.FixedSizeOptions`.

        Args:
            changes: Fields that differ.

        Raises:
            ValueError: a size is too small to hold a graph and its padding.
        """
        return data.FixedSizeOptions(**{**{name: vars(self)[name] for name in _FIELDS}, **changes})

    @classmethod
    def of_popgeo(cls, options: data.FixedSizeOptions) -> "FixedSizeOptions":
        """Sizes that popgeo has chosen."""
        return cls(options.num_nodes, options.num_edges, options.num_graphs)

    @classmethod
    def from_dataset(
        cls, dataset: Any, batch_size: int, sample_limit: int | None = None, progress_bar: bool | None = None
    ) -> "FixedSizeOptions":
        """Sizes that hold any `batch_size - 1` graphs of a dataset and one of padding.

        Args:
            dataset: Graphs, of one kind or several kinds of nodes.
            batch_size: Graphs of a batch, padding included.
            sample_limit: Measure only so many graphs; later ones may then not fit.
            progress_bar: Whether to show a bar.

        Raises:
            ValueError: `batch_size` is below 2, or the dataset is empty.

        Example:
            >>> import torch
            >>> from torch_geometric.data import Data
            >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, n).long()) for n in (2, 5)]
            >>> FixedSizeOptions.from_dataset(graphs, batch_size=4).num_nodes
            16
        """
        validate_num_graphs(batch_size)
        return cls.of_popgeo(data.FixedSizeOptions.from_dataset(dataset, batch_size, sample_limit, progress_bar))

    @classmethod
    def from_loader(cls, loader: Iterable[Any], sample_limit: int = 1000) -> "FixedSizeOptions":
        """The largest sizes in up to `sample_limit` batches of a loader, and one more of each for padding.

        The loader is run through once at most.

        Raises:
            ValueError: the loader is empty.
        """
        return cls.of_popgeo(data.FixedSizeOptions.from_loader(loader, sample_limit))

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, FixedSizeOptions) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # its fields change

    def __repr__(self) -> str:
        kept = {name: f" (At least one {name[4:-1]} reserved for padding)" for name in _SIZES}
        fields = (f"{name}={value}{kept.get(name, '')}" for name, value in vars(self).items())
        return f"{type(self).__name__}({', '.join(fields)})"


_FIELDS = tuple(inspect.signature(FixedSizeOptions).parameters)
_SIZES = ("num_nodes", "num_edges", "num_graphs")
