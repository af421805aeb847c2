"""Lowers a chain: writes the structures that the compiled library runs."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from popgeo.capture.op_graph import Number, Op, OpGraph
from popgeo.engine.fuse.block_program import BlockProgram
from popgeo.engine.fuse.chain import CHAIN, EDGE_CHAIN, Chain
from popgeo.engine.program.native_call import LOWERINGS, NativeCall


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


LOWERINGS[CHAIN] = LOWERINGS[EDGE_CHAIN] = lower_chain
