"""The program of a captured graph: its storages are variables, its operations exchanges and compute sets."""

from collections.abc import Mapping, Sequence

import torch

from popgeo.capture.op_graph import OpGraph
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.tiles.lower import control
from popgeo.ipu.tiles.lower.builder import Builder, Places, Scope, in_storage_order
from popgeo.ipu.tiles.lower.lower_op import lower
from popgeo.ipu.tiles.map_tensors import map_storages
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.tile_mapping import TileMapping


def declare(builder: Builder, graph: OpGraph, mappings: Mapping[int, TileMapping], prefix: str) -> Places:
    """Declare a variable for each mapped storage, and return the places of these storages.

    Raises:
        ValueError: a storage is viewed as two types, or as its conjugates or negatives.
    """
    dtypes: dict[int, torch.dtype] = {}
    for value in graph.values:
        if (held := dtypes.setdefault(value.storage, value.dtype)) is not value.dtype:
            raise ValueError(f"A tensor of {held} is viewed as {value.dtype}; convert it with .to() instead.")
        if any(value.marks):
            raise ValueError(
                "A complex tensor is viewed as its conjugates, as by conj() and by the derivative of a product. Tiles "
                "have no such views: call conj_physical(), and train with real and imaginary parts as separate tensors."
            )
    lasting = graph.state_storages()
    for storage, mapping in mappings.items():
        builder.declare(f"{prefix}{storage}", dtypes[storage], mapping, lasting=storage in lasting)
    for v, tensor in graph.constants.items():
        value = graph.values[v]
        if value.storage in mappings:
            numel = mappings[value.storage].numel
            builder.constants[f"{prefix}{value.storage}"] = in_storage_order(tensor, value, numel)
    return {storage: (f"{prefix}{storage}", 0) for storage in mappings}


def add_operations(builder: Builder, graph: OpGraph, plans: Sequence[Plan], places: Places) -> None:
    """Add the steps of each operation; views need none."""
    for op, plan in zip(graph.ops, plans, strict=False):
        if graph.is_view(op):
            continue
        scope = Scope(builder, graph, places, f"{op.phase} {op.target.partition('.')[2]}", plan)
        if op.bodies:
            control.lowering_of(op, add_graph)(scope, op)
        elif not lower(scope, op):
            builder.fallbacks.append(op.target)


def add_graph(builder: Builder, graph: OpGraph, plans: Sequence[Plan], given: Places, prefix: str) -> Places:
    """Add the steps of a graph after its inputs have received their places.

    Args:
        builder: Receives the steps and the variables.
        graph: The captured graph.
        plans: Plans of its operations, in order.
        given: Places of its inputs.
        prefix: Prefix of the names of its other variables.

    Returns:
        The places of all its storages.
    """
    known = {storage: builder.variables[name].mapping for storage, (name, _) in given.items()}
    mappings = map_storages(graph, plans, builder.num_tiles, known)
    own = {storage: mapping for storage, mapping in mappings.items() if storage not in given}
    places = declare(builder, graph, own, prefix) | given
    add_operations(builder, graph, plans, places)
    return places


def finish(builder: Builder) -> Program:
    """Return the program of a builder."""
    steps, kept = tuple(builder.steps), tuple(dict.fromkeys(builder.fallbacks))
    tiles, variables = builder.num_tiles, builder.variables
    return Program(num_tiles=tiles, variables=variables, steps=steps, constants=builder.constants, fallbacks=kept)
