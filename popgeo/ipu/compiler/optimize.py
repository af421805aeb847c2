"""All passes, in the order in which they help each other."""

from popgeo.ipu.compiler.indexing import group_same_index, use_row_indexing
from popgeo.ipu.compiler.passes import drop_unused, merge_equal_values
from popgeo.ipu.op_graph import OpGraph


def optimize(graph: OpGraph, row_indexing: bool = True) -> tuple[OpGraph, frozenset[str]]:
    """A graph that gives the same values with fewer operations, and the inputs that must not be negative for it.

    Args:
        graph: As captured.
        row_indexing: Whether to rely on row indices not being negative.
    """
    graph, relied_on = drop_unused(merge_equal_values(graph)), frozenset[str]()
    if row_indexing:
        graph, relied_on = use_row_indexing(graph)
    return drop_unused(group_same_index(merge_equal_values(graph))), relied_on
