"""Copying of batches to a device ahead of time, as one block of memory, on a separate stream."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from popgeo.byte_block import ByteBlock
from popgeo.loader.prefetch import in_background

FEATURES = ("x", "edge_attr")
"""Attributes that `feature_dtype` converts unless it names others."""


class DeviceFeed:
    """A feed that copies batches to a device ahead of time, on a separate thread and stream.

    Each batch is written into a page-locked block of memory and converted on the way. One asynchronous copy moves the
    block, and the resulting batch consists of views of it. On the processor the same code runs without streams.

    Args:
        device: Device of the resulting batches.
        batches_ahead: Number of batches that are made and copied before they are requested.
        feature_dtype: Floating-point type for `x` and `edge_attr`, or a type for each named attribute.
        cuda: `torch.cuda`, or its replacement in a test. Default: chosen by the device.

    Raises:
        ValueError: the device does not exist, or a number or a type is not allowed.

    Example:
        >>> feed = DeviceFeed("cpu", feature_dtype=torch.float16)
        >>> [batch.x.dtype for batch in feed.feed(iter([Batch(x=torch.ones(3, 2))]))]
        [torch.float16]
    """

    def __init__(
        self,
        device: torch.device | str | int,
        *,
        batches_ahead: int = 2,
        feature_dtype: torch.dtype | Mapping[str, torch.dtype] | None = None,
        cuda: Any = None,
    ) -> None:
        self.device = _known(device)
        if type(batches_ahead) is not int or batches_ahead < 1:
            raise ValueError(f"batches_ahead is {batches_ahead!r}; it must be an integer of at least 1.")
        self._ahead, self._dtypes = batches_ahead, _by_name(feature_dtype)
        self._must_exist = isinstance(feature_dtype, Mapping)
        self._cuda: Any = cuda or (torch.cuda if self.device.type == "cuda" else torch.cpu)
        self._kinds: list[tuple[Any, ...]] = []
        self._stages: list[tuple[ByteBlock, Any]] = []
        self._stream = self._cuda.Stream(self.device)

    def feed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches in the same order, on the device, ready for later work on the current stream."""
        for batch, block, has_arrived in in_background(map(self._copy, batches), self._ahead):
            current = self._cuda.current_stream(self.device)
            current.wait_event(has_arrived)
            if block.memory.is_cuda:
                block.memory.record_stream(current)  # keeps the memory while that stream may read it
            yield batch

    def _copy(self, batch: Any) -> tuple[Batch, ByteBlock, Any]:
        stores = [batch._asdict()] if hasattr(batch, "_asdict") else batch.stores
        names = [(i, name) for i, store in enumerate(stores) for name in store.keys() if torch.is_tensor(store[name])]  # noqa: SIM118
        tensors = [stores[i][name] for i, name in names]
        kinds = [(tuple(t.shape), self._dtype(name, t)) for (_, name), t in zip(names, tensors, strict=True)]
        if kinds != self._kinds:
            self._make_stages(kinds, {name for _, name in names})
        host, is_free = self._stages[0]
        self._stages.reverse()  # they take turns
        is_free.synchronize()  # until the last copy from this block has ended
        for place, tensor in zip(host.tensors, tensors, strict=True):
            place.copy_(tensor)
        with self._cuda.stream(self._stream):
            there = ByteBlock(kinds, device=self.device)
            there.memory.copy_(host.memory, non_blocking=True)
        is_free.record(self._stream)
        has_arrived = self._cuda.Event()
        has_arrived.record(self._stream)
        if hasattr(batch, "_asdict"):
            return type(batch)(*there.tensors), there, has_arrived
        result = copy.copy(batch)
        stores = result.stores
        for (i, name), tensor in zip(names, there.tensors, strict=True):
            stores[i][name] = tensor
        return result, there, has_arrived

    def _make_stages(self, kinds: list[tuple[Any, ...]], names: set[str]) -> None:
        missing = sorted(set(self._dtypes) - names) if self._must_exist else []
        if missing:
            raise ValueError(f"feature_dtype names {missing}, which batches do not have; they have {sorted(names)}.")
        self._kinds = kinds
        pinned = self.device.type == "cuda"
        with self._cuda.stream(self._stream):
            self._stages = [(ByteBlock(kinds, pin_memory=pinned), self._cuda.Event()) for _ in range(2)]

    def _dtype(self, name: str, tensor: Tensor) -> torch.dtype:
        wanted = self._dtypes.get(name)
        if wanted is None or (not self._must_exist and not tensor.is_floating_point()):
            return tensor.dtype
        if not tensor.is_floating_point():
            raise ValueError(f"feature_dtype asks for {name} as {wanted}, but it is {tensor.dtype}. Leave it out.")
        return wanted


def _by_name(choice: torch.dtype | Mapping[str, torch.dtype] | None) -> dict[str, torch.dtype]:
    """Return the type of each attribute to convert."""
    names = () if choice is None else FEATURES
    chosen: dict[str, Any] = dict(choice) if isinstance(choice, Mapping) else dict.fromkeys(names, choice)
    for name, dtype in chosen.items():
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"feature_dtype of {name} is {dtype}; pass a floating-point type such as torch.float16.")
    return chosen


def _known(device: torch.device | str | int) -> torch.device:
    """Return the device after a check that this machine has it.

    Raises:
        ValueError: the device does not exist, or popgeo cannot feed it.
    """
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device is {device!r}; pass 'cpu', 'cuda' or 'cuda:NUMBER'.") from None
    if wanted.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {wanted}; batches are fed to 'cpu' and 'cuda'. Call batch.to({str(wanted)!r}).")
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {wanted}; torch finds {torch.cuda.device_count()} CUDA devices. Pass 'cpu'.")
    return wanted
