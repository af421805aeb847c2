"""Plans of dense products: rows x contraction x columns over the tiles, in several turns if memory is short."""

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
from popgeo.ipu.cost.splits import CheapestSplit, cheapest, within
from popgeo.ipu.cost.supersteps import compute_step, overhead_step, transfer_cycles
from popgeo.ipu.cost.vertex_cycles import OUT_BLOCK, add_partials, amp_vertex, ceil_div, in_block
from popgeo.ipu.target import IpuTarget

SERIAL_CYCLES = 500  # of each turn of a loop over parts of the columns
_TURNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512, 1024)
_MORE_TURNS = 4


@dataclass(frozen=True)
class Product:
    """The sizes of a product of [rows, contraction] and [contraction, columns].

    Attributes:
        rows: Rows of the left matrix.
        contraction: Columns of the left and rows of the right one.
        columns: Columns of the right one.
        width: Bytes of an element: 2 or 4.
        shares: Distinct elements of the left and the right matrix, as shares of all their elements.
    """

    rows: int
    contraction: int
    columns: int
    width: int
    shares: tuple[float, float]

    @property
    def transposed(self) -> "Product":
        """The product with the transposed result."""
        return Product(self.columns, self.contraction, self.rows, self.width, self.shares[::-1])


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
    """Plan the cheapest way to multiply [rows, contraction] by [contraction, columns], for `batch` products at once.

    Args:
        rows: Rows of the left matrix.
        contraction: Columns of the left and rows of the right one.
        columns: Columns of the right one.
        width: Bytes of an element: 2 or 4.
        machine: The machine and its constants.
        batch: Number of independent products of this shape.
        shares: Distinct elements of the left and the right matrix, as shares of all their elements. Rows of windows
            overlap, so they have fewer distinct elements. Default: all elements are distinct.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> plan_matmul(1024, 1024, 1024, 4, Machine(target=IpuTarget.bow())).flops
        2147483648
    """
    target, tiles = machine.target, machine.num_tiles
    rows, contraction, columns, batch = max(1, rows), max(1, contraction), max(1, columns), max(1, batch)
    side_by_side = min(batch, tiles)
    product = Product(rows, contraction, columns, width, shares)
    found = _search(product, target, tiles // side_by_side, machine.matmul_proportion)
    n_rows, n_contraction, n_columns = found.cuts
    split = {"rows": n_rows, "contraction": n_contraction, "columns": n_columns, "serial": found.turns}
    rounds, flops = ceil_div(batch, side_by_side), 2 * batch * rows * contraction * columns
    steps = _steps(replace(found, side_by_side=side_by_side, turns=found.turns * rounds), machine)
    return found.plan("matmul", split, steps, matmul_validity(rows, contraction, columns, width, batch, machine), flops)


def _steps(found: CheapestSplit, machine: Machine) -> tuple[Superstep, ...]:
    """Return the supersteps of a split."""
    constants, parts = machine.calibration, found.cuts[1]
    moving, reducing = constants.matmul_move, constants.matmul_reduce
    steps = [
        overhead_step("start and finish", calibrated=constants.matmul_fixed, tiles=found.tiles),
        found.exchange("bring both matrices", "bring", moving, receivers=2, fragments=2),
        found.compute("lay out both matrices", "copy", moving),
        found.compute("multiply", "amp", constants.matmul_amp, workers=found.terms["rows"]),
    ]
    if parts > 1:
        steps += [
            found.exchange("exchange partial sums", "reduce", reducing, fragments=parts),
            found.compute("add partial sums", "add", reducing),
        ]
    if found.turns > 1:
        cycles = found.turns * SERIAL_CYCLES
        steps.append(compute_step("loop over parts", found.target, vertex=cycles, calibrated=cycles, tiles=found.tiles))
    return tuple(steps)


@functools.lru_cache(maxsize=4096)
def _search(product: Product, target: IpuTarget, tiles: int, proportion: float) -> CheapestSplit:
    """Return the cheapest split, of the product or its transpose, with as few turns as memory allows or a few more."""
    fitting: list[CheapestSplit] = []
    more = 0
    for turns in _TURNS:
        both = [_best(product, target, tiles, turns, proportion, is_swapped) for is_swapped in (False, True)]
        fitting += [found for found in both if found.fits(proportion)]
        more += bool(fitting)
        if more and (turns == 1 or more > _MORE_TURNS):
            break
    return min(fitting or both, key=_cycles)


def _cycles(found: CheapestSplit) -> float:
    """Return the cycles of all turns."""
    once = sum(found.terms[name] for name in ("bring", "copy", "amp", "reduce", "add"))
    return found.turns * once + (SERIAL_CYCLES * found.turns if found.turns > 1 else 0)


def _best(
    product: Product, target: IpuTarget, tiles: int, turns: int, proportion: float, is_swapped: bool
) -> CheapestSplit:
    """Return the cheapest split that computes a part of the columns at a time; its terms count one such turn.

    When swapped, it transposes the product first, so it computes a part of the rows at a time.
    """
    product = product.transposed if is_swapped else product
    rows, contraction, columns, width = product.rows, product.contraction, product.columns, product.width
    of_left, of_right = product.shares
    held = (of_left * rows * contraction + of_right * contraction * columns + rows * columns) * width
    columns, block = ceil_div(columns, turns), in_block(width)
    blocks_in, blocks_out = ceil_div(contraction, block), ceil_div(columns, OUT_BLOCK)
    splits = within(tiles, rows, blocks_in, blocks_out)
    n_rows, n_contraction, n_columns = splits
    mine = ceil_div(rows, n_rows)
    deep = np.minimum(contraction, ceil_div(blocks_in, n_contraction) * block)
    wide = np.minimum(columns, ceil_div(blocks_out, n_columns) * OUT_BLOCK)
    left, right = of_left * mine * deep * width, of_right * deep * wide * width
    sums = mine * wide * width
    # Neighboring tiles make different columns of the same rows, so they receive the same rows.
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
        # The matrix unit reads its operands in blocks.
        "copy": (left + right) / target.copy_bytes,
        "amp": amp_vertex(mine, deep, wide, width, target),
        "reduce": transfer_cycles(target, bytes_in=reduce_bytes, bytes_out=reduce_bytes, fragments_in=n_contraction),
        "reduce_bytes": reduce_bytes,
        "add": np.where(is_split, add_partials(share, n_contraction, target.vector_bytes // width), 0),
        "nbytes": left + right + sums,
        "held": held / tiles,
    }
    cycles = terms["bring"] + terms["copy"] + terms["amp"] + terms["reduce"] + terms["add"]
    found = cheapest(splits, cycles, terms, target, proportion)
    cuts = found.cuts[::-1] if is_swapped else found.cuts
    return replace(found, turns=turns, cuts=cuts, considered=2 * found.considered)  # the product and its transpose


def left_and_right(graph: OpGraph, op: Op) -> tuple[Value, Value]:
    """Return both matrices; after a bias they are the second and third argument."""
    first = 1 if op.target.startswith(("aten.add", "aten.baddbmm.")) else 0
    return tensor(graph, op.args[first]), tensor(graph, op.args[first + 1])


def sizes_of(graph: OpGraph, op: Op) -> tuple[int, int, int, int]:
    """Return rows, contraction and columns of a product, and the number of products."""
    left, right = left_and_right(graph, op)
    contraction = left.shape[-1]
    if op.target.startswith("aten.linear."):  # of a weight that is stored transposed
        return math.prod(left.shape[:-1]), contraction, right.shape[0], 1
    if len(left.shape) <= 2 and len(right.shape) <= 2:
        length = max(1, contraction)
        return left.numel // length, contraction, right.numel // length, 1
    return left.shape[-2], contraction, right.shape[-1], math.prod(left.shape[:-2])


def width_of(graph: OpGraph, op: Op) -> int:
    """Return the bytes of an element in the matrix unit, which has two types."""
    return 2 if left_and_right(graph, op)[0].dtype.itemsize == 2 else 4


def rule_matmul(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan left @ right, or beta * bias + alpha * left @ right."""
    rows, contraction, columns, batch = sizes_of(graph, op)
    product = plan_matmul(rows, contraction, columns, width_of(graph, op), machine, batch)
    if len(op.reads()) == 2:  # no bias
        return product
    result = made(graph, op)[0] if made(graph, op) else tensor(graph, op.args[0])
    columns = result.shape[-1] if result.shape else 1
    adding = plan_elementwise("add", max(1, result.numel), width(result), machine, operand=columns)
    return replace(product, supersteps=product.supersteps + adding.supersteps, flops=product.flops + adding.flops)
