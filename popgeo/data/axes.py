"""Types of a flat dataset: the level of an attribute (node, edge or graph), its axis, and the attribute itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch import Tensor

from popgeo.data.attribute_names import with_registered
from popgeo.data.store.mapped import MappedFilesMixin

StoreKey: TypeAlias = str | tuple[str, str, str] | None
"""A node type, an edge type, or None for the only store of `Data` and the global store of `HeteroData`."""

Levels: TypeAlias = Mapping[Any, "str | Level | Axis | Guess"]
"""The level of each attribute, as `{"y": "graph"}`; a key may also contain the store, as `("paper", "y")`. The value
`GRAPHS` means that all graphs so far have one row. The value `Guess` means that two levels fit the graphs so far."""


class Level(Enum):
    """The part of a graph that a row of an attribute belongs to.

    Example:
        >>> Level("graph")
        <Level.GRAPH: 'graph'>
    """

    NODE = "node"
    EDGE = "edge"
    GRAPH = "graph"


@dataclass(frozen=True)
class Guess:
    """The level that the graphs suggest, and a second level that fits them, too.

    Args:
        level: The level that is used.
        doubt: The second level.
    """

    level: Level
    doubt: Level


@dataclass(frozen=True)
class Axis:
    """The dimension along which rows are counted: nodes or edges of a type, graphs, or the rows of one attribute.

    Args:
        level: The level of the rows.
        store: The node or edge type.
        name: The name of a graph attribute that does not have one row per graph. Default: None for all others.
    """

    level: Level
    store: StoreKey
    name: str | None = None

    @property
    def label(self) -> str:
        """The name of the rows in messages.

        Example:
            >>> Axis(Level.NODE, None).label, Axis(Level.EDGE, ("author", "writes", "paper")).label
            ('nodes', 'author-writes-paper edges')
        """
        kind = self.store if isinstance(self.store, str) else "-".join(self.store or ())
        return f"{kind} {self.level.value}s".lstrip()


def levels_of(attributes: Iterable[Any], given: Levels | None = None, keeps_doubt: bool = True) -> Levels:
    """Return the level of each attribute, for reading other graphs in the same way.

    Args:
        attributes: Attributes of some graphs, in memory or from the manifest of a store on disk.
        given: Levels that the user states; they override the inferred levels.
        keeps_doubt: Whether an attribute with two possible levels keeps both. Default: True.
    """
    given = with_registered(given) or {}
    inferred: dict[Any, Level | Axis | Guess] = {}
    for one in attributes:
        if one.is_tensor and one.name not in given:
            level = one.axis.level if one.doubt is None or not keeps_doubt else Guess(one.axis.level, one.doubt)
            inferred[one.store, one.name] = GRAPHS if one.axis == GRAPHS else level
    return {**inferred, **given}


def require_certain(attributes: Iterable["Attribute"], why: str) -> None:
    """Raise if two levels fit an attribute.

    Args:
        attributes: Attributes for which the level changes a result.
        why: The effect of the level, as "sorting edges moves edge attributes".

    Raises:
        ValueError: two levels fit an attribute.
    """
    for one in attributes:
        if one.doubt is not None:
            counts = f"{one.doubt.value}s" + (": one" if one.axis == GRAPHS else f" as {one.axis.level.value}s")
            raise ValueError(
                f"Every graph has as many rows in {one.name!r} as {counts}, and {why}. State the level: "
                f"levels={{{one.name!r}: {one.doubt.value!r}}} or {{{one.name!r}: {one.axis.level.value!r}}}."
            )


GRAPHS = Axis(Level.GRAPH, None)
"""The axis of attributes that have one row per graph."""


def row_pointer(counts: Tensor) -> Tensor:
    """Return the first row of each graph and the total number of rows, [num_graphs + 1]."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def ends_of(edges: Axis) -> tuple[Axis, Axis]:
    """Return the axes of the source nodes and of the destination nodes of edges.

    Example:
        >>> [end.store for end in ends_of(Axis(Level.EDGE, ("author", "writes", "paper")))]
        ['author', 'paper']
    """
    source, destination = (edges.store[0], edges.store[-1]) if isinstance(edges.store, tuple) else (None, None)
    return Axis(Level.NODE, source), Axis(Level.NODE, destination)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribute(MappedFilesMixin):
    """One attribute of all graphs, one graph after the other.

    Args:
        store: The node or edge type.
        name: The name of the attribute.
        axis: The axis of its rows.
        values: All rows along dimension `dim`; if the values are not tensors, a list with one entry per graph.
        dim: The dimension of rows.
        increments: The number that each graph adds to the values of later graphs in a batch (`__inc__`), or None.
            [num_graphs, ...]
        doubt: A second level that fits every graph, if neither the name nor the user decides.
    """

    store: StoreKey
    name: str
    axis: Axis
    values: Tensor | Sequence[Any]
    dim: int = 0
    increments: Tensor | None = None
    doubt: Level | None = None

    @property
    def is_tensor(self) -> bool:
        """Whether the values are one flat tensor."""
        return isinstance(self.values, Tensor)

    @property
    def tensor(self) -> Tensor:
        """The values of an attribute that is a tensor."""
        assert isinstance(self.values, Tensor)  # callers ask `is_tensor` first
        return self.values
