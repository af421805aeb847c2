"""What a whole step costs: micro-batches, the update that follows them, and the host's transfers."""

from collections.abc import Sequence
from dataclasses import replace

from popgeo.ipu.compiled_step import CompiledStep
from popgeo.ipu.compiler.passes import fold_constants
from popgeo.ipu.op_graph import OpGraph
from popgeo.ipu.plan import Activity, OpCost, Plan, Superstep, Validity
from popgeo.ipu.profile.cycles import cost
from popgeo.ipu.target import IpuTarget

# PCIe Gen4 x8 as measured between host and IPU by Jia et al., arXiv:1912.03413: bytes per second, seconds per transfer.
HOST_BYTES_PER_SECOND = 11e9
HOST_LATENCY = 8.8e-6


def step_costs(
    step: CompiledStep, target: IpuTarget, update: OpGraph | None = None, micro_batches: int = 1
) -> tuple[OpCost, ...]:
    """Every operation of one step with its cost, in order.

    Args:
        step: The program of one micro-batch.
        target: The machine.
        update: The program of one update; None where nothing is trained.
        micro_batches: How many a step takes before its update.
    """
    graph = fold_constants(step.graph)
    into = [v for name, v in graph.inputs.items() if name.startswith("input:")]
    out = [v for v in graph.outputs[: step.num_results] if v is not None]  # gradients stay on the machine
    transfers = _host(graph, into, "receive inputs", target), _host(graph, out, "send results", target)
    costs = [*transfers[0], *cost(graph, target), *transfers[1]]
    costs = [replace(c, count=micro_batches) for c in costs]
    return (*costs, *(cost(update, target) if update is not None else ()))


def _host(graph: OpGraph, values: Sequence[int], name: str, target: IpuTarget) -> list[OpCost]:
    """One transfer between host and machine, if there is anything to move."""
    nbytes = sum(graph.values[v].nbytes for v in values)
    if not nbytes:
        return []
    cycles = (HOST_LATENCY + nbytes / HOST_BYTES_PER_SECOND) * target.clock
    tiles = target.num_tiles * target.num_ipus
    share = -(-nbytes // tiles)
    step = Superstep(
        name=name, activity=Activity.HOST, ideal=cycles, calibrated=cycles, mean=cycles, tiles=tiles,
        bytes_in=share, bytes_total=nbytes,
    )  # fmt: skip
    plan = Plan(family="host", supersteps=(step,), validity=Validity.ESTIMATE, why="depends on the host")
    shapes = " ".join(str(list(graph.values[v].shape)) for v in values)
    return [OpCost(target=f"host.{name.split()[0]}", phase="host", shapes=shapes, plan=plan)]
