"""For which sizes there are published measurements to check a formula with."""

from popgeo.ipu.codelets.calibration import Machine
from popgeo.ipu.plan import Validity

# The sweep of gather and scatter-add on Bow: rows of the input, columns, rows of the result, all float32.
SLICE_RANGE = {"rows of the input": (16, 4096), "columns": (16, 512), "rows of the result": (32, 32768)}
# Products on Bow: two dimensions alike, the third free.
MATMUL_RANGE, MATMUL_FREE_RANGE = (1024, 8192), (4, 32768)
_TILES = 1472


def slice_validity(inputs: int, columns: int, outputs: int, width: int, machine: Machine) -> tuple[Validity, str]:
    """Whether sizes of a gather or scatter-add lie in the published sweep, and if not, in words, which do not.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> slice_validity(576, 1024, 16128, width=4, machine=Machine(target=IpuTarget.bow()))[1]
        '1,024 columns, published for 16 to 512'
    """
    if width != 4:
        return Validity.ESTIMATE, "published for float32 only"
    sizes = zip(SLICE_RANGE.items(), (inputs, columns, outputs), strict=True)
    return _judge([_beyond(size, name, *limits) for (name, limits), size in sizes] + [_beyond_tiles(machine)])


def matmul_validity(rows: int, contraction: int, columns: int, batch: int, machine: Machine) -> tuple[Validity, str]:
    """Whether sizes of a product lie among the published ones, and if not, in words, why.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> matmul_validity(2048, 2048, 64, batch=1, machine=Machine(target=IpuTarget.bow()))
        (<Validity.VALIDATED: 'validated'>, '')
    """
    if batch > 1:
        return Validity.ESTIMATE, "published for single products only"
    sizes = (rows, contraction, columns)
    low, high = MATMUL_RANGE
    least, most = MATMUL_FREE_RANGE
    alike = sum(low <= size <= high for size in sizes) >= 2 and all(least <= size <= most for size in sizes)
    words = (
        f"{rows:,} x {contraction:,} x {columns:,}, published for two dimensions of {low:,} to {high:,} and a third of "
        f"{least:,} to {most:,}"
    )
    return _judge(["" if alike else words, _beyond_tiles(machine)])


def _beyond(size: int, name: str, low: int, high: int) -> str:
    return "" if low <= size <= high else f"{size:,} {name}, published for {low:,} to {high:,}"


def _beyond_tiles(machine: Machine) -> str:
    return "" if machine.num_tiles == _TILES else f"{machine.num_tiles:,} tiles, published for {_TILES:,}"


def _judge(reasons: list[str]) -> tuple[Validity, str]:
    found = [reason for reason in reasons if reason]
    return (Validity.EXTRAPOLATED, "; ".join(found)) if found else (Validity.VALIDATED, "")
