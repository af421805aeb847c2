"""The program of a captured graph, without the loops of a call."""

from collections.abc import Sequence

from popgeo.capture.op_graph import OpGraph
from popgeo.ipu.cost.plan import OpCost
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.graph_program import add_operations, declare, finish
from popgeo.ipu.tiles.lower.builder import Builder
from popgeo.ipu.tiles.map_tensors import map_storages
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.steps import HostCopy


def schedule(graph: OpGraph, costs: Sequence[OpCost], target: IpuTarget) -> Program:
    """Return the program of one run of a graph: inputs from the host, operations in order, outputs to the host.

    Streams from the host have the names of the graph's inputs; streams to the host are `output:<position>`.
    """
    builder = Builder(target.all_tiles)
    plans = [cost.plan for cost in costs]
    places = declare(builder, graph, map_storages(graph, plans, target.all_tiles), "s")
    streams = {places[graph.values[v].storage][0]: str(given) for given, v in graph.inputs.items()}
    builder.steps.append(HostCopy(to_host=False, streams=streams))
    add_operations(builder, graph, plans, places)
    results = {places[graph.values[v].storage][0]: f"output:{k}" for k, v in enumerate(graph.outputs) if v is not None}
    builder.steps.append(HostCopy(to_host=True, streams=results))
    return finish(builder)
