"""The passes that join operations before a graph is bound to memory, in their order."""

import ctypes
import functools
from collections.abc import Callable

from popgeo.capture.op_graph import OpGraph
from popgeo.engine.fuse.interaction import join_interactions
from popgeo.engine.fuse.join_chains import join_chains
from popgeo.native import library

_INT = ctypes.c_int64

# From the largest pattern to the smallest: what one has joined the next leaves alone.
_PASSES: tuple[Callable[[OpGraph], OpGraph], ...] = (join_interactions, join_chains)


def fuse(graph: OpGraph) -> OpGraph:
    """The graph with operations joined; the same graph where the compiled library is missing, or too slow here."""
    if not library.is_available() or not _chains_are_fast():
        return graph
    for joins in _PASSES:
        graph = joins(graph)
    return graph


@functools.cache
def _chains_are_fast() -> bool:
    """Whether the processor multiplies and adds at once, as all of this decade do."""
    choose = library.function("popgeo_chain_isa", (_INT,), _INT)
    return choose is not None and bool(choose(2))
