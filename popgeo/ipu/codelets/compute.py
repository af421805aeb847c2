"""A compute set as a superstep."""

from popgeo.ipu.plan import Activity, Superstep
from popgeo.ipu.target import IpuTarget


def compute_step(
    name: str,
    target: IpuTarget,
    *,
    vertex: float,
    calibrated: float | None = None,
    tiles: int,
    workers: float | None = None,
    evenness: float = 1.0,
) -> Superstep:
    """What the vertices of one compute set cost.

    Args:
        name: What they do.
        target: The machine.
        vertex: Cycles of the busiest tile's vertices.
        calibrated: Cycles by the fitted constants; as by the formulas where there are none.
        tiles: Tiles that have a vertex.
        workers: Workers occupied on such a tile; all by default.
        evenness: Mean work of the tiles at work, as a share of the busiest one's.

    Example:
        >>> compute_step("add", IpuTarget.bow(), vertex=100, tiles=1472).ideal
        182.0
    """
    ideal = float(target.launch_cycles + vertex)
    busy = min(1.0, tiles / (target.num_tiles * target.num_ipus))
    return Superstep(
        name=name,
        activity=Activity.COMPUTE,
        ideal=ideal,
        calibrated=ideal if calibrated is None else calibrated,
        mean=target.launch_cycles + vertex * evenness * busy,
        tiles=tiles,
        workers=float(target.workers_per_tile if workers is None else workers),
    )


def overhead_step(name: str, *, calibrated: float, tiles: int, is_sync: bool = True) -> Superstep:
    """Cycles that measurements show and no formula predicts: 0 in the ideal profile."""
    return Superstep(
        name=name,
        activity=Activity.SYNC if is_sync else Activity.EXCHANGE,
        ideal=0.0,
        calibrated=calibrated,
        tiles=tiles,
    )
