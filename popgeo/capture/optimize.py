"""All passes, in the order in which they help each other."""

from popgeo.capture.op_graph import Input, OpGraph
from popgeo.capture.passes import drop_unused, merge_equal_values
from popgeo.capture.row_indexing import group_same_index, use_row_indexing


def optimize(graph: OpGraph) -> tuple[OpGraph, frozenset[Input]]:
    """A graph that gives the same values with fewer operations, and the inputs that must not be negative for it."""
    graph = drop_unused(merge_equal_values(graph))
    graph, relied_on = use_row_indexing(graph)
    return drop_unused(group_same_index(merge_equal_values(graph))), relied_on
