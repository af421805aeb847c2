"""Turns captured programs into the steps of a machine: for each operation exchanges and compute sets."""

from collections.abc import Mapping, Sequence

import torch

from popgeo.capture.op_graph import OpGraph, Role
from popgeo.ipu.cost.plan import OpCost
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.lower.builder import Builder, Scope, in_storage_order
from popgeo.ipu.tiles.lower.lower_op import lower
from popgeo.ipu.tiles.map_tensors import map_storages
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.steps import HostCopy
from popgeo.ipu.tiles.tile_mapping import TileMapping

Places = dict[int, tuple[str, int]]


def schedule(graph: OpGraph, costs: Sequence[OpCost], target: IpuTarget) -> Program:
    """The program of one run of a graph: inputs from the host, every operation in order, outputs to the host.

    Args:
        graph: The captured program.
        costs: The plan of each operation, in order.
        target: The machine. The steps list every vertex and every transfer, so it should have few tiles.

    Returns:
        A program with a variable `s<number>` for each storage of the graph. Streams from the host have the names of the
        graph's inputs; those to the host are `output:<position>`.

    Example:
        >>> from dataclasses import replace
        >>> from popgeo.capture.capture import bind, capture
        >>> from popgeo.ipu.cost.graph_cost import cost
        >>> small = replace(IpuTarget.bow(), num_tiles=4)
        >>> def total(x):
        ...     return x.sum()
        >>> graph = capture(total, bind(total, torch.ones(64))).graph
        >>> print(schedule(graph, cost(graph, small), small))
        host in: input:x
        compute forward sum.default: reduce in place: 2 vertices on 2 tiles
        sync
        exchange for forward sum.default: reduce: 1 transfer, 1 element
        compute forward sum.default: reduce: 1 vertex on 1 tile
        host out: output:0
    """
    builder = Builder(target.num_tiles * target.num_ipus)
    places = declare(builder, graph, map_storages(graph, costs, target), "s")
    streams = {places[graph.values[v].storage][0]: str(given) for given, v in graph.inputs.items()}
    builder.steps.append(HostCopy(to_host=False, streams=streams))
    add_operations(builder, graph, costs, places)
    results = {places[graph.values[v].storage][0]: f"output:{k}" for k, v in enumerate(graph.outputs) if v is not None}
    builder.steps.append(HostCopy(to_host=True, streams=results))
    return finish(builder)


def declare(builder: Builder, graph: OpGraph, mappings: Mapping[int, TileMapping], prefix: str) -> Places:
    """A variable for each storage that is mapped, where the mappings put it; those of parameters and buffers last."""
    dtypes: dict[int, torch.dtype] = {}
    for value in graph.values:
        if dtypes.setdefault(value.storage, value.dtype) is not value.dtype:
            raise ValueError(
                f"A tensor of {dtypes[value.storage]} is viewed as {value.dtype}; convert it with .to() instead."
            )
    lasting = {graph.values[v].storage for given, v in graph.inputs.items() if given.role is not Role.ARGUMENT}
    for storage, mapping in mappings.items():
        builder.declare(f"{prefix}{storage}", dtypes[storage], mapping, lasting=storage in lasting)
    for v, tensor in graph.constants.items():
        value = graph.values[v]
        if value.storage in mappings:
            numel = mappings[value.storage].numel
            builder.constants[f"{prefix}{value.storage}"] = in_storage_order(tensor, value, numel)
    return {storage: (f"{prefix}{storage}", 0) for storage in mappings}


def add_operations(builder: Builder, graph: OpGraph, costs: Sequence[OpCost], places: Places) -> None:
    """The steps of each operation; views need none."""
    for op, cost in zip(graph.ops, costs, strict=True):
        if graph.is_view(op):
            continue
        scope = Scope(builder, graph, places, f"{op.phase} {op.target.partition('.')[2]}", cost.plan)
        if not lower(scope, op):
            builder.fallbacks.append(op.target)


def finish(builder: Builder) -> Program:
    """The program that the builder has collected."""
    return Program(
        num_tiles=builder.num_tiles,
        variables=builder.variables,
        steps=tuple(builder.steps),
        constants=builder.constants,
        fallbacks=tuple(dict.fromkeys(builder.fallbacks)),
    )
