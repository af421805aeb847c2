"""Places the values of a graph in memory that is allocated once; values reuse the memory of values no longer needed."""

import math
import mmap
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from popgeo.capture.marks import marked
from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.engine import out_variants

_ALIGNMENT = 64
_MAPPED_FROM = 2**20
_NO_RESERVE = {"linux": 0x4000, "darwin": 0x40}  # MAP_NORESERVE, which Python's mmap does not name before 3.13


class PlannedMemory:
    """The memory of programs that are planned and never run: addresses, to which the system gives no memory.

    Attributes:
        sizes: Bytes of each buffer that the programs would allocate.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def buffer(self, nbytes: int) -> Tensor:
        """Return a buffer at addresses of its own, which nothing may read or write. The result is uint8 [nbytes]."""
        if nbytes < _MAPPED_FROM or sys.platform not in _NO_RESERVE:
            return torch.empty(nbytes, dtype=torch.uint8)  # most systems give memory at the first write
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE[sys.platform]
        return torch.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype=torch.uint8)

    def like(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the same layout, at addresses of its own."""
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


def place_values(
    graph: OpGraph, given: Mapping[int, Tensor], *, overwrites_operands: bool = True
) -> tuple[Mapping[int, Tensor], Sequence[Tensor]]:
    """Place values so that no two values needed at the same time overlap, unless they are views of each other.

    Args:
        graph: The operations, in the order in which they run.
        given: Fixed tensors of certain values: inputs, parameters, constants and outputs.
        overwrites_operands: Whether an operation may write its result over an operand that no later operation needs.

    Returns:
        A tensor for each value, including the given ones, and the buffers that were allocated.
    """
    tensors = dict(given)
    places = {graph.values[v].storage: (tensor, byte_offset(graph.values[v])) for v, tensor in given.items()}
    spans = storage_spans(graph.values)
    owner: dict[int, Tensor] = {}  # buffer of each storage without a given tensor
    buffers: list[Tensor] = []
    free: list[Tensor] = []
    expires: dict[int, list[int]] = {}
    for storage, last in graph.last_uses().items():
        expires.setdefault(last, []).append(storage)
    for index, op in enumerate(graph.ops):
        for v in op.outputs:
            # A value that is changed in place keeps the place that it was made in.
            if v is None or v in tensors or v in op.writes:
                continue
            value = graph.values[v]
            if value.storage not in places:
                ending = owner.keys() & expires.get(index, ()) if overwrites_operands else set[int]()
                reused = _reusable_operand(graph, op, value, ending, spans)
                buffer = _take_buffer(spans[value.storage], free, buffers) if reused is None else owner.pop(reused)
                owner[value.storage], places[value.storage] = buffer, (buffer, 0)
            tensors[v] = view_of(*places[value.storage], value)
        free += [owner[storage] for storage in expires.get(index, ()) if storage in owner]
    return tensors, buffers


def _take_buffer(nbytes: int, free: list[Tensor], buffers: list[Tensor]) -> Tensor:
    """Return the smallest free buffer that fits without much waste, the most recent of equals; else a new buffer."""
    fitting = [(b.nbytes, -place) for place, b in enumerate(free) if nbytes <= b.nbytes <= 2 * nbytes + 4096]
    if fitting:
        return free.pop(-min(fitting)[1])
    size = max(_ALIGNMENT, math.ceil(nbytes / _ALIGNMENT) * _ALIGNMENT)
    buffers.append(new_buffer(size))
    return buffers[-1]


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
