"""The passes that join operations before a graph is bound to memory, in their order."""

from collections.abc import Callable

from popgeo.capture.op_graph import OpGraph
from popgeo.engine.fuse.interaction import join_interactions
from popgeo.native import library

# From the largest pattern to the smallest: what one has joined the next leaves alone.
_PASSES: tuple[Callable[[OpGraph], OpGraph], ...] = (join_interactions,)


def fuse(graph: OpGraph) -> OpGraph:
    """The graph with operations joined; the same graph where the compiled library is missing."""
    if not library.is_available():
        return graph
    for joins in _PASSES:
        graph = joins(graph)
    return graph
