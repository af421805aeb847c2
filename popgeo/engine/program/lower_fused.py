"""Lowers the operations that the passes of `fuse` make: chains, orders of edges, interactions and their plans."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import Number, Op, OpGraph, substitute
from popgeo.engine.fuse.block_program import BlockProgram
from popgeo.engine.fuse.chain import CHAIN, EDGE_CHAIN, Chain
from popgeo.engine.fuse.edge_rows import EDGE_ORDER
from popgeo.engine.fuse.plan_interactions import BACKWARD, FORWARD, PLAN, SECOND
from popgeo.engine.program.native_call import LOWERINGS, NativeCall, native_call
from popgeo.ops import interaction_call
from popgeo.ops.interaction_call import InteractionCall
from popgeo.ops.interaction_ops import NUM_ARGUMENTS, pack_backward, pack_forward, pack_second

_NUM_THREADS = 24  # of interaction.h: the word with the number of threads


def lower_chain(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall:
    """Return the native call of a chain on values in these tensors."""
    chain: Chain = op.args[0]
    program = BlockProgram(chain, graph.values, tensors)
    slots, instructions = np.array(program.slots, np.int64), np.array(program.instructions, np.int64)
    numbers = np.array([n.value if isinstance(n, Number) else n for n in chain.numbers], np.float32)
    for slot, index in program.number_slots:
        slots[slot, 1] = numbers.ctypes.data + 4 * index
    partial = np.zeros(program.num_chunks * program.partial_size, np.float64)
    header = (
        slots.ctypes.data, instructions.ctypes.data, partial.ctypes.data,
        len(slots), len(instructions), program.num_invariant,
        *program.domain, *program.block, program.num_chunks, program.partial_size, program.sums_columns, program.group,
        0 if chain.order is None else tensors[chain.order].data_ptr(),
    )  # fmt: skip
    return NativeCall(
        function="popgeo_chain",
        words=np.array(header, np.int64),
        tables=[slots],
        numbers=[(numbers, index, n.slot) for index, n in enumerate(chain.numbers) if isinstance(n, Number)],
        held=(instructions, partial, numbers),
    )


def lower_order(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall:
    """Return the native call that sorts edges by row."""
    order, index, num_rows = tensors[op.makes()[0]], tensors[op.reads()[0]], op.args[1]
    places = order[2:], order[3 + num_rows :], order  # row pointer, edges in the order of the rows, head
    return native_call("popgeo_plan", index, *places, index.numel(), num_rows)


def lower_plan(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall | None:
    """Return the native call that plans the interactions of some edges; None if no kernel serves them."""
    src, dst, r, cutoff, *sizes = substitute(op.args, tensors.__getitem__)
    plan, weights = (tensors[v] for v in op.makes())
    if not interaction_call.is_served() or not all(map(_is_read_in_place, (src, dst, r))):
        return None
    packed = interaction_call.pack_plan(src, dst, r, cutoff, sizes, plan, weights)
    return NativeCall(function="popgeo_interaction_plan", words=_words(packed))


def _lower(pack: Callable[..., bytes], graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall | None:
    results = [tensors[v] for v in op.makes()]
    if not results or results[-1].dtype is not torch.uint8:  # `plan_interactions` gave it no working memory
        return None
    args = substitute(op.args, tensors.__getitem__)
    packed = pack(InteractionCall(*args[:NUM_ARGUMENTS]), results, 1, *args[NUM_ARGUMENTS:])
    return NativeCall(function="popgeo_interaction", words=_words(packed), num_threads=_NUM_THREADS)


def _is_read_in_place(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.dtype in (torch.int64, torch.float32, torch.float64)


def _words(packed: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(packed), np.int64)


LOWERINGS |= {CHAIN: lower_chain, EDGE_CHAIN: lower_chain, EDGE_ORDER: lower_order, PLAN: lower_plan}
_PACKS = ((FORWARD, pack_forward), (BACKWARD, pack_backward), (SECOND, pack_second))
LOWERINGS |= {target: partial(_lower, pack) for target, pack in _PACKS}
