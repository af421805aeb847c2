"""Dense products: rows x contraction x columns over the tiles, one part after the other where memory is short."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.operands import Rule, made, tensor, width
from popgeo.ipu.cost.plan import Plan, Superstep
from popgeo.ipu.cost.published_sizes import matmul_validity
from popgeo.ipu.cost.splits import cheapest, within, work_space
from popgeo.ipu.cost.supersteps import compute_step, exchange_step, overhead_step, transfer_cycles
from popgeo.ipu.cost.vertex_cycles import OUT_BLOCK, add_partials, amp_vertex, ceil_div, in_block
from popgeo.ipu.target import IpuTarget

SERIAL_CYCLES = 500  # per turn of a loop over parts of the columns
_TURNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512, 1024)
_MORE_TURNS = 4


@dataclass(frozen=True, kw_only=True)
class _Search:
    """The cheapest split of a product.

    Attributes:
        cuts: Parts of rows, contraction and columns.
        turns: Parts of the columns that are computed one after the other.
        is_swapped: The transposed product is computed.
        terms: Cycles and bytes of one turn.
        considered: Splits compared.
    """

    cuts: tuple[int, int, int]
    turns: int
    is_swapped: bool
    terms: Mapping[str, float]
    considered: int

    @property
    def cycles(self) -> float:
        """Cycles of all turns."""
        once = sum(self.terms[name] for name in ("bring", "copy", "amp", "reduce", "add"))
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
    found = _search(rows, contraction, columns, width, target, tiles // side_by_side, shares, machine.matmul_proportion)
    n_rows, n_contraction, n_columns = found.cuts
    used = n_rows * n_contraction * n_columns * side_by_side
    steps = _steps(found, used, rounds, machine)
    if found.is_swapped:
        n_rows, n_columns = n_columns, n_rows
    validity, why = matmul_validity(rows, contraction, columns, width, batch, machine)
    return Plan(
        family="matmul",
        split={"rows": n_rows, "contraction": n_contraction, "columns": n_columns, "serial": found.turns},
        supersteps=steps,
        temporary_bytes=int(found.terms["nbytes"]),
        flops=2 * batch * rows * contraction * columns,
        considered=found.considered,
        validity=validity,
        why=why,
    )


def _steps(found: _Search, used: int, rounds: int, machine: Machine) -> tuple[Superstep, ...]:
    target, t = machine.target, found.terms
    times = found.turns * rounds
    c = machine.calibration

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
            "lay out both matrices",
            target,
            vertex=again(t["copy"], target.launch_cycles),
            calibrated=c.matmul_move * times * t["copy"],
            tiles=used,
        ),
        compute_step(
            "multiply", target, vertex=again(t["amp"], target.launch_cycles),
            calibrated=c.matmul_amp * times * t["amp"], tiles=used, workers=min(target.workers_per_tile, t["rows"]),
        ),
    ]  # fmt: skip
    if found.cuts[1] > 1:
        steps += [
            exchange_step(
                "exchange partial sums", target, transfer=again(t["reduce"], target.sync_cycles),
                calibrated=c.matmul_reduce * times * t["reduce"], bytes_in=times * t["reduce_bytes"],
                bytes_out=times * t["reduce_bytes"], fragments=times * found.cuts[1], tiles=used,
            ),
            compute_step(
                "add partial sums", target, vertex=again(t["add"], target.launch_cycles),
                calibrated=c.matmul_reduce * times * t["add"], tiles=used,
            ),
        ]  # fmt: skip
    if times > 1:
        steps.append(
            compute_step(
                "loop over parts", target, vertex=times * SERIAL_CYCLES, calibrated=times * SERIAL_CYCLES, tiles=used
            )
        )
    return tuple(steps)


@functools.lru_cache(maxsize=4096)
def _search(
    rows: int,
    contraction: int,
    columns: int,
    width: int,
    target: IpuTarget,
    tiles: int,
    shares: tuple[float, float],
    proportion: float,
) -> _Search:
    """The cheapest split, either way round, with as few turns as memory allows or somewhat more."""
    fitting: list[_Search] = []
    more = 0
    for turns in _TURNS:
        ways = [
            _best(rows, contraction, columns, width, target, tiles, turns, shares, proportion, is_swapped=False),
            _best(columns, contraction, rows, width, target, tiles, turns, shares[::-1], proportion, is_swapped=True),
        ]
        fitting += [way for way in ways if way.terms["nbytes"] <= work_space(target, way.terms["held"], proportion)]
        more += bool(fitting)
        if more and (turns == 1 or more > _MORE_TURNS):
            break
    return min(fitting or ways, key=lambda way: way.cycles)


def _best(
    rows: int,
    contraction: int,
    columns: int,
    width: int,
    target: IpuTarget,
    tiles: int,
    turns: int,
    shares: tuple[float, float],
    proportion: float,
    *,
    is_swapped: bool,
) -> _Search:
    part = ceil_div(columns, turns)
    splits = within(tiles, rows, ceil_div(contraction, in_block(width)), ceil_div(part, OUT_BLOCK))
    terms = _terms(rows, contraction, part, width, splits, target, shares)
    held = shares[0] * rows * contraction + shares[1] * contraction * columns + rows * columns
    terms["held"] = held * width / tiles
    cycles = terms["bring"] + terms["copy"] + terms["amp"] + terms["reduce"] + terms["add"]
    found = cheapest(splits, cycles, terms, target, proportion)
    return _Search(
        cuts=found.cuts,
        turns=turns,
        is_swapped=is_swapped,
        terms=found.terms,
        considered=2 * found.considered,
    )


def _terms(
    rows: int,
    contraction: int,
    columns: int,
    width: int,
    splits: np.ndarray,
    target: IpuTarget,
    shares: tuple[float, float],
) -> dict[str, Any]:
    n_rows, n_contraction, n_columns = splits
    block, out_block = in_block(width), OUT_BLOCK
    mine = ceil_div(rows, n_rows)
    deep = np.minimum(contraction, ceil_div(ceil_div(contraction, block), n_contraction) * block)
    wide = np.minimum(columns, ceil_div(ceil_div(columns, out_block), n_columns) * out_block)
    left, right, sums = shares[0] * mine * deep * width, shares[1] * deep * wide * width, mine * wide * width
    # Neighbouring tiles that make other columns of the same rows receive the same rows.
    bring = transfer_cycles(target, bytes_in=left, is_paired=n_columns % 2 == 0) + transfer_cycles(
        target, bytes_in=right * (1 - 1 / n_rows)
    )
    is_split = n_contraction > 1
    reduce_bytes = np.where(is_split, sums * (1 - 1 / n_contraction), 0)
    share = ceil_div(mine * wide, n_contraction)
    return {
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
    }


def _product(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    return _multiply(graph, op, machine, left=0, right=1)


def _product_and_sum(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """beta * bias + alpha * left @ right."""
    product = _multiply(graph, op, machine, left=1, right=2)
    result = made(graph, op)[0] if made(graph, op) else tensor(graph, op.args[0])
    return _then_add(product, result, machine)


def _linear(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    x, weight, result = tensor(graph, op.args[0]), tensor(graph, op.args[1]), made(graph, op)[0]
    rows = math.prod(x.shape[:-1])
    product = plan_matmul(rows, x.shape[-1], weight.shape[0], _width(x), machine)
    has_bias = len(op.args) > 2 and op.args[2] is not None
    return _then_add(product, result, machine) if has_bias else product


def _multiply(graph: OpGraph, op: Op, machine: Machine, left: int, right: int) -> Plan:
    a, b = tensor(graph, op.args[left]), tensor(graph, op.args[right])
    contraction = max(1, a.shape[-1])
    if len(a.shape) <= 2 and len(b.shape) <= 2:
        rows, columns, batch = a.numel // contraction, b.numel // contraction, 1
    else:
        batch = math.prod(a.shape[:-2])
        rows, columns = a.shape[-2], b.shape[-1]
    return plan_matmul(rows, contraction, columns, _width(a), machine, batch)


def _width(value: Value) -> int:
    """Bytes of an element in the matrix unit, which takes two kinds."""
    return 2 if value.dtype.itemsize == 2 else 4


def _then_add(product: Plan, result: Value, machine: Machine) -> Plan:
    columns = result.shape[-1] if result.shape else 1
    bias = plan_elementwise("add", max(1, result.numel), width(result), machine, operand=columns)
    return dataclasses.replace(
        product, supersteps=product.supersteps + bias.supersteps, flops=product.flops + bias.flops
    )


RULES: dict[str, Rule] = {
    "aten.mm": _product,
    "aten.bmm": _product,
    "aten.mv": _product,
    "aten.dot": _product,
    "aten.vdot": _product,
    "aten.matmul": _product,
    "aten.addmm": _product_and_sum,
    "aten.addmv": _product_and_sum,
    "aten.baddbmm": _product_and_sum,
    "aten.linear": _linear,
}
