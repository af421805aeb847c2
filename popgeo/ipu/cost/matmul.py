"""Dense products: rows x contraction x columns over the tiles, one part after the other where memory is short."""

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.operands import made, tensor, width
from popgeo.ipu.cost.plan import Plan, Superstep
from popgeo.ipu.cost.published_sizes import matmul_validity
from popgeo.ipu.cost.splits import Found, cheapest, within
from popgeo.ipu.cost.supersteps import compute_step, exchange_step, overhead_step, transfer_cycles
from popgeo.ipu.cost.vertex_cycles import OUT_BLOCK, add_partials, amp_vertex, ceil_div, in_block
from popgeo.ipu.target import IpuTarget

SERIAL_CYCLES = 500  # per turn of a loop over parts of the columns
_TURNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512, 1024)
_MORE_TURNS = 4


@dataclass(frozen=True)
class Product:
    """[rows, contraction] times [contraction, columns].

    Attributes:
        rows: Rows of the left matrix.
        contraction: Columns of the left and rows of the right one.
        columns: Columns of the right one.
        width: Bytes of an element: 2 or 4.
        shares: Distinct elements of the left and the right matrix, as shares of all.
    """

    rows: int
    contraction: int
    columns: int
    width: int
    shares: tuple[float, float]

    @property
    def transposed(self) -> "Product":
        """The product whose result is the transpose of this one's."""
        return Product(self.columns, self.contraction, self.rows, self.width, self.shares[::-1])

    @property
    def held_bytes(self) -> float:
        """Bytes of both matrices and of the result."""
        left, right = self.shares[0] * self.rows * self.contraction, self.shares[1] * self.contraction * self.columns
        return (left + right + self.rows * self.columns) * self.width


@dataclass(frozen=True, kw_only=True)
class _Way:
    """A way to compute a product: the cheapest split for that many turns.

    Attributes:
        found: The split into rows, contraction and columns, with the cycles and bytes of one turn.
        turns: Parts of the columns that are computed one after the other.
        is_swapped: The transposed product is computed.
    """

    found: Found
    turns: int
    is_swapped: bool

    @property
    def cycles(self) -> float:
        """Cycles of all turns."""
        once = sum(self.found.terms[name] for name in ("bring", "copy", "amp", "reduce", "add"))
        return self.turns * once + (SERIAL_CYCLES * self.turns if self.turns > 1 else 0)


@functools.lru_cache(maxsize=4096)
def plan_matmul(
    rows: int,
    contraction: int,
    columns: int,
    width: int,
    machine: Machine,
    batch: int = 1,
    shares: tuple[float, float] = (1.0, 1.0),
) -> Plan:
    """The cheapest way to multiply [rows, contraction] by [contraction, columns], `batch` times side by side.

    Args:
        rows: Rows of the left matrix.
        contraction: Columns of the left and rows of the right one.
        columns: Columns of the right one.
        width: Bytes of an element: 2 or 4.
        machine: What to plan for.
        batch: Independent products of this shape.
        shares: Distinct elements of the left and the right matrix, as shares of all; rows of windows overlap.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> plan_matmul(1024, 1024, 1024, 4, Machine(target=IpuTarget.bow())).flops
        2147483648
    """
    target, tiles = machine.target, machine.num_tiles
    rows, contraction, columns, batch = max(1, rows), max(1, contraction), max(1, columns), max(1, batch)
    side_by_side = min(batch, tiles)
    rounds = ceil_div(batch, side_by_side)
    product = Product(rows, contraction, columns, width, shares)
    way = _search(product, target, tiles // side_by_side, machine.matmul_proportion)
    n_rows, n_contraction, n_columns = way.found.cuts
    steps = _steps(way, way.found.tiles * side_by_side, rounds, machine)
    if way.is_swapped:
        n_rows, n_columns = n_columns, n_rows
    validity, why = matmul_validity(rows, contraction, columns, width, batch, machine)
    return Plan(
        family="matmul",
        split={"rows": n_rows, "contraction": n_contraction, "columns": n_columns, "serial": way.turns},
        supersteps=steps,
        temporary_bytes=int(way.found.terms["nbytes"]),
        flops=2 * batch * rows * contraction * columns,
        considered=2 * way.found.considered,
        validity=validity,
        why=why,
    )


def _steps(way: _Way, used: int, rounds: int, machine: Machine) -> tuple[Superstep, ...]:
    target, t, c = machine.target, way.found.terms, machine.calibration
    parts, times = way.found.cuts[1], way.turns * rounds

    # Each turn of the loop synchronises and launches again, so it is one superstep of as many cycles.
    def again(cycles: float, start: int) -> float:
        return times * cycles + (times - 1) * start

    steps = [
        overhead_step("start and finish", calibrated=c.matmul_fixed, tiles=used),
        exchange_step(
            "bring both matrices", target, transfer=again(t["bring"], target.sync_cycles),
            calibrated=c.matmul_move * times * t["bring"], bytes_in=times * t["bring_bytes"],
            bytes_out=times * t["bring_bytes"] / 2, fragments=2 * times, tiles=used,
        ),
        compute_step(
            "lay out both matrices", target, vertex=again(t["copy"], target.launch_cycles),
            calibrated=c.matmul_move * times * t["copy"], tiles=used,
        ),
        compute_step(
            "multiply", target, vertex=again(t["amp"], target.launch_cycles),
            calibrated=c.matmul_amp * times * t["amp"], tiles=used, workers=t["rows"],
        ),
    ]  # fmt: skip
    if parts > 1:
        steps += [
            exchange_step(
                "exchange partial sums", target, transfer=again(t["reduce"], target.sync_cycles),
                calibrated=c.matmul_reduce * times * t["reduce"], bytes_in=times * t["reduce_bytes"],
                bytes_out=times * t["reduce_bytes"], fragments=times * parts, tiles=used,
            ),
            compute_step(
                "add partial sums", target, vertex=again(t["add"], target.launch_cycles),
                calibrated=c.matmul_reduce * times * t["add"], tiles=used,
            ),
        ]  # fmt: skip
    if times > 1:
        cycles = times * SERIAL_CYCLES
        steps.append(compute_step("loop over parts", target, vertex=cycles, calibrated=cycles, tiles=used))
    return tuple(steps)


@functools.lru_cache(maxsize=4096)
def _search(product: Product, target: IpuTarget, tiles: int, proportion: float) -> _Way:
    """The cheapest way, either way round, with as few turns as memory allows or somewhat more."""
    fitting: list[_Way] = []
    more = 0
    for turns in _TURNS:
        ways = [
            _best(product.transposed if swapped else product, target, tiles, turns, proportion, swapped)
            for swapped in (False, True)
        ]
        fitting += [way for way in ways if way.found.fits(target, proportion)]
        more += bool(fitting)
        if more and (turns == 1 or more > _MORE_TURNS):
            break
    return min(fitting or ways, key=lambda way: way.cycles)


def _best(product: Product, target: IpuTarget, tiles: int, turns: int, proportion: float, is_swapped: bool) -> _Way:
    """The cheapest split where a part of the columns is computed at a time."""
    rows, contraction, columns, width = product.rows, product.contraction, product.columns, product.width
    columns, block = ceil_div(columns, turns), in_block(width)
    blocks_in, blocks_out = ceil_div(contraction, block), ceil_div(columns, OUT_BLOCK)
    splits = within(tiles, rows, blocks_in, blocks_out)
    n_rows, n_contraction, n_columns = splits
    mine = ceil_div(rows, n_rows)
    deep = np.minimum(contraction, ceil_div(blocks_in, n_contraction) * block)
    wide = np.minimum(columns, ceil_div(blocks_out, n_columns) * OUT_BLOCK)
    left, right = product.shares[0] * mine * deep * width, product.shares[1] * deep * wide * width
    sums = mine * wide * width
    # Neighbouring tiles that make other columns of the same rows receive the same rows.
    bring = transfer_cycles(target, bytes_in=left, is_paired=n_columns % 2 == 0) + transfer_cycles(
        target, bytes_in=right * (1 - 1 / n_rows)
    )
    is_split = n_contraction > 1
    reduce_bytes = np.where(is_split, sums * (1 - 1 / n_contraction), 0)
    share = ceil_div(mine * wide, n_contraction)
    terms = {
        "rows": mine.astype(float),
        "bring": bring,
        "bring_bytes": left + right * (1 - 1 / n_rows),
        # The matrix unit wants its operands in blocks.
        "copy": (left + right) / target.copy_bytes,
        "amp": amp_vertex(mine, deep, wide, width, target),
        "reduce": transfer_cycles(target, bytes_in=reduce_bytes, bytes_out=reduce_bytes, fragments_in=n_contraction),
        "reduce_bytes": reduce_bytes,
        "add": np.where(is_split, add_partials(share, n_contraction, target.vector_bytes // width), 0),
        "nbytes": left + right + sums,
        "held": product.held_bytes / tiles,
    }
    cycles = terms["bring"] + terms["copy"] + terms["amp"] + terms["reduce"] + terms["add"]
    found = cheapest(splits, cycles, terms, target, proportion)
    return _Way(found=found, turns=turns, is_swapped=is_swapped)


def left_and_right(graph: OpGraph, op: Op) -> tuple[Value, Value]:
    """Both matrices; after a bias they are the second and third argument."""
    first = 1 if op.target.startswith(("aten.add", "aten.baddbmm.")) else 0
    return tensor(graph, op.args[first]), tensor(graph, op.args[first + 1])


def sizes_of(graph: OpGraph, op: Op) -> tuple[int, int, int, int]:
    """Rows, contraction, columns and how many products side by side."""
    left, right = left_and_right(graph, op)
    contraction = left.shape[-1]
    if op.target.startswith("aten.linear."):  # of a weight that is stored transposed
        return math.prod(left.shape[:-1]), contraction, right.shape[0], 1
    if len(left.shape) <= 2 and len(right.shape) <= 2:
        length = max(1, contraction)
        return left.numel // length, contraction, right.numel // length, 1
    return left.shape[-2], contraction, right.shape[-1], math.prod(left.shape[:-2])


def width_of(graph: OpGraph, op: Op) -> int:
    """Bytes of an element in the matrix unit, which takes two kinds."""
    return 2 if left_and_right(graph, op)[0].dtype.itemsize == 2 else 4


def rule_matmul(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """left @ right, or beta * bias + alpha * left @ right."""
    rows, contraction, columns, batch = sizes_of(graph, op)
    product = plan_matmul(rows, contraction, columns, width_of(graph, op), machine, batch)
    if len(op.reads()) == 2:  # no bias
        return product
    result = made(graph, op)[0] if made(graph, op) else tensor(graph, op.args[0])
    columns = result.shape[-1] if result.shape else 1
    adding = plan_elementwise("add", max(1, result.numel), width(result), machine, operand=columns)
    return replace(product, supersteps=product.supersteps + adding.supersteps, flops=product.flops + adding.flops)
