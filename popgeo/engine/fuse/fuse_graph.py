"""The passes that join operations before a graph is bound to memory, in their order."""

from collections.abc import Callable

from popgeo.capture.expand import expand
from popgeo.capture.op_graph import OpGraph
from popgeo.engine.fuse import prepare_interaction  # noqa: F401  makes known how the operations are prepared
from popgeo.engine.fuse.bind_chain import prepare_chain
from popgeo.engine.fuse.chain import CHAIN
from popgeo.engine.fuse.join_chains import join_chains
from popgeo.engine.fuse.plain_interaction import join_plain_interactions
from popgeo.engine.fuse.plan_interactions import plan_interactions
from popgeo.engine.fuse.prepared import PreparedOp, register_prepared
from popgeo.native import library

register_prepared(CHAIN, PreparedOp(prepare=prepare_chain, by_element=True))

# From the largest pattern to the smallest: what one has joined the next leaves alone.
_PASSES: tuple[Callable[[OpGraph], OpGraph], ...] = (
    join_plain_interactions,
    plan_interactions,
    join_chains,
)


def fuse(graph: OpGraph) -> OpGraph:
    """The graph with operations joined; only written out where the compiled library is missing."""
    if not library.is_available():
        return expand(graph)
    for joins in _PASSES:
        graph = joins(graph)
    return graph
