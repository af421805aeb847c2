"""Places the values of a graph in memory that is allocated once; values reuse the memory of values no longer needed."""

import ctypes
import math
import mmap
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.marks import marked
from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.engine import out_variants

_ALIGNMENT = 64
_MAPPED_FROM = 2**20
_NO_RESERVE = {"linux": 0x4000, "darwin": 0x40}  # MAP_NORESERVE, which Python's mmap does not name before 3.13


class PlannedMemory:
    """The memory of programs that are planned and never run: addresses without physical memory.

    Attributes:
        sizes: Bytes of each buffer that the programs would allocate.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def buffer(self, nbytes: int) -> Tensor:
        """Return a buffer at unused addresses, uint8 [nbytes]. Nothing may read or write it."""
        if nbytes < _MAPPED_FROM or sys.platform not in _NO_RESERVE:
            return torch.empty(nbytes, dtype=torch.uint8)  # most systems give memory at the first write
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE[sys.platform]
        return torch.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype=torch.uint8)

    def like(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the same layout, at unused addresses."""
        nbytes = max(tensor.untyped_storage().nbytes(), tensor.itemsize)
        return self.buffer(nbytes).view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


_planned: ContextVar[PlannedMemory | None] = ContextVar("memory of a program that never runs", default=None)


@contextmanager
def planned_memory() -> Iterator[PlannedMemory]:
    """Plan the memory of the programs that the block makes, instead of allocating it.

    Example:
        >>> with planned_memory() as memory:
        ...     buffer = new_buffer(2**20)
        >>> memory.sizes, len(buffer)
        ([1048576], 1048576)
    """
    token = _planned.set(memory := PlannedMemory())
    try:
        yield memory
    finally:
        _planned.reset(token)


def is_planned() -> bool:
    """Return whether programs are only planned here, so that they cannot run."""
    return _planned.get() is not None


def new_buffer(nbytes: int) -> Tensor:
    """Return an empty buffer in new memory. The result is uint8 [nbytes]."""
    memory = _planned.get()
    if memory is None:
        return torch.empty(nbytes, dtype=torch.uint8)
    memory.sizes.append(nbytes)
    return memory.buffer(nbytes)


@dataclass
class _Block:
    """Bytes of the buffer, from the first to the last operation that needs them, for one storage after another."""

    size: int
    first: int
    last: int
    start: int = 0


def place_values(
    graph: OpGraph, given: Mapping[int, Tensor], *, overwrites_operands: bool = True
) -> tuple[Mapping[int, Tensor], Tensor]:
    """Place values so that no two values needed at the same time overlap, unless they are views of each other.

    Args:
        graph: The operations, in the order in which they run.
        given: Fixed tensors of certain values: inputs, parameters, constants and outputs.
        overwrites_operands: Whether an operation may write its result over an operand that no later operation needs.

    Returns:
        A tensor for each value, including the given ones, and the buffer that was allocated for the others.
    """
    tensors = dict(given)
    places = {graph.values[v].storage: (tensor, byte_offset(graph.values[v])) for v, tensor in given.items()}
    blocks, block_of = _blocks(graph, places.keys(), overwrites_operands)
    buffer = new_buffer(_place_blocks(blocks))
    places |= {storage: (_memory_of(block, buffer), 0) for storage, block in block_of.items()}
    for op in graph.ops:
        for v in op.outputs:
            # A value that is changed in place keeps the place that it was made in.
            if v is not None and v not in tensors and v not in op.writes:
                tensors[v] = view_of(*places[graph.values[v].storage], graph.values[v])
    return tensors, buffer


def _blocks(
    graph: OpGraph, placed: Set[int], overwrites_operands: bool
) -> tuple[Sequence[_Block], Mapping[int, _Block]]:
    """Return the blocks of memory that a graph needs, and the block of each storage that has no place yet."""
    spans, last_uses = storage_spans(graph.values), graph.last_uses()
    expires: dict[int, set[int]] = {}
    for storage, last in last_uses.items():
        expires.setdefault(last, set()).add(storage)
    blocks: list[_Block] = []
    block_of: dict[int, _Block] = {}
    for index, op in enumerate(graph.ops):
        ending = expires.get(index, set()) & block_of.keys() if overwrites_operands else set()
        for v in op.outputs:
            if v is None or v in op.writes or (storage := graph.values[v].storage) in placed or storage in block_of:
                continue
            reused = _reusable_operand(graph, op, graph.values[v], ending, spans)
            if reused is None:
                size = max(_ALIGNMENT, math.ceil(spans[storage] / _ALIGNMENT) * _ALIGNMENT)
                blocks.append(_Block(size, index, last_uses[storage]))
                block_of[storage] = blocks[-1]
            else:
                ending.remove(reused)
                block_of[storage] = block_of[reused]
                block_of[storage].last = last_uses[storage]
    return blocks, block_of


def _place_blocks(blocks: Sequence[_Block]) -> int:
    """Set the first byte of each block in one buffer, and return the size of this buffer.

    Blocks that are needed at the same time do not overlap. From the largest to the smallest, each block takes the
    smallest gap that holds it: "greedy by size" in Y. Pisarchyk and J. Lee, arXiv:2001.03288.
    """
    size, first, last = np.array([(block.size, block.first, block.last) for block in blocks], int).reshape(-1, 3).T
    start, order = np.zeros_like(size), np.lexsort((first, -size))
    for number, i in enumerate(order):
        others = order[:number]
        others = others[(first[others] <= last[i]) & (last[others] >= first[i])]
        others = others[np.argsort(start[others], kind="stable")]
        ends = np.maximum.accumulate(np.concatenate([[0], (start + size)[others]]))
        gaps = start[others] - ends[:-1]
        fits = np.flatnonzero(gaps >= size[i])
        start[i] = ends[fits[np.argmin(gaps[fits])]] if len(fits) else ends[-1]
        blocks[i].start = int(start[i])
    return int((start + size).max(initial=0))


def _memory_of(block: _Block, buffer: Tensor) -> Tensor:
    """Return the bytes of a block as a separate storage, uint8 [block.size], which keeps the buffer alive.

    Some functions ignore the offset of a tensor in its storage, such as `torch.set_rng_state` of torch 2.13.
    """
    memory = (ctypes.c_uint8 * block.size).from_address(buffer.data_ptr() + block.start)
    memory.buffer = buffer  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=torch.uint8)


def _reusable_operand(graph: OpGraph, op: Op, value: Value, ending: Set[int], spans: Mapping[int, int]) -> int | None:
    """Return the storage of an operand that an element-wise operation may overwrite with its result.

    The operand has the result's layout, and no later operation needs it.
    """
    if not out_variants.is_elementwise(op):
        return None
    ending = ending - {graph.values[v].storage for v in op.writes}
    form = value.shape, value.stride, value.dtype, 0, value.marks
    for v in op.reads():
        operand = graph.values[v]
        fits = (operand.shape, operand.stride, operand.dtype, operand.offset, operand.marks) == form
        only_view = all(w == v for w in op.reads() if graph.values[w].storage == operand.storage)
        if fits and operand.storage in ending and only_view and spans[operand.storage] == spans[value.storage]:
            return operand.storage
    return None


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the memory of tensors; shared memory counts once.

    Example:
        >>> x = torch.ones(4)
        >>> storage_bytes([x, x[:2], torch.ones(1)])
        20
    """
    return sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}.values())


def storage_spans(values: Iterable[Value]) -> dict[int, int]:
    """Return for each storage the bytes that its values span."""
    spans: dict[int, int] = {}
    for value in values:
        spans[value.storage] = max(value.end, spans.get(value.storage, 0))
    return spans


def laid_out(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return the tensor with the captured strides; some kernels of torch return other strides than at the capture."""
    if tensor.stride() == stride:
        return tensor.detach()
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor.detach())


def byte_offset(value: Value) -> int:
    """Return the bytes before a value's first element in its storage."""
    return value.offset * value.dtype.itemsize


def view_of(place: Tensor, held: int, value: Value) -> Tensor:
    """Return the tensor of a value that is stored in the memory of another value.

    Args:
        place: The tensor of the other value.
        held: Offset of the other value in the storage, in bytes.
        value: The value, in the same storage.
    """
    start = place.storage_offset() * place.dtype.itemsize - held + value.offset * value.dtype.itemsize
    whole = torch.empty(0, dtype=value.dtype)
    whole.set_(place.untyped_storage(), start // value.dtype.itemsize, value.shape, value.stride)
    return marked(whole, value.marks)
