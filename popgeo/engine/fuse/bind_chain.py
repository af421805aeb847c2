"""Binds a chain to memory: writes the structures that the compiled library runs."""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import Number, Op, OpGraph
from popgeo.engine.fuse.block_program import BlockProgram
from popgeo.engine.fuse.chain import Chain
from popgeo.engine.fuse.prepared import PreparedCall, late_arguments
from popgeo.native import library

_pack = struct.Struct("15q").pack


def prepare_chain(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> PreparedCall:
    """Return a function that runs a chain on values in these tensors.

    Its arguments are the operands without a fixed place and the changing numbers, as in `late_arguments`.
    """
    native = library.packed("popgeo_chain")
    assert native is not None, "a graph is joined only where the library is available"
    chain: Chain = op.args[0]
    program = BlockProgram(chain, graph.values, tensors)
    slots, instructions = np.array(program.slots, np.int64), np.array(program.instructions, np.int64)
    numbers = np.array([n.value if isinstance(n, Number) else n for n in chain.numbers], np.float32)
    for slot, index in program.number_slots:
        slots[slot, 1] = numbers.ctypes.data + 4 * index
    partial = np.zeros(program.num_chunks * program.partial_size, np.float64)
    header = _pack(
        slots.ctypes.data, instructions.ctypes.data, partial.ctypes.data,
        len(slots), len(instructions), program.num_invariant,
        *program.domain, *program.block, program.num_chunks, program.partial_size, program.sums_columns, program.group,
        0 if chain.order is None else tensors[chain.order].data_ptr(),
    )  # fmt: skip
    late, _ = late_arguments(op, tensors)
    where = [[(slot, field) for slot, field, v in program.value_slots if v == value] for value in late]
    operands = [(at, graph.values[v].stride, v in op.writes) for at, v in zip(where, late, strict=True)]
    changing = [index for index, number in enumerate(chain.numbers) if isinstance(number, Number)]
    # The header points into these; they must live as long as the call.
    held = (instructions, partial, [tensors[v] for v in (*op.reads(), *op.makes()) if v in tensors])

    def call(*given: Any, _held: Any = held) -> None:
        copies = []
        for tensor, (at, stride, written) in zip(given, operands, strict=False):
            if tensor.stride() != stride:  # a kernel has returned other strides than at the capture
                copy = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
                copies.append((tensor, copy, written))
                tensor = copy
            for slot in at:
                slots[slot] = tensor.data_ptr()
        for index, number in zip(changing, given[len(operands) :], strict=True):
            numbers[index] = number
        native(header)
        for tensor, copy, written in copies:
            if written:
                tensor.copy_(copy)

    return call
