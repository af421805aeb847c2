"""The layout of values: by rows, as results of gathers, or in blocks, as results of matrix products.

An element-wise operation works at the place of its operands. If all operands have the same layout, nothing moves: in
chains after one product, in residual sums of products and in norms of them. If rows meet blocks, as SchNet's gathered
features meet its filters, or if a product reads rows, then the rows are first laid out in blocks.

Rows of an odd number of float16, such as scores of 197 tokens, cannot lie in blocks: no block divides them, and every
second row begins within a word, the least unit of an exchange. Each product that reads or makes such rows rearranges
them.
"""

from dataclasses import replace

from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.capture.operations import operation_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.operands import distinct, width
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.cost.supersteps import overhead_step

_PRODUCTS = ("matmul", "convolution", "attention")
# Layouts of results by family. Inputs and constants have the layout that their reader needs. Other results have the
# layout of their operands.
_MADE_BY = {"gather": "rows", "scatter": "rows", "fused": "rows"} | dict.fromkeys(_PRODUCTS, "blocks")


def layout_bytes(graph: OpGraph) -> list[int]:
    """Return the bytes of rows that each operation rearranges into blocks before it begins.

    The plans of gathers and sums of rows include the moves of their operands.

    Example:
        >>> import torch
        >>> from popgeo import ipu
        >>> def message(x, index, weight):
        ...     return x.index_select(0, index) * (x @ weight)
        >>> step = ipu.compile(message, [torch.ones(8, 4), torch.zeros(8, dtype=torch.long), torch.ones(4, 4)])
        >>> [nbytes for nbytes in layout_bytes(step.graph) if nbytes]  # 8 rows of 4 numbers of float32
        [128]
    """
    layouts: dict[int, str] = {}  # by storage
    found = []
    for op in graph.ops:
        family = operation_of(op.target).family
        operands = _operands(graph, op, layouts, full=family not in _PRODUCTS)
        reads = {layout for layout, _ in operands}
        mixes = family in _PRODUCTS or (family in ("elementwise", "fused") and "blocks" in reads)
        moves = "blocks" if family == "fused" else "rows"  # a cfconv's rows are as large as the filters that it reads
        uneven = {v: graph.values[v] for v in (*op.reads(), *op.makes())} if family == "matmul" else {}
        moved = [nbytes for layout, nbytes in operands if mixes and layout == moves]
        found.append(sum(moved) + sum(odd_bytes(value) for value in uneven.values()))
        made = _MADE_BY.get(family) or next((one for one in ("blocks", "rows") if one in reads), None)
        if made is not None:
            layouts |= {graph.values[v].storage: made for v in op.makes()}
    return found


def _operands(graph: OpGraph, op: Op, layouts: dict[int, str], *, full: bool) -> list[tuple[str, int]]:
    """Return layout and bytes of each operand of an operation; with `full`, skip broadcast operands.

    If all operands are broadcast, as distances and centres are for Gaussians, the result has the layout of none of
    them.
    """
    values = {graph.values[v].storage: graph.values[v] for v in op.reads()}
    by_element = operation_of(op.target).family == "elementwise"
    results = [graph.values[v].numel for v in op.makes()] if by_element else []
    largest = max([*results, *map(distinct, values.values())], default=0)
    return [
        (layouts[storage], distinct(value) * width(value))
        for storage, value in values.items()
        if storage in layouts and (not full or distinct(value) == largest)
    ]


def odd_bytes(value: Value) -> int:
    """Return the bytes of a matrix with rows of an odd number of float16; 0 for any other value.

    Example:
        >>> import torch
        >>> from popgeo import ipu
        >>> step = ipu.compile(lambda x: x @ x.mT, [torch.ones(8, 197, 64, dtype=torch.float16)])
        >>> {odd_bytes(value) for value in step.graph.values}  # queries and keys, then scores
        {0, 620944}
    """
    sizes = [size for size, stride in zip(value.shape, value.stride, strict=True) if stride == 1]
    is_odd = width(value) == 2 and len(value.shape) > 1 and any(size % 2 and size > 1 for size in sizes)
    return 2 * distinct(value) if is_odd else 0


def with_layout(plan: Plan, nbytes: int, machine: Machine) -> Plan:
    """Return a plan that first rearranges the given number of bytes.

    A product moves its operands in its own exchanges, so a byte costs less than in an element-wise operation.
    """
    if not nbytes:
        return plan
    constants = machine.calibration
    per_byte = constants.elementwise_into_product if plan.family in _PRODUCTS else constants.elementwise_layout
    cycles = per_byte * nbytes / machine.num_tiles
    tiles = max((step.tiles for step in plan.supersteps), default=machine.num_tiles)
    first = overhead_step("lay out operands", calibrated=cycles, tiles=tiles, is_sync=False)
    return replace(plan, supersteps=(first, *plan.supersteps))
