"""Plans of attention: its products, its softmax and the passes between them, for all heads or for some at a time."""

import dataclasses
import functools
import math
from dataclasses import dataclass

from popgeo.capture.op_graph import Op, OpGraph, Ref
from popgeo.capture.schemas import argument_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.layouts import with_layout
from popgeo.ipu.cost.matmul import SERIAL_CYCLES, plan_matmul
from popgeo.ipu.cost.norms import REDUCE, SOFTMAX, plan_groups
from popgeo.ipu.cost.operands import distinct, tensor, width
from popgeo.ipu.cost.plan import Plan, Profile
from popgeo.ipu.cost.splits import work_space
from popgeo.ipu.cost.supersteps import compute_step, in_sequence, repeated
from popgeo.ipu.cost.vertex_cycles import ceil_div

_MORE_TURNS = 2  # larger numbers of turns to compare, after the first number that fits


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The sizes of softmax(queries @ keys.T * scale + mask) @ values, computed for all heads at the same time.

    Attributes:
        heads: Number of heads, over all samples.
        queries: Rows of the queries.
        keys: Rows of the keys and values.
        width: Columns of queries and keys.
        value_width: Columns of the values.
        nbytes: Bytes of an element: 2 or 4.
        mask: Elements of the mask that is added to the scores. Default: no mask.
        is_dropped: Whether probabilities are dropped out at random.
    """

    heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    nbytes: int
    mask: int = 0
    is_dropped: bool = False

    @property
    def scores(self) -> int:
        """Number of elements in the scores of all heads."""
        return self.heads * self.queries * self.keys

    @property
    def held(self) -> int:
        """Number of elements in queries, keys, values and output."""
        columns = self.width + self.value_width
        return self.heads * (self.queries + self.keys) * columns


@functools.lru_cache(maxsize=1024)
def plan_attention(sizes: Attention, machine: Machine, is_backward: bool = False) -> Plan:
    """Plan attention as products, scaling, mask and softmax, one after the other, as PopART runs them.

    An IPU has no kernel that keeps the scores out of memory. If the scores of all heads do not fit, the plan makes and
    uses the scores of some heads at a time, or of some rows of a head. The backward pass receives the logarithms of the
    sums that the forward pass divided by, as in torch, so it computes the scores again: five products. A causal mask
    saves no cycles: whole products are computed, then masked.

    Args:
        sizes: Rows, columns and heads.
        machine: The machine and its constants.
        is_backward: Whether to plan the gradients of queries, keys and values.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> sizes = Attention(heads=12, queries=1024, keys=1024, width=64, value_width=64, nbytes=2)
        >>> plan = plan_attention(sizes, Machine(target=IpuTarget.bow()))
        >>> dict(plan.split), [part.family for part in plan.parts][:3]
        ({'heads': 12, 'serial': 1}, ['elementwise', 'matmul', 'norms'])
    """
    held = (2 if is_backward else 1) * sizes.held * sizes.nbytes / machine.num_tiles
    space = work_space(machine.target, held)
    whole = _turn(sizes, machine, is_backward)
    found = [whole]
    fits = [whole] if whole.temporary_bytes <= space else []
    if not fits:
        kept = ceil_div((2 if is_backward else 1) * sizes.scores * sizes.nbytes, machine.num_tiles)
        for turns in (turns for turns in _turns(sizes) if kept <= space * turns):
            found.append(_in_turns(sizes, turns, whole, machine, is_backward))
            fits += found[-1:] if found[-1].temporary_bytes <= space else []
            if len(fits) > _MORE_TURNS:
                break
    best = min(fits or found[-1:], key=lambda plan: plan.cycles(Profile.CALIBRATED))
    return dataclasses.replace(best, considered=sum(plan.considered for plan in found))


def _turns(sizes: Attention) -> list[int]:
    """Return the possible numbers of loop turns: the work is cut by heads first, then by rows of a head."""
    by_heads = [turns for turns in range(2, sizes.heads + 1) if sizes.heads % turns == 0]
    by_rows = [sizes.heads * 2**power for power in range(1, sizes.queries.bit_length())]
    return by_heads + by_rows


def _in_turns(sizes: Attention, turns: int, whole: Plan, machine: Machine, is_backward: bool) -> Plan:
    """Plan a loop over heads or rows that sums gradients of keys and values over the rows of a head."""
    heads = max(1, sizes.heads // turns)
    rows = ceil_div(sizes.queries, max(1, turns // sizes.heads))
    part = dataclasses.replace(sizes, heads=heads, queries=rows, mask=min(sizes.mask, heads * rows * sizes.keys))
    one = _turn(part, machine, is_backward)
    plans = [one]
    if is_backward and rows < sizes.queries:
        columns = sizes.keys * (sizes.width + sizes.value_width)
        plans.append(plan_elementwise("add", heads * columns, sizes.nbytes, machine))
    loop = compute_step(
        "loop over parts", machine.target, vertex=SERIAL_CYCLES - machine.target.launch_cycles, tiles=machine.num_tiles
    )
    steps = (*in_sequence("attention", *plans).supersteps, loop)
    return dataclasses.replace(
        one,
        split={"heads": heads, "serial": turns},
        supersteps=tuple(repeated(step, turns) for step in steps),
        flops=whole.flops,
    )


def _turn(sizes: Attention, machine: Machine, is_backward: bool) -> Plan:
    """Plan attention of all given heads and rows at once."""
    parts = _backward(sizes, machine) if is_backward else _forward(sizes, machine)
    plan = in_sequence("attention", *parts)
    # The probabilities stay in memory while they are used. The backward pass also keeps their gradients.
    scores = ceil_div((2 if is_backward else 1) * sizes.scores * sizes.nbytes, machine.num_tiles)
    return dataclasses.replace(
        plan,
        split={"heads": sizes.heads, "serial": 1},
        temporary_bytes=scores + plan.temporary_bytes,
        why="costed as the products and the softmax that it consists of; " + plan.why,
    )


def _scores(sizes: Attention, machine: Machine) -> list[Plan]:
    """Plan the scaled and masked scores."""
    plans = [
        plan_elementwise("scalar", sizes.heads * sizes.queries * sizes.width, sizes.nbytes, machine),
        _product(sizes.queries, sizes.width, sizes.keys, sizes, machine),
    ]
    if sizes.mask:
        smaller = sizes.mask if sizes.mask < sizes.scores else 0
        plans.append(plan_elementwise("add", sizes.scores, sizes.nbytes, machine, operand=smaller))
    return plans


def _forward(sizes: Attention, machine: Machine) -> list[Plan]:
    """Plan the forward pass."""
    rows = sizes.heads * sizes.queries
    return [
        *_scores(sizes, machine),
        plan_groups(SOFTMAX, rows, sizes.scores, sizes.nbytes, machine),
        *(plan_elementwise(kind, sizes.scores, sizes.nbytes, machine) for kind in _dropout(sizes)),
        _product(sizes.queries, sizes.keys, sizes.value_width, sizes, machine),
        # The backward pass needs the logarithms of the softmax's sums.
        plan_elementwise("log", rows, sizes.nbytes, machine),
        plan_elementwise("add", rows, sizes.nbytes, machine),
    ]


def _backward(sizes: Attention, machine: Machine) -> list[Plan]:
    """Plan the backward pass.

    With P the probabilities, O the output and D the sums of dO * O by row: dV = P.T dO, dS = P * (dO V.T - D).
    """
    rows = sizes.heads * sizes.queries
    return [
        *_scores(sizes, machine),
        plan_elementwise("subtract", sizes.scores, sizes.nbytes, machine, operand=rows),
        plan_elementwise("exp", sizes.scores, sizes.nbytes, machine),
        *(plan_elementwise(kind, sizes.scores, sizes.nbytes, machine) for kind in _dropout(sizes)),
        _product(sizes.keys, sizes.queries, sizes.value_width, sizes, machine),
        _product(sizes.queries, sizes.value_width, sizes.keys, sizes, machine),
        plan_groups(("multiply", REDUCE), rows, rows * sizes.value_width, sizes.nbytes, machine),
        plan_elementwise("subtract", sizes.scores, sizes.nbytes, machine, operand=rows),
        plan_elementwise("multiply", sizes.scores, sizes.nbytes, machine),
        _product(sizes.queries, sizes.keys, sizes.width, sizes, machine),
        _product(sizes.keys, sizes.queries, sizes.width, sizes, machine),
        plan_elementwise("scalar", rows * sizes.width, sizes.nbytes, machine),
        plan_elementwise("scalar", sizes.heads * sizes.keys * sizes.width, sizes.nbytes, machine),
    ]


def _dropout(sizes: Attention) -> tuple[str, ...]:
    """Return the passes of a dropout of the probabilities."""
    return ("random", "multiply", "multiply") if sizes.is_dropped else ()


def _product(rows: int, contraction: int, columns: int, sizes: Attention, machine: Machine) -> Plan:
    """Plan one product of all heads, and rearrange float16 rows of odd length."""
    plan = plan_matmul(rows, contraction, columns, 2 if sizes.nbytes == 2 else 4, machine, sizes.heads)
    # Each product reads or makes scores, their gradients or probabilities. All have one column per key.
    is_odd = sizes.nbytes == 2 and sizes.keys % 2 and sizes.keys > 1
    return with_layout(plan, 2 * sizes.scores if is_odd else 0, machine)


def rule_attention(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan scaled dot-product attention, forward or backward."""
    query, key, value = (tensor(graph, argument_of(op, name)) for name in ("query", "key", "value"))
    heads, (queries, columns) = math.prod(query.shape[:-2]), query.shape[-2:]
    keys, mask = key.shape[-2], argument_of(op, "attn_mask")
    elements = queries * keys if argument_of(op, "is_causal") else 0
    if isinstance(mask, Ref):
        elements = max(elements, distinct(tensor(graph, mask)))
    sizes = Attention(
        heads=max(1, heads),
        queries=max(1, queries),
        keys=max(1, keys),
        width=max(1, columns),
        value_width=max(1, value.shape[-1]),
        nbytes=width(query),
        mask=elements,
        is_dropped=argument_of(op, "dropout_p") > 0,
    )
    return plan_attention(sizes, machine, is_backward="_backward" in op.target)
