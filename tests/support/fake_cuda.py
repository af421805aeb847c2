"""A replacement of `torch.cuda` on a processor, for tests of the order of streams, events, captures and replays.

A captured graph contains the operations with their tensors, and a replay runs them in the same memory, as on a GPU.
After a capture, all changes are undone, because a GPU would not have run the operations. As a GPU does, a capture
refuses whatever waits for the device: reading values, shapes that depend on data, copies from or to ordinary memory.
A collective that fails in a replay leaves the device stuck, as NCCL's kernels do. The replacement says nothing about
speed. It reports memory that is written while a copy of another stream may still read it: the host must first wait for
an event after the copy.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from popgeo.engine import bind_step, cuda_graph, step_recipe
from popgeo.ops import near_tensors

# torch's functions that wait for the device or copy from ordinary memory
WAITS = {
    "item", "tolist", "cpu", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__contains__",
    "nonzero", "is_nonzero", "equal", "allclose", "unique", "unique_consecutive", "bincount", "masked_select",
    "tensor", "as_tensor", "asarray", "from_numpy", "pin_memory",
}  # fmt: skip

REFUSAL = "CUDA error: operation not permitted when stream is capturing"


class NoWaits(TorchFunctionMode):
    """A mode in which functions that wait for the device raise, as during a capture."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        is_on_host = keywords.get("device") == "cpu"  # torch's optimizers make scalars there
        if (getattr(func, "__name__", "") in WAITS and not is_on_host) or (func is Tensor.to and "cpu" in args):
            raise RuntimeError(REFUSAL)
        return func(*args, **keywords)


class FakeStream:
    """A stream with a name; it logs its calls.

    Attributes:
        device: The device for which it was made.
        copied: The memory of each asynchronous copy that the host has not waited for, and the content at that time.
        num_copies: Number of asynchronous copies so far.
    """

    def __init__(self, cuda: "FakeCuda", name: str, device: Any = None) -> None:
        self._cuda, self.name, self.device = cuda, name, device
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
            with torch._C.DisableTorchFunction():  # within `NoWaits`, too
                is_same = torch.equal(memory, content)
            if not is_same:
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

    def synchronize(self) -> None:
        self._cuda.wait(f"event {self.number}")
        self._stream.finish(self._num_copies)

    def query(self) -> bool:
        return self._cuda.has_arrived and not self._cuda.is_stuck


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

    def __init__(self, cuda: "FakeCuda") -> None:
        self._cuda = cuda
        self.ops: list[tuple[Any, tuple[Any, ...], Mapping[str, Any], Any]] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for func, args, kwargs, result in self.ops:
                try:
                    again = func(*args, **kwargs)
                    if func._schema.name.startswith("c10d::"):
                        again[-1].wait()
                except RuntimeError:
                    assert func._schema.name.startswith("c10d::")
                    self._cuda.is_stuck = True
                    return
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
        name, masks = func._schema.name, args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else []
        if name in ("aten::_local_scalar_dense", "aten::nonzero") or (
            name.startswith("aten::index") and any(_is(mask) and mask.dtype is torch.bool for mask in masks)
        ):
            raise RuntimeError(REFUSAL)
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
        is_stuck: Whether the device works on an operation that never ends.
        is_capturing: Whether a graph is captured now.
        has_arrived: The answer of events to the question whether they have happened.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.graphs: list[FakeGraph] = []
        self.is_stuck, self.is_capturing, self.has_arrived = False, False, True
        self._count = {"stream": 0, "event": 0}
        self._main, self._of_thread = FakeStream(self, "main"), threading.local()  # per thread, as in CUDA

    def _next(self, kind: str) -> int:
        self._count[kind] += 1
        return self._count[kind]

    def Stream(self, device: Any = None) -> FakeStream:
        return FakeStream(self, f"stream {self._next('stream')}", device)

    def Event(self, blocking: bool = False) -> FakeEvent:
        return FakeEvent(self, self._next("event"))

    def CUDAGraph(self) -> FakeGraph:
        return FakeGraph(self)

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
            raise RuntimeError(REFUSAL)
        self.log.append(f"host waits for {what}")

    def synchronize(self, device: Any = None) -> None:
        self.wait("all")

    @contextlib.contextmanager
    def graph(self, graph: FakeGraph, stream: FakeStream, capture_error_mode: str = "global") -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        assert stream.device is not None  # a stream without a device belongs to the current one, or to an earlier one
        random_numbers = torch.get_rng_state()
        capture, self.is_capturing = _Capture(graph), True
        try:
            with capture, NoWaits():
                yield
        finally:
            self.is_capturing = False
            capture.undo()
            torch.set_rng_state(random_numbers)
        self.graphs.append(graph)
        self.log.append("captured")


def install(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Replace `torch.cuda` by a fake over models and tensors of the processor."""
    fake = FakeCuda()
    for module in (step_recipe, cuda_graph):
        monkeypatch.setattr(module, "device_of", lambda model, backend: torch.device("cpu"))
    monkeypatch.setattr(bind_step, "torch", SimpleNamespace(cuda=fake))
    monkeypatch.setattr(near_tensors, "cuda", fake)
    for name in ("is_initialized", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: fake.is_capturing)
    for name in ("adam", "nadam", "radam", "adamax", "rmsprop", "rprop", "adadelta", "asgd"):
        # torch knows no processor that captures
        served = lambda *given, **named: ["cpu"]  # noqa: E731
        monkeypatch.setattr(sys.modules[f"torch.optim.{name}"], "_get_capturable_supported_devices", served)
    return fake


def _is(tensor: Any) -> bool:
    return isinstance(tensor, Tensor)
