"""Plans of convolutions as products of matrices, as in `poplin`: positions x window times channels x channels."""

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
    """The sizes of a convolution from many positions to few; a transposed convolution goes from few to many.

    Attributes:
        samples: Images or sequences.
        many: Positions of a sample on the side with the windows.
        few: Positions of a sample on the other side, one per window.
        window: Positions of a window.
        step: Product of the strides: 4 if windows start at every second position of two dimensions.
        wide: Channels on the side of many positions.
        deep: Channels on the side of few positions.
        groups: Number of independent sets of channels.
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
        """Multiplications and additions of one pass in any direction, without multiplications by inserted zeros."""
        return 2 * self.samples * self.few * self.window * (self.wide // self.groups) * self.deep


@functools.lru_cache(maxsize=1024)
def plan_convolution(sizes: Convolution, machine: Machine, kind: str = "forward") -> Plan:
    """Plan a convolution as a product of matrices; elements of overlapping windows are sent to a tile once.

    If channels are few, `poplin` either fills them up to the width of the matrix unit or copies the positions of the
    window into channels. The plan is the cheaper of the two.

    Args:
        sizes: Samples, positions, window and channels.
        machine: The machine and its constants.
        kind: `forward` from many positions to few, `input` back from few to many, or `weight` for the gradient of the
            window.

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
    # Distinct elements of the images, as a share of the elements of all windows.
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
    """Return the sizes of a convolution and whether it is transposed.

    The operation is aten.convolution(input, weight, bias, stride, padding, dilation, transposed,
    output_padding, groups); `first` is the position of the stride.
    """
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
    """Plan a convolution and the addition of its bias."""
    x, weight, out = tensor(graph, op.args[0]), tensor(graph, op.args[1]), made(graph, op)[0]
    sizes, transposed = _sizes(x, weight, out, op, first=3)
    product = plan_convolution(sizes, machine, "input" if transposed else "forward")
    if not isinstance(op.args[2], Ref):
        return product
    bias = plan_elementwise("add", max(1, out.numel), width(out), machine, operand=out.shape[1])
    return in_sequence("convolution", product, bias)


def rule_convolution_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the requested gradients of aten.convolution_backward(grad, input, weight, bias_sizes, stride, ...)."""
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
