"""The passes that join operations before a graph is bound to memory, in their order."""

from collections.abc import Callable

from popgeo.capture.op_graph import OpGraph
from popgeo.engine.fuse.bind_chain import prepare_chain
from popgeo.engine.fuse.chain import CHAIN
from popgeo.engine.fuse.interaction import join_interactions
from popgeo.engine.fuse.join_chains import join_chains
from popgeo.engine.fuse.plain_convolution import CFCONV, CFCONV_BACKWARD, name_convolutions
from popgeo.engine.fuse.prepared import PreparedOp, register_prepared
from popgeo.native import library

register_prepared(CHAIN, PreparedOp(prepare=prepare_chain, by_element=True))


def fuse(graph: OpGraph) -> OpGraph:
    """The graph with operations joined; the same graph where the compiled library is missing."""
    if not library.is_available():
        return graph
    for joins in _PASSES:
        graph = joins(graph)
    return graph


def _join_all_interactions(graph: OpGraph) -> OpGraph:
    """Joins interactions, those written in plain operations too.

    Convolutions without a filter network that is served stay as written: a chain joins their products, and by
    themselves they are faster on some sizes and slower on others.
    """
    left = set[int]()
    while True:
        named = name_convolutions(graph, left)
        joined = join_interactions(named)
        if joined is named:
            return graph
        written = {v for op in graph.ops if op.target in (CFCONV, CFCONV_BACKWARD) for v in op.makes()} | left
        alone = {v for op in joined.ops if op.target in (CFCONV, CFCONV_BACKWARD) for v in op.makes()} - written
        if not alone:
            return joined
        left |= alone


# From the largest pattern to the smallest: what one has joined the next leaves alone.
_PASSES: tuple[Callable[[OpGraph], OpGraph], ...] = (_join_all_interactions, join_chains)
