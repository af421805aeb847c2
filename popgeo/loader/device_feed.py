"""Copying of batches to a device ahead of time, as one block of memory, on a separate stream."""

import copy
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from popgeo import largest_graph
from popgeo.byte_block import ByteBlock
from popgeo.data.batch_contents import Layout
from popgeo.data.cut import BatchMemory
from popgeo.loader.prefetch import in_background

FEATURES = ("x", "edge_attr")
"""Attributes that `feature_dtype` converts unless it names others."""


class DeviceFeed:
    """A feed that copies batches to a device ahead of time, on a separate thread and stream.

    Each batch is written into a page-locked block of memory and converted on the way; a loader of this package puts
    batches together in that block. One asynchronous copy moves the block, and the resulting batch consists of views of
    the copy. On the processor the same code runs without streams.

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
        if cuda is not None:
            self._cuda = cuda
        self._idle: list[FeedPass] = []

    @cached_property
    def _cuda(self) -> Any:
        return torch.cuda if self.device.type == "cuda" else torch.cpu

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_idle": []}  # blocks of memory and streams stay in their process
        state.pop("_cuda", None)  # a module
        return state

    def feed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches in the same order, on the device, ready for later work on the current stream."""
        return begin_pass(self).feed(batches)

    def _end(self, one: "FeedPass") -> None:
        """Keep the blocks of a pass for the next pass."""
        self._idle[:] = [one]

    def _kind(self, name: str, tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and the type of an attribute on the device.

        Raises:
            ValueError: the attribute is to be converted, but is not a floating-point tensor.
        """
        wanted = self._dtypes.get(name)
        if wanted is None or (not self._must_exist and not tensor.is_floating_point()):
            return tuple(tensor.shape), tensor.dtype
        if not tensor.is_floating_point():
            raise ValueError(f"feature_dtype asks for {name} as {wanted}, but it is {tensor.dtype}. Leave it out.")
        return tuple(tensor.shape), wanted

    def _require(self, names: set[str]) -> None:
        """Raise if batches lack an attribute that is to be converted.

        Raises:
            ValueError: an attribute is missing.
        """
        missing = sorted(set(self._dtypes) - names) if self._must_exist else []
        if missing:
            raise ValueError(f"feature_dtype names {missing}, which batches do not have; they have {sorted(names)}.")


class FeedPass:
    """One pass of a feed over batches, with two page-locked blocks of memory that take turns.

    Args:
        of: The feed.
    """

    def __init__(self, of: DeviceFeed) -> None:
        self._of, self._cuda, self._stream = of, of._cuda, of._cuda.Stream(of.device)
        self._kinds: list[tuple[Any, ...]] = []
        self._stages: list[_Stage] = []

    def feed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches in the same order, on the device, ready for later work on the current stream."""
        for batch, block, has_arrived in in_background(self._copies(batches), self._of._ahead):
            current = self._cuda.current_stream(self._of.device)
            current.wait_event(has_arrived)
            if block.memory.is_cuda:
                block.memory.record_stream(current)  # keeps the memory while that stream may read it
            yield batch

    def memory(self, layout: Layout, group: int) -> BatchMemory | None:
        """Return memory for the next item in the block whose turn it is, as soon as no copy reads the block.

        The source must fill it and yield the item on the thread that calls this method. Attributes to be converted have
        memory outside of the block. The result is None before the first item, whose tensors decide the block.

        Args:
            layout: Layout of a batch.
            group: Batches in one item.
        """
        if not self._stages:
            return None
        stage = self._stages[0]
        stage.is_free.synchronize()
        if stage.memory is None or stage.layout is not layout or stage.group != group:
            places, tensors = dict(zip(self._names, stage.host.tensors, strict=True)), []
            for slot in layout.slots:
                shape, place = (group, *slot.shape), places.get((slot.store, slot.name))
                if place is None or place.dtype != slot.dtype or place.numel() != prod(shape):
                    place = torch.empty(shape, dtype=slot.dtype)
                tensors.append(place.view(shape))
            stage.memory = BatchMemory(layout, group, group=group, tensors=tensors)
            stage.layout, stage.group = layout, group
        stage.is_lent = True
        return stage.memory

    def _copies(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, ByteBlock, Any]]:
        try:
            yield from map(self._copy, batches)
        finally:  # no thread writes to the blocks any more
            self._of._end(self)

    def _copy(self, batch: Any) -> tuple[Batch, ByteBlock, Any]:
        is_tuple = hasattr(batch, "_asdict")
        stores = [batch._asdict()] if is_tuple else batch.stores
        names = [(i, name) for i, store in enumerate(stores) for name in store.keys() if torch.is_tensor(store[name])]  # noqa: SIM118
        tensors = [stores[i][name] for i, name in names]
        kinds = [self._of._kind(name, tensor) for (_, name), tensor in zip(names, tensors, strict=True)]
        if kinds != self._kinds:
            self._of._require({name for _, name in names})
            with self._cuda.stream(self._stream):
                self._stages = [_Stage(kinds, self._of, self._cuda) for _ in range(2)]
            keys = [None] if is_tuple else [store._key for store in stores]
            self._kinds, self._names = kinds, [(keys[i], name) for i, name in names]
        stage = self._stages[0]
        self._stages.reverse()  # they take turns
        stage.is_free.synchronize()  # until the last copy from this block has ended
        for place, tensor in zip(stage.host.tensors, tensors, strict=True):
            if place.data_ptr() != tensor.data_ptr():  # otherwise the source has written it there
                place.copy_(tensor)
        with self._cuda.stream(self._stream):
            there = ByteBlock(kinds, device=self._of.device)
            there.memory.copy_(stage.host.memory, non_blocking=True)
        stage.is_free.record(self._stream)
        has_arrived = self._cuda.Event()
        has_arrived.record(self._stream)
        for new, old in zip(there.tensors, tensors, strict=True):
            if (largest := largest_graph.noted([old])) is not None:
                largest_graph.note(new, largest)
        if is_tuple:
            return type(batch)(*there.tensors), there, has_arrived
        result = batch if stage.is_lent else copy.copy(batch)  # the user's batches stay as they are
        stage.is_lent = False
        stores = result.stores
        for (i, name), tensor in zip(names, there.tensors, strict=True):
            stores[i][name] = tensor
        return result, there, has_arrived


def begin_pass(feed: DeviceFeed) -> FeedPass:
    """Return a new pass of a feed. Passes that run at the same time have separate blocks of memory."""
    try:
        return feed._idle.pop()
    except IndexError:  # empty, or another thread was faster
        return FeedPass(feed)


class _Stage:
    """A page-locked block, the event after the last copy from it, and the block as memory of a batch."""

    def __init__(self, kinds: list[tuple[Any, ...]], of: DeviceFeed, cuda: Any) -> None:
        self.host, self.is_free = ByteBlock(kinds, pin_memory=of.device.type == "cuda"), cuda.Event()
        self.memory: BatchMemory | None = None
        self.layout: Layout | None = None
        self.group, self.is_lent = 0, False


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
