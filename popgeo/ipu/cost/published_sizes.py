"""Sizes with published measurements that check a formula.

All measurements are of one Bow IPU. Gather and scatter-add of float32 rows were measured alone, and together with
products and element-wise operations in a SchNet interaction block. Dense products were also measured alone and in
float16.
"""

from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.plan import Judgement, Validity

_FEW, _MANY = (16, 4096), (32, 32768)
COLUMNS = (16, 512)
# Single products: two dimensions in one range, the third in another. In a block: rows, and two dimensions of features.
SQUARE, FREE = (1024, 8192), (4, 32768)
BLOCK_LOOPS = frozenset({"add", "scalar", "divide", "exp", "log", "cosine"})
BLOCK_ELEMENTS = (32, 32768 * 512)
_TILES = 1472


def gather_validity(table_rows: int, columns: int, lookups: int, width: int, machine: Machine) -> Judgement:
    """Return whether sizes of a gather were measured; if not, a sentence names the sizes outside of the range.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> gather_validity(576, 1024, 16128, width=4, machine=Machine(target=IpuTarget.bow()))[1]
        '1,024 columns, published for 16 to 512'
    """
    beyond = [
        _beyond(table_rows, "rows of the table", _FEW),
        _beyond(columns, "columns", COLUMNS),
        _beyond(lookups, "lookups", _MANY),
    ]
    return _judge(beyond, width, machine)


def scatter_validity(table_rows: int, columns: int, summands: int, width: int, machine: Machine) -> Judgement:
    """Return the validity of a scatter-add, with a reason, as `gather_validity` does."""
    alone = _in(summands, _FEW) and _in(table_rows, _MANY)
    in_block = _in(summands, _MANY) and _in(table_rows, _FEW)
    known = f"{_words(_FEW)} into {_words(_MANY)} and the other way round"
    words = f"{summands:,} rows into {table_rows:,}, published for {known}"
    return _judge(["" if alone or in_block else words, _beyond(columns, "columns", COLUMNS)], width, machine)


def matmul_validity(rows: int, contraction: int, columns: int, width: int, batch: int, machine: Machine) -> Judgement:
    """Return the validity of a dense product, with a reason, as `gather_validity` does.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> matmul_validity(2048, 2048, 64, width=2, batch=1, machine=Machine(target=IpuTarget.bow()))
        (<Validity.VALIDATED: 'validated'>, '')
    """
    if batch > 1:
        return Validity.ESTIMATE, "published for single products only"
    sizes = (rows, contraction, columns)
    alone = sum(_in(size, SQUARE) for size in sizes) >= 2 and all(_in(size, FREE) for size in sizes)
    in_block = width == 4 and _in(rows, (_FEW[0], _MANY[1])) and all(_in(size, COLUMNS) for size in sizes[1:])
    words = (
        f"{rows:,} x {contraction:,} x {columns:,}, published for two dimensions of {_words(SQUARE)} and a third of "
        f"{_words(FREE)}, and for float32 features of {_words(COLUMNS)}"
    )
    return _judge(["" if alone or in_block else words], 4, machine)


def elementwise_validity(loop: str, name: str, elements: int, width: int, machine: Machine) -> Judgement:
    """Return the validity of an element-wise operation, with a reason; some loops were measured, in a block."""
    if loop not in BLOCK_LOOPS:
        return Validity.ESTIMATE, f"cycles of {name} by poplibs' estimators, which no published measurement checks"
    return _judge([_beyond(elements, "elements", BLOCK_ELEMENTS)], width, machine)


def _judge(reasons: list[str], width: int, machine: Machine) -> Judgement:
    """Return the validity that follows from the reasons against it."""
    if width != 4:
        return Validity.ESTIMATE, "published for float32 only"
    if machine.num_tiles != _TILES:
        reasons = [*reasons, f"{machine.num_tiles:,} tiles, published for {_TILES:,}"]
    found = [reason for reason in reasons if reason]
    return (Validity.EXTRAPOLATED, "; ".join(found)) if found else (Validity.VALIDATED, "")


def _beyond(size: int, name: str, limits: tuple[int, int]) -> str:
    """Return a sentence about a size outside of its limits; empty if it is inside."""
    return "" if _in(size, limits) else f"{size:,} {name}, published for {_words(limits)}"


def _in(size: int, limits: tuple[int, int]) -> bool:
    """Check whether a size is within limits."""
    return limits[0] <= size <= limits[1]


def _words(limits: tuple[int, int]) -> str:
    """Return limits as text."""
    return f"{limits[0]:,} to {limits[1]:,}"
