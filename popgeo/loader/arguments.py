"""Checks and completes what the loader is called with."""

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, TypeVar

from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.graph_sizes import GraphSizes
from popgeo.loader.strategy import FixedSizeStrategy, Packing

E = TypeVar("E", bound=Enum)


def member(enum: type[E], value: E | str) -> E:
    """A member of an enum, also by its name.

    Example:
        >>> member(FixedSizeStrategy, "Window")
        <FixedSizeStrategy.Window: 2>
    """
    if isinstance(value, enum):
        return value
    if isinstance(value, str) and value in enum.__members__:
        return enum[value]
    raise ValueError(f"{value!r} is no {enum.__name__}; pass one of {list(enum.__members__)}.")


def strategy_of(strategy: FixedSizeStrategy | Packing | str) -> FixedSizeStrategy | Packing:
    """A strategy, also by its name; functions pass as they are."""
    return strategy if callable(strategy) and not isinstance(strategy, Enum) else member(FixedSizeStrategy, strategy)


def check_arguments(
    dataset: Any,
    strategy: FixedSizeStrategy | Packing,
    shuffle: bool,
    sampler: Iterable[int] | None,
    batch_sampler: Iterable[Sequence[int]] | None,
    kwargs: dict[str, Any],
) -> None:
    """Refuses arguments that contradict each other.

    Raises:
        ValueError: they do.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) and not isinstance(dataset, FlatStore):
        raise ValueError(
            f"The dataset is a {type(dataset).__name__}, which cannot be indexed. Pass its graphs to "
            f"popgeo.loader.stream_batches, or put them into a list."
        )
    if "collate_fn" in kwargs:
        raise ValueError("The loader collates by itself, so it takes no collate_fn. Use a transform of the dataset.")
    if "generator" in kwargs:
        raise ValueError("The order comes from seed and epoch, so the loader takes no generator. Pass seed=.")
    if sampler is not None and (shuffle or batch_sampler is not None):
        raise ValueError("A sampler decides the order, so it excludes shuffle and batch_sampler. Pass only one.")
    if batch_sampler is not None and (shuffle or strategy is not FixedSizeStrategy.PadToMax):
        raise ValueError("A batch_sampler decides the batches, so it excludes shuffle and any strategy but PadToMax.")


def sizes_of(
    store: FlatStore,
    sizes: GraphSizes,
    batch_size: int | None,
    options: FixedSizeOptions | None,
    num_nodes: int | dict[str, int] | None,
    num_edges: int | dict[tuple[str, str, str], int] | None,
) -> FixedSizeOptions:
    """The sizes of a batch, however they were given.

    Raises:
        ValueError: they were given twice, or `batch_size` says something else.
    """
    if options is not None and (num_nodes is not None or num_edges is not None):
        raise ValueError("Both fixed_size_options and num_nodes or num_edges are given; pass one or the other.")
    if options is None and num_nodes is None:
        if num_edges is not None:
            raise ValueError("num_edges is given without num_nodes; pass both, or neither to have them measured.")
        options = FixedSizeOptions.worst_case(store, sizes.values, 2 if batch_size is None else batch_size)
    elif options is None:
        assert num_nodes is not None  # the branch above
        options = FixedSizeOptions(num_nodes, num_edges, 2 if batch_size is None else batch_size)
    if batch_size is not None and batch_size != options.num_graphs:
        raise ValueError(
            f"batch_size is {batch_size} and fixed_size_options.num_graphs is {options.num_graphs}; both count the "
            f"graphs of a batch, padding included. Leave batch_size out or make them equal."
        )
    return options.to_hetero(store.node_types, store.edge_types) if store.is_hetero else options


def num_mini_batches(options: Any, world_size: int = 1) -> int:
    """How many batches one item of one rank holds; replicas are shared by the ranks.

    Raises:
        ValueError: `options` is neither a number nor has the counts, or its replicas cannot be shared evenly.

    Example:
        >>> num_mini_batches(None), num_mini_batches(6)
        (1, 6)
    """
    if options is None or isinstance(options, int):
        count = 1 if options is None else options
    else:
        missing = [name for name in _COUNTS if not hasattr(options, name)]
        if missing:
            raise ValueError(
                f"options is a {type(options).__name__} without {missing}. Pass a number or such an object."
            )
        if options.replication_factor % world_size:
            raise ValueError(
                f"options.replication_factor is {options.replication_factor}, which {world_size} ranks cannot share "
                f"evenly. Choose a multiple of {world_size}, or pass rank=0 and world_size=1 for a loader of its own."
            )
        count = math.prod(getattr(options, name) for name in _COUNTS) // world_size
    if count < 1:
        raise ValueError(f"options asks for {count} batches in one item; it must be 1 or more.")
    return count


_COUNTS = ("device_iterations", "gradient_accumulation", "replication_factor")


def check_shard(rank: int | None, world_size: int | None) -> None:
    """Refuses a shard that there is not.

    Raises:
        ValueError: only one of the two is given, or they contradict.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank is {rank} and world_size {world_size}; pass both, or neither.")
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank} and world_size {world_size}; ranks count from 0 to world_size - 1.")


def check_output(output: str, device: Any, feature_dtype: Any) -> None:
    """Refuses a form of batches that there is not, or that contradicts the device.

    Raises:
        ValueError: it does.
    """
    if output not in ("pyg", "numpy"):
        raise ValueError(f"output is {output!r}; it is 'pyg' or 'numpy'.")
    if output == "numpy" and device is not None and str(device) != "cpu":
        raise ValueError(f"output is 'numpy' and device {device!r}; NumPy arrays lie in memory of the processor.")
    if feature_dtype is not None and device is None:
        raise ValueError("feature_dtype converts batches on their way to a device. Pass device=, 'cpu' if need be.")
