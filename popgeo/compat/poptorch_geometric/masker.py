"""Where a model says that it masks padding, and what masks it: interfaces, and the one that masks nothing."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

Entries = Tensor | tuple[Tensor, ...]
Mask = Tensor | None
Layer = Callable[..., Any]


class Masker(ABC):
    """What a model calls to mask the entries that padding has added."""

    @abstractmethod
    def node_masker(self, node_entries: Entries, mask: Mask = None) -> Entries:
        """Masks entries of nodes. [num_nodes, ...]"""

    @abstractmethod
    def edge_masker(self, edge_entries: Entries, mask: Mask = None) -> Entries:
        """Masks entries of edges. [num_edges, ...]"""

    @abstractmethod
    def graph_masker(self, graph_entries: Entries, mask: Mask = None) -> Entries:
        """Masks entries of graphs. [num_graphs, ...]"""


class NoMasker(Masker):
    """Masks nothing.

    Example:
        >>> NoMasker().node_masker("entries")
        'entries'
    """

    def _as_they_are(self, entries: Entries, mask: Mask = None) -> Entries:
        """The entries as they are."""
        return entries

    node_masker = edge_masker = graph_masker = _as_they_are  # type: ignore[assignment]  # their words differ


def _masked_first(name: str) -> Callable[["PreLayerMasker", Layer], Layer]:
    def of_layer(self: "PreLayerMasker", layer: Layer) -> Layer:
        """The layer, whose arguments are masked first; it takes `mask=`."""
        return lambda *args, mask=None: layer(*getattr(self.masker, name)(args, mask=mask))

    return of_layer


class LayerMasker:
    """What turns a layer into one whose arguments are masked first, by methods named as the masker's.

    Args:
        masker: Masks the arguments of a layer, given as a tuple.
    """

    def __init__(self, masker: Masker) -> None:
        self.masker = masker


class PreLayerMasker(LayerMasker):
    """Masks the arguments of layers with a `Masker`.

    Example:
        >>> PreLayerMasker(NoMasker()).node_masker(max)(1, 2, mask=None)
        2
    """

    node_masker, edge_masker, graph_masker = map(_masked_first, ("node_masker", "edge_masker", "graph_masker"))
