"""Convolutions as products of matrices: positions x window times channels x channels, as `poplin` plans them."""

import dataclasses
import functools
import math
from dataclasses import dataclass

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.matmul import plan_matmul
from popgeo.ipu.cost.operands import made, tensor, width
from popgeo.ipu.cost.plan import Plan, Profile, Validity
from popgeo.ipu.cost.reduce import plan_reduce
from popgeo.ipu.cost.supersteps import in_sequence
from popgeo.ipu.cost.vertex_cycles import ceil_div, in_block


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """The sizes of a convolution from many positions to few; a transposed one goes the other way.

    Attributes:
        samples: Pictures or sequences.
        many: Positions of each on the side that windows are cut from.
        few: Positions on the other side, one a window.
        window: Positions of a window.
        step: Positions from which windows start, of all: 4 where every second one in two dimensions does.
        wide: Channels on the side of many positions.
        deep: Channels on the other side.
        groups: Sets of channels that do not see each other.
        nbytes: Bytes of an element: 2 or 4.
    """

    samples: int
    many: int
    few: int
    window: int
    step: int
    wide: int
    deep: int
    groups: int
    nbytes: int

    @property
    def flops(self) -> int:
        """Multiplications and additions of one pass, whichever way it goes; those with zeros between are left out."""
        return 2 * self.samples * self.few * self.window * (self.wide // self.groups) * self.deep


@functools.lru_cache(maxsize=1024)
def plan_convolution(sizes: Convolution, machine: Machine, kind: str = "forward") -> Plan:
    """The product that a convolution is, planned as any other; windows overlap, so their elements are brought once.

    Where channels are few, `poplin` either fills them up to the width of the matrix unit or writes the window's
    positions as channels, which copies them; the cheaper of both counts.

    Args:
        sizes: Samples, positions, window and channels.
        machine: What to plan for.
        kind: `forward` from many positions to few, `input` back from few to many, or `weight`: the window's gradient.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> sizes = Convolution(
        ...     samples=8, many=3136, few=3136, window=9, step=1, wide=64, deep=64, groups=1, nbytes=2
        ... )
        >>> plan_convolution(sizes, Machine(target=IpuTarget.bow())).flops
        1849688064
    """
    wide, deep = max(1, sizes.wide // sizes.groups), max(1, sizes.deep // sizes.groups)
    few = sizes.samples * sizes.few
    # Elements of the pictures, as a share of the elements of all windows.
    overlap = min(1.0, sizes.many / (sizes.few * sizes.window))
    if kind == "weight":
        ways = [(sizes.window * wide, few, deep, (overlap, 1.0))]
    else:
        rows, taps, share = few, sizes.window, overlap
        if kind == "input":
            rows, taps, wide, deep = sizes.samples * sizes.many, ceil_div(sizes.window, sizes.step), deep, wide
            share = min(1.0, sizes.few / (sizes.many * taps))
        filled = ceil_div(wide, in_block(sizes.nbytes)) * in_block(sizes.nbytes)
        ways = [(rows, taps * filled, deep, (share * wide / filled, 1.0)), (rows, taps * wide, deep, (1.0, 1.0))]
    plans = [
        plan_matmul(rows, contraction, columns, sizes.nbytes, machine, sizes.groups, shares)
        for rows, contraction, columns, shares in ways
    ]
    best = min(plans, key=lambda plan: plan.cycles(Profile.CALIBRATED))
    names = {"rows": "positions", "contraction": "window", "columns": "channels", "serial": "serial"}
    why = "costed as a product of matrices; no published measurement of a convolution checks it"
    if sizes.groups > 1:
        why += f"; channels in {sizes.groups} groups, for which poplin has other vertices"
    return dataclasses.replace(
        best,
        family="convolution",
        split={names[key]: parts for key, parts in best.split.items()},
        flops=sizes.flops,
        considered=sum(plan.considered for plan in plans),
        validity=Validity.ESTIMATE,
        why=why,
        parts=(best,),
    )


def _sizes(x: Value, weight: Value, out: Value, op: Op, first: int) -> tuple[Convolution, bool]:
    """Of aten.convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    stride, transposed, groups = op.args[first], op.args[first + 3], op.args[first + 5]
    large, small = (out, x) if transposed else (x, out)
    sizes = Convolution(
        samples=max(1, x.shape[0]),
        many=max(1, math.prod(large.shape[2:])),
        few=max(1, math.prod(small.shape[2:])),
        window=max(1, math.prod(weight.shape[2:])),
        step=max(1, math.prod(stride)),
        wide=large.shape[1],
        deep=small.shape[1],
        groups=max(1, groups),
        nbytes=2 if x.dtype.itemsize == 2 else 4,
    )
    return sizes, bool(transposed)


def rule_convolution(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    x, weight, out = tensor(graph, op.args[0]), tensor(graph, op.args[1]), made(graph, op)[0]
    sizes, transposed = _sizes(x, weight, out, op, first=3)
    product = plan_convolution(sizes, machine, "input" if transposed else "forward")
    if not isinstance(op.args[2], Ref):
        return product
    bias = plan_elementwise("add", max(1, out.numel), width(out), machine, operand=out.shape[1])
    return in_sequence("convolution", product, bias)


def rule_convolution_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Of (grad, input, weight, bias_sizes, stride, ...): as many of three gradients as are asked for."""
    grad, x, weight = (tensor(graph, op.args[k]) for k in range(3))
    sizes, transposed = _sizes(x, weight, grad, op, first=4)
    plans = []
    if op.args[-1][0]:
        plans.append(plan_convolution(sizes, machine, "forward" if transposed else "input"))
    if op.args[-1][1]:
        plans.append(plan_convolution(sizes, machine, "weight"))
    if op.args[-1][2]:
        channels = max(1, grad.shape[1])
        plans.append(plan_reduce(channels, max(1, grad.numel // channels), width(grad), machine))
    return in_sequence("convolution", *plans)
