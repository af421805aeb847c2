"""Batches of fixed size from graphs that come one by one and need not fit in memory."""

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
    """Packs graphs as they come, drawing at random from the last few, such as those of an `IterableDataset`.

    Args:
        graphs: Any number of graphs; about `window` of them are kept at a time.
        collater: Makes the batches; its options say how large they are.
        window: Graphs to choose from; more are more random.
        generator: Source of randomness; None means torch's default one.

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
