"""What happens to graphs that do not fit a batch."""

from enum import Enum


class OverSizeStrategy(Enum):
    """What happens to graphs that do not fit a batch.

    Example:
        >>> OverSizeStrategy.TrimNodes.trims_nodes, OverSizeStrategy.TrimNodes.trims_edges
        (True, False)
    """

    Error = 0
    """Raise ValueError that says which graph and by how much."""
    Skip = 1
    """Leave out what does not fit, and count it."""
    TrimNodes = 2
    """Remove random nodes, with their edges, until the rest fits."""
    TrimEdges = 3
    """Remove random edges until the rest fits."""
    TrimNodesAndEdges = 4
    """Remove random nodes, then random edges, until the rest fits."""

    @property
    def trims_nodes(self) -> bool:
        """Whether nodes may be removed."""
        return self in (OverSizeStrategy.TrimNodes, OverSizeStrategy.TrimNodesAndEdges)

    @property
    def trims_edges(self) -> bool:
        """Whether edges may be removed on their own."""
        return self in (OverSizeStrategy.TrimEdges, OverSizeStrategy.TrimNodesAndEdges)
