"""Options of a loader's epochs: order, shards, and how batches are made and delivered."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from typing_extensions import TypedDict

from popgeo.data.batch_layout import LayoutKeywords
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.trim import OverSizeStrategy
from popgeo.did_you_mean import names_arguments

Noun = TypeVar("Noun")


class ShardArguments(TypedDict, total=False):
    """Keyword arguments that decide which batches a process gets; `EpochChoices` explains them."""

    rank: int | None
    world_size: int | None
    drop_last: bool


class EpochArguments(ShardArguments, total=False):
    """Keyword arguments that every loader takes: fields of `EpochChoices`, then arguments of torch's `DataLoader`.

    `collate_fn` and `generator` are refused with a reason.
    """

    sampler: Iterable[int] | None
    batch_sampler: Iterable[Sequence[int]] | None
    num_buffers: int
    background: bool
    device: torch.device | str | int | None
    batches_ahead: int
    feature_dtype: torch.dtype | Mapping[str, torch.dtype] | None
    output: str
    num_workers: int
    pin_memory: bool
    pin_memory_device: str
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool
    collate_fn: None
    generator: None


class LoaderArguments(EpochArguments, LayoutKeywords, total=False):
    """Keyword arguments of loaders of graphs: `EpochArguments` and less common fields of `LayoutChoices`."""


class GraphLoaderArguments(LoaderArguments, total=False):
    """Keyword arguments that some loaders do not list in their signature; `FixedSizeDataLoader` explains them."""

    fixed_size_options: FixedSizeOptions | None
    over_size_strategy: OverSizeStrategy | str
    shuffle: bool
    seed: int | None
    options: Any
    add_pad_masks: bool
    follow_batch: Sequence[str] | None
    exclude_keys: Sequence[str] | None


@names_arguments
@dataclass(frozen=True, kw_only=True)
class EpochChoices:
    """The options of a loader's epochs, for any kind of batch.

    Every loader takes these options as keyword arguments and stores them as one object of this class.

    Args:
        shuffle: Whether each epoch has a random order, given by `seed` and the number of the epoch.
        sampler: Numbers of the graphs of an epoch, in order. Several processes with a sampler need `rank` and
            `world_size`. Default: all graphs.
        batch_sampler: Numbers of the graphs of each batch, in place of a strategy. The rules of `sampler` apply.
        seed: Number that decides every order and every draw, together with the number of the epoch. Default: the first
            epoch draws it from torch's generator, so that it follows `torch.manual_seed`, and processes that share the
            batches use the first process's number. A loader that draws nothing needs no seed.
        rank: Shard that this process loads. Default: the rank of this process in `torch.distributed`, looked up when an
            epoch begins. `rank=0` and `world_size=1` load everything in each process.
        world_size: Number of shards. Shards are disjoint, complete, and equally long.
        drop_last: Whether an incomplete last batch, and an incomplete last item of several batches, is dropped.
            Default: batches are split until there are enough, so that everything is used.
        options: Number of batches in one item, concatenated on dimension 0 as PopTorch does; or an object with
            `device_iterations`, `replication_factor` and `gradient_accumulation` (such as `popgeo.ipu.Options`). The
            ranks share its replicas.
        num_buffers: Number of items that share reused memory, which saves time: an item is overwritten once
            `num_buffers // 2` more are drawn. Default: 0, new memory for each item.
        background: Whether a thread makes the coming batches while one is in use.
        device: Device that batches are copied to ahead of time, `"cpu"` or `"cuda"`, by a thread that also makes them.
            See `DeviceFeed`.
        batches_ahead: Number of batches that are copied ahead to `device`.
        feature_dtype: Smaller floating-point type for `x` and `edge_attr`, or a type for each named attribute. Needs
            `device`.
        output: `"pyg"` for PyG's batches, `"numpy"` for dictionaries of NumPy arrays; see `as_arrays`.

    Raises:
        ValueError: choices contradict each other.

    Example:
        >>> EpochChoices(shuffle=True, sampler=[0, 1])
        Traceback (most recent call last):
            ...
        ValueError: Only one of shuffle, sampler and batch_sampler can decide the order; leave out the others.
    """

    shuffle: bool = False
    sampler: Iterable[int] | None = None
    batch_sampler: Iterable[Sequence[int]] | None = None
    seed: int | None = None
    rank: int | None = None
    world_size: int | None = None
    drop_last: bool = False
    options: Any = None
    num_buffers: int = 0
    background: bool = False
    device: torch.device | str | int | None = None
    batches_ahead: int = 2
    feature_dtype: torch.dtype | Mapping[str, torch.dtype] | None = None
    output: str = "pyg"

    def __post_init__(self) -> None:
        if isinstance(self.sampler, str | Iterator) or isinstance(self.batch_sampler, str | Iterator):
            raise ValueError(
                f"sampler is {self.sampler!r} and batch_sampler {self.batch_sampler!r}; they are lists or samplers of "
                "numbers of graphs, which each epoch reads again. For random order pass shuffle=True."
            )
        if sum((bool(self.shuffle), self.sampler is not None, self.batch_sampler is not None)) > 1:
            raise ValueError(
                "Only one of shuffle, sampler and batch_sampler can decide the order; leave out the others."
            )
        rank, world_size = self.rank, self.world_size
        if (rank is None) != (world_size is None):
            raise ValueError(f"rank is {rank} and world_size {world_size}; pass both, or neither.")
        if rank is not None and world_size is not None and not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank} and world_size {world_size}; ranks count from 0 to world_size - 1.")
        if self.output not in ("pyg", "numpy"):
            raise ValueError(f"output is {self.output!r}; it is 'pyg' or 'numpy'.")
        if self.output == "numpy" and self.device is not None and str(self.device) != "cpu":
            raise ValueError(f"output is 'numpy' and device {self.device!r}; NumPy knows the processor's memory only.")
        if self.feature_dtype is not None and self.device is None:
            raise ValueError("feature_dtype converts batches on their way to a device. Pass device='cpu' or a GPU.")

    def seeded_if(self, draws: bool) -> "EpochChoices":
        """Return these options, with seed 0 if nothing is drawn and no seed was given.

        Args:
            draws: Whether the loader draws anything besides the order.

        Example:
            >>> EpochChoices().seeded_if(draws=False).seed, EpochChoices(shuffle=True).seeded_if(draws=False).seed
            (0, None)
        """
        draws = draws or self.shuffle or self.sampler is not None
        return replace(self, seed=0) if self.seed is None and not draws else self

    @property
    def has_own_order(self) -> bool:
        """Whether a sampler decides the order, rather than seed and epoch."""
        return self.sampler is not None or self.batch_sampler is not None


def choices_from(noun: type[Noun], arguments: Mapping[str, object], **named: object) -> Noun:
    """Return a dataclass of options, built from the arguments that are its fields.

    Args:
        noun: The dataclass, such as `EpochChoices`.
        arguments: Keyword arguments of a loader. Arguments that are no field are left out.
        named: Further fields.

    Example:
        >>> choices_from(EpochChoices, {"seed": 3, "num_workers": 2}, shuffle=True).seed
        3
    """
    names = {field.name for field in fields(noun)}  # type: ignore[arg-type]  # it is a dataclass
    return noun(**{name: value for name, value in arguments.items() if name in names}, **named)
