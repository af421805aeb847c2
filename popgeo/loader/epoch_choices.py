"""What an epoch is: the one declaration of its order, its shards, and how its batches are made and handed over."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

from popgeo.did_you_mean import require_kinds

Noun = TypeVar("Noun")


@dataclass(frozen=True, kw_only=True)
class EpochChoices:
    """What may be chosen of the epochs of a loader, whatever its batches are made of.

    Every loader takes the choices by their names, as keyword arguments, and hands them on as this noun.

    Args:
        shuffle: Whether each epoch has an order of its own, given by `seed` and the number of the epoch.
        sampler: What an epoch holds, in order, instead of everything; next to several processes it needs `rank` and
            `world_size`.
        batch_sampler: What each batch holds, instead of a strategy; like `sampler`.
        seed: With the number of the epoch it decides every order and every draw. None draws it from torch's generator
            when the first epoch begins, so that it follows `torch.manual_seed`; processes that share the batches agree
            on the first one's. Where nothing is shuffled, trimmed or sampled there is nothing to draw.
        rank: Which shard of the batches to load; by default that of this process in `torch.distributed`, looked up when
            an epoch begins. `rank=0` and `world_size=1` load everything in each process.
        world_size: Number of shards; they are disjoint, complete, and of equal length.
        drop_last: Drops an incomplete last batch and an incomplete last item of several batches; otherwise batches are
            split until there are enough, so that everything is used.
        options: How many batches one item holds, concatenated on dimension 0 as PopTorch does: a number, or an object
            with `device_iterations`, `replication_factor` and `gradient_accumulation` (such as `popgeo.ipu.Options`),
            whose replicas are shared by the ranks.
        num_buffers: Reuses the memory of that many items, which saves time; an item is then overwritten once
            `num_buffers // 2` more are drawn. 0 gives each item memory of its own.
        background: Makes the coming batches on a thread while one is in use.
        device: Where batches are wanted, `"cpu"` or `"cuda"`; they are copied there ahead of time. See `DeviceFeed`.
        batches_ahead: With `device`, how many.
        feature_dtype: With `device`, a smaller floating-point type for `x` and `edge_attr`, or for those it names.
        output: `"pyg"` for batches as they are, `"numpy"` for plain dictionaries of NumPy arrays; see `as_arrays`.

    Raises:
        ValueError: choices contradict each other.

    Example:
        >>> EpochChoices(shuffle=True, sampler=[0, 1])
        Traceback (most recent call last):
            ...
        ValueError: A sampler or batch_sampler decides the order: it excludes shuffle and the other.
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
        require_kinds(type(self).__name__, type(self).__annotations__, vars(self))
        if isinstance(self.sampler, str | Iterator) or isinstance(self.batch_sampler, str | Iterator):
            raise ValueError(
                f"sampler is {self.sampler!r} and batch_sampler {self.batch_sampler!r}; they are lists or samplers of "
                "numbers of graphs, which each epoch reads again. For random order pass shuffle=True."
            )
        if sum((bool(self.shuffle), self.sampler is not None, self.batch_sampler is not None)) > 1:
            raise ValueError("A sampler or batch_sampler decides the order: it excludes shuffle and the other.")
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
            raise ValueError("feature_dtype converts batches on their way to a device. Pass device=, 'cpu' if need be.")

    def seeded_if(self, draws: bool) -> "EpochChoices":
        """Return the choices for a loader that draws something or, if it draws nothing, with a seed that none notices.

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


def chosen(noun: type[Noun], arguments: dict[str, Any], **named: Any) -> Noun:
    """A noun of choices from keyword arguments: those that are its fields are taken out of them.

    Args:
        noun: A dataclass, such as `EpochChoices`.
        arguments: The `**kwargs` of a caller; the remaining ones are for others.
        named: Fields that the caller has as arguments of its own.

    Example:
        >>> arguments = {"seed": 3, "num_workers": 2}
        >>> chosen(EpochChoices, arguments, shuffle=True).seed, arguments
        (3, {'num_workers': 2})
    """
    own = {field.name: arguments.pop(field.name) for field in fields(noun) if field.name in arguments}  # type: ignore[arg-type]  # it is a dataclass
    return noun(**named, **own)
