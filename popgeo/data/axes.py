"""The nouns of a flat dataset: what the rows of an attribute belong to, and the attribute itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch import Tensor

from popgeo.data.store.mapped import MappedFilesMixin

StoreKey: TypeAlias = str | tuple[str, str, str] | None
"""A node type, an edge type, or None for the one store of `Data` and the global store of `HeteroData`."""

Levels: TypeAlias = Mapping[Any, "str | Level | Axis | Guess"]
"""What attributes' rows belong to, as `{"y": "graph"}`; a key may also name the store, as `("paper", "y")`. `GRAPHS`
instead of a level says that all graphs so far have one row, and that no graph has shown more than that. A `Guess` is
what the graphs so far suggest, and keeps the doubt."""


class Level(Enum):
    """What a row of an attribute belongs to.

    Example:
        >>> Level("graph")
        <Level.GRAPH: 'graph'>
    """

    NODE = "node"
    EDGE = "edge"
    GRAPH = "graph"


@dataclass(frozen=True)
class Guess:
    """A level that graphs suggest, and another that fits them, too.

    Args:
        level: What the rows are taken to belong to.
        doubt: What they could belong to as well.
    """

    level: Level
    doubt: Level


@dataclass(frozen=True)
class Axis:
    """What an attribute's rows are counted along: nodes or edges of a type, graphs, or rows of its own.

    Args:
        level: What the rows belong to.
        store: The node or edge type.
        name: Set for a graph-level attribute that has not one row per graph: its rows are counted on their own.
    """

    level: Level
    store: StoreKey
    name: str | None = None

    @property
    def label(self) -> str:
        """What to call the rows.

        Example:
            >>> Axis(Level.NODE, None).label, Axis(Level.EDGE, ("author", "writes", "paper")).label
            ('nodes', 'author-writes-paper edges')
        """
        kind = self.store if isinstance(self.store, str) else "-".join(self.store or ())
        return f"{kind} {self.level.value}s".lstrip()


def completed(given: Levels | None, inferred: Levels) -> Levels:
    """The levels that are given, by names or by stores and names, and for other attributes those that are inferred.

    Example:
        >>> completed({"y": "graph"}, {(None, "y"): Level.NODE, (None, "x"): Level.NODE})
        {(None, 'x'): <Level.NODE: 'node'>, 'y': 'graph'}
    """
    given = given or {}
    return {**{key: level for key, level in inferred.items() if key[1] not in given}, **given}


def levels_of(attributes: Iterable[Any], given: Levels | None = None, keeps_doubt: bool = True) -> Levels:
    """Return what each attribute's rows belong to, for reading other graphs the same way.

    Args:
        attributes: Attributes of some graphs, in memory or as a store on disk lists them.
        given: What the user says, which counts more.
        keeps_doubt: Whether a level that is in doubt stays in doubt.
    """
    inferred: dict[Any, Level | Axis | Guess] = {}
    for one in attributes:
        if one.is_tensor:
            level = one.axis.level if one.doubt is None or not keeps_doubt else Guess(one.axis.level, one.doubt)
            inferred[one.store, one.name] = GRAPHS if one.axis == GRAPHS else level
    return completed(given, inferred)


def require_certain(attributes: Iterable["Attribute"], why: str) -> None:
    """Asks for the level of what is taken for one thing and could be another, if that changes a result.

    Args:
        attributes: Attributes of a dataset.
        why: What it changes, as "sorting edges moves edge attributes".

    Raises:
        ValueError: there is doubt about one; names it.
    """
    for one in attributes:
        if one.doubt is not None:
            counts = f"{one.doubt.value}s" + (": one" if one.axis == GRAPHS else f" as {one.axis.level.value}s")
            raise ValueError(
                f"Every graph has as many rows in {one.name!r} as {counts}, and {why}. Say which they belong to: "
                f"levels={{{one.name!r}: {one.doubt.value!r}}} or {{{one.name!r}: {one.axis.level.value!r}}}."
            )


GRAPHS = Axis(Level.GRAPH, None)
"""The axis of attributes that have one row per graph."""


def row_pointer(counts: Tensor) -> Tensor:
    """Where the rows of each graph start, and their total. [num_graphs + 1]"""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def ends_of(edges: Axis) -> tuple[Axis, Axis]:
    """The nodes that edges lead from, and those that they lead to.

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
        name: What it is called.
        axis: What its rows belong to.
        values: All rows along dimension `dim`; a list with one entry a graph where the values are not tensors.
        dim: The dimension of rows.
        increments: How far each graph shifts the values of the graphs after it in a batch (`__inc__`), or None.
            [num_graphs, ...]
        doubt: What the rows could belong to as well: neither a name nor the user tells, and the numbers fit in every
            graph.
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
        """The values, of an attribute that is a tensor."""
        assert isinstance(self.values, Tensor)  # callers ask `is_tensor` first
        return self.values
