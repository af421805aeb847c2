"""All passes, in the order in which they help each other."""

from popgeo.ipu.compiler.indexing import group_same_index, use_row_indexing
from popgeo.ipu.compiler.passes import drop_unused, merge_equal_values
from popgeo.ipu.op_graph import OpGraph


def optimize(graph: OpGraph) -> tuple[OpGraph, frozenset[str]]:
    """A graph that gives the same values with fewer operations, and the inputs that must not be negative for it."""
    graph = drop_unused(merge_equal_values(graph))
    graph, relied_on = use_row_indexing(graph)
    return drop_unused(group_same_index(merge_equal_values(graph))), relied_on
