"""The conservative stand-in for operations that no rule knows."""

from popgeo.ipu.op_graph import Op, OpGraph
from popgeo.ipu.plan import Activity, Plan, Superstep, Validity
from popgeo.ipu.target import IpuTarget

CYCLES_PER_ELEMENT = 42.0  # a worker's software path for one element on every sixth cycle, as integer operations take


def plan_unknown(graph: OpGraph, op: Op, target: IpuTarget) -> Plan:
    """Every tensor crosses the exchange once, and each element of the largest takes a slow path on one worker."""
    touched = {*op.reads(), *(v for v in op.outputs if v is not None)}
    values = [graph.values[v] for v in touched]
    tiles = target.num_tiles * target.num_ipus
    nbytes = -(-sum(value.nbytes for value in values) // tiles)
    elements = -(-max((value.numel for value in values), default=0) // tiles)
    move = target.sync_cycles + nbytes / target.exchange_bytes
    work = target.launch_cycles + CYCLES_PER_ELEMENT * elements
    supersteps = (
        Superstep(
            name="bring operands", activity=Activity.EXCHANGE, ideal=move, calibrated=move, mean=move, tiles=tiles,
            bytes_in=nbytes, bytes_out=nbytes, bytes_total=nbytes * tiles, fragments=len(values),
        ),
        Superstep(
            name="compute", activity=Activity.COMPUTE, ideal=work, calibrated=work, mean=work, tiles=tiles,
            workers=float(target.workers_per_tile),
        ),
    )  # fmt: skip
    return Plan(
        family="unknown",
        split={"tiles": tiles},
        supersteps=supersteps,
        temporary_bytes=nbytes,
        validity=Validity.ESTIMATE,
        why=f"no rule knows {op.target}",
    )
