"""Batches of fixed size from a stream of graphs that need not fit in memory."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch_geometric.data import Batch, Data, HeteroData

from popgeo.data.collate import FixedSizeCollater
from popgeo.packing import Budget, iter_window


def stream_batches(
    graphs: Iterable[Data | HeteroData],
    collater: FixedSizeCollater,
    *,
    window: int = 2048,
    generator: torch.Generator | None = None,
) -> Iterator[Batch]:
    """Yield batches of a stream of graphs, such as an `IterableDataset`, in an order that is random within a window.

    Args:
        graphs: Any number of graphs; about `window` of them are in memory at a time.
        collater: Makes the batches; its options are their sizes.
        window: Number of graphs to draw from. A larger window is more random.
        generator: Source of randomness. Default: torch's default generator.

    Raises:
        ValueError: a graph fits no batch.

    Example:
        >>> from popgeo.data import FixedSizeOptions
        >>> graphs = (Data(x=torch.ones(n % 3 + 1, 1)) for n in range(300))
        >>> batches = list(stream_batches(graphs, FixedSizeCollater(FixedSizeOptions(21, 0, 20), True)))
        >>> sum(int(batch.graphs_mask.sum()) for batch in batches), len(batches)
        (300, 30)
    """
    if not isinstance(collater, FixedSizeCollater):
        raise ValueError(f"collater is a {type(collater).__name__}; pass popgeo.FixedSizeCollater(options).")
    pending: dict[int, Data | HeteroData] = {}
    options = collater.options
    source = iter(graphs)
    first = next(source, None)
    if first is None:
        return
    store = collater.flat([first])
    budget = Budget(sizes=tuple(options.limits(store.size_axes).tolist()), num_graphs=options.num_graphs - 1)

    def sizes() -> Iterator[Sequence[int]]:
        pending[0] = first
        yield store.sizes[0].tolist()
        for number, graph in enumerate(source, start=1):
            pending[number] = graph
            yield collater.flat([graph]).sizes[0].tolist()

    for packs in iter_window(sizes(), budget, window=window, generator=generator):
        for ids in packs:
            yield collater([pending.pop(number) for number in ids.tolist()])
