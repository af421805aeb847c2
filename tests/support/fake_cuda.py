"""A replacement of `torch.cuda` on a processor, for tests of the order of streams, events, captures and replays.

A captured graph contains the operations with their tensors, and a replay runs them in the same memory, as on a GPU.
After a capture, all changes are undone, because a GPU would not have run the operations. The replacement says nothing
about speed, and of a real device's refusals it knows only waits: reading values and waiting for events. It reports
memory that is written while a copy of another stream may still read it: the host must first wait for an event after
the copy.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

_WAITS = {
    "_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim", "unique_consecutive",
    "bincount",
}  # fmt: skip
_REFUSED = "CUDA error: operation not permitted when stream is capturing"


class NoWaits(TorchDispatchMode):
    """A mode in which an operation raises an error if the host of a GPU would wait for its result."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if waits(func, args):
            raise RuntimeError(_REFUSED)
        return func(*args, **(kwargs or {}))


def waits(func: Any, args: Sequence[Any]) -> bool:
    """Check whether the host of a GPU would wait for the result of an operation."""
    name = func._schema.name.removeprefix("aten::")
    return name in _WAITS or (name == "index" and any(_is(one) and one.dtype is torch.bool for one in args[1]))


class FakeStream:
    """A stream with a name; it logs its calls.

    Attributes:
        copied: The memory of each asynchronous copy that the host has not waited for, and the content at that time.
        num_copies: Number of asynchronous copies so far.
    """

    def __init__(self, cuda: "FakeCuda", name: str) -> None:
        self._cuda, self.name = cuda, name
        self.copied: dict[int, tuple[Tensor, Tensor]] = {}
        self.num_copies = 0

    def copy_from(self, source: Tensor) -> None:
        """Note that a copy reads this memory from now on."""
        for earlier, _ in self.copied.values():
            if earlier.data_ptr() == source.data_ptr():
                raise AssertionError("memory is copied again before the host has waited for the copy before")
        self.num_copies += 1
        self.copied[self.num_copies] = source, source.clone()

    def finish(self, num_copies: int) -> None:
        """End the first copies, and check that the memory stayed as it was."""
        for number in [one for one in self.copied if one <= num_copies]:
            memory, content = self.copied.pop(number)
            with torch.utils._python_dispatch._disable_current_modes():
                is_unchanged = torch.equal(memory, content)
            if not is_unchanged:
                raise AssertionError("memory was written before the host had waited for the copy that reads it")

    def wait_stream(self, other: "FakeStream") -> None:
        self._cuda.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: "FakeEvent") -> None:
        self._cuda.log.append(f"{self.name} waits for event {event.number}")


class FakeEvent:
    def __init__(self, cuda: "FakeCuda", number: int) -> None:
        self._cuda, self.number = cuda, number
        self._stream, self._num_copies = cuda.current_stream(), 0

    def record(self, stream: FakeStream | None = None) -> None:
        self._stream = stream or self._cuda.current_stream()
        self._num_copies = self._stream.num_copies
        self._cuda.log.append(f"event {self.number} after {self._stream.name}")

    def query(self) -> bool:
        return self._cuda.has_arrived

    def synchronize(self) -> None:
        self._cuda.wait(f"event {self.number}")
        self._stream.finish(self._num_copies)


class _Copies(TorchDispatchMode):
    """Note the memory that asynchronous copies on a stream read."""

    def __init__(self, stream: FakeStream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name == "aten::copy_" and (kwargs.get("non_blocking") or args[2:] == (True,)):
            self._stream.copy_from(args[1])
        return func(*args, **kwargs)


class FakeGraph:
    """Operations, in order, with their captured memory."""

    def __init__(self) -> None:
        self.ops: list[tuple[Any, tuple[Any, ...], Mapping[str, Any], Any]] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for func, args, kwargs, result in self.ops:
                again = func(*args, **kwargs)
                for old, new in zip(tree_flatten(result)[0], tree_flatten(again)[0], strict=True):
                    if _is(old) and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                        old.copy_(new)


class _Capture(TorchDispatchMode):
    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()
        self.graph = graph
        self.before: dict[int, tuple[Tensor, Tensor]] = {}  # memory that an operation changes, and its old content
        self.made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        if waits(func, args):
            raise RuntimeError(_REFUSED)
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[position] if position < len(args) else keywords.get(argument.name)
                for tensor in given if isinstance(given, list | tuple) else [given]:
                    self._keep(tensor)
        if func._schema.name == "aten::native_batch_norm" and args[5]:
            self._keep(args[3])
            self._keep(args[4])
        result = func(*args, **keywords)
        given_memory = {t.untyped_storage().data_ptr() for t in tree_flatten((args, keywords))[0] if _is(t)}
        for tensor in tree_flatten(result)[0]:
            if _is(tensor) and tensor.untyped_storage().data_ptr() not in given_memory:
                self.made.add(tensor.untyped_storage().data_ptr())
        held = tuple(list(part) if isinstance(part, list) else part for part in args)
        self.graph.ops.append((func, held, keywords, result))
        return result

    def _keep(self, tensor: Any) -> None:
        if _is(tensor) and tensor.untyped_storage().data_ptr() not in self.made:
            address = tensor.untyped_storage().data_ptr()
            with torch.utils._python_dispatch._disable_current_modes():
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self.before.setdefault(address, (whole, whole.clone()))

    def undo(self) -> None:
        for whole, held in self.before.values():
            whole.copy_(held)


class FakeCuda:
    """The part of `torch.cuda` that popgeo calls.

    Attributes:
        log: Calls of streams and events, in order.
        graphs: The captured graphs.
        is_capturing: Whether a graph is captured now.
        has_arrived: The answer of events to the question whether they have happened.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.graphs: list[FakeGraph] = []
        self.is_capturing, self.has_arrived = False, True
        self._count = {"stream": 0, "event": 0}
        self._main, self._of_thread = FakeStream(self, "main"), threading.local()  # per thread, as in CUDA

    def _next(self, kind: str) -> int:
        self._count[kind] += 1
        return self._count[kind]

    def Stream(self, device: Any = None) -> FakeStream:
        return FakeStream(self, f"stream {self._next('stream')}")

    def Event(self, blocking: bool = False) -> FakeEvent:
        return FakeEvent(self, self._next("event"))

    def CUDAGraph(self) -> FakeGraph:
        return FakeGraph()

    def current_stream(self, device: Any = None) -> FakeStream:
        return getattr(self._of_thread, "stream", self._main)

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.current_stream()
        self._of_thread.stream = stream
        with _Copies(stream):
            yield
        self._of_thread.stream = before

    def device(self, device: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def wait(self, what: str) -> None:
        if self.is_capturing:
            raise RuntimeError(_REFUSED)
        self.log.append(f"host waits for {what}")

    def synchronize(self, device: Any = None) -> None:
        self.wait("all")

    @contextlib.contextmanager
    def graph(self, graph: FakeGraph, capture_error_mode: str = "global") -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        random_numbers = torch.get_rng_state()
        capture, self.is_capturing = _Capture(graph), True
        try:
            with capture:
                yield
        finally:
            self.is_capturing = False
            capture.undo()
            torch.set_rng_state(random_numbers)
        self.graphs.append(graph)
        self.log.append("captured")


def _is(tensor: Any) -> bool:
    return isinstance(tensor, Tensor)
