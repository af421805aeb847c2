"""Writes any source of graphs to disk as a stream, so that it need never fit in memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from popgeo.data.axes import Levels, levels_of
from popgeo.data.columns import Columns
from popgeo.data.flat_store import FlatStore, why_not_flat
from popgeo.data.open_dataset import flat_graphs
from popgeo.data.sort_edges import sort_edges as sorted_by_destination
from popgeo.data.store.save_columns import BUFFER_BYTES, Blocks, blocks, extend
from popgeo.data.store.write_folder import FolderWriter

Graph: TypeAlias = Data | HeteroData
_OBJECT_BYTES, _TENSOR_BYTES = 2048, 512  # about what Python needs for a graph, and for each of its tensors


def write(
    graphs: Iterable[Graph],
    folder: str | Path,
    *,
    transform: Callable[[Any], Any] | None = None,
    sort_edges: bool = False,
    exclude_keys: Sequence[str] | None = None,
    levels: Levels | None = None,
    validate: bool | None = None,
    buffer_bytes: int = BUFFER_BYTES,
    progress_bar: bool | None = None,
) -> FlatStore:
    """Writes graphs into a folder, as they come, and opens it.

    The folder is whole or not there: it is written as `FOLDER.part`. Where writing was interrupted, the same call goes
    on where it was; graphs that are written already are then read from the source again, but not transformed.

    Args:
        graphs: A dataset, a list, or any iterable of `Data` or `HeteroData`, such as a generator.
        folder: The folder, which must not exist.
        transform: What to do to each graph first; the store notes its name.
        sort_edges: Sorts edges by destination, once for all, so that batches carry `rowptr`.
        exclude_keys: Attributes to leave out.
        levels: What an attribute's rows belong to, as `{"y": "graph"}`. The others are inferred from the first
            `buffer_bytes`, and a later graph that contradicts is refused.
        validate: The checks, as in `FlatStore.from_dataset`.
        buffer_bytes: The most that graphs take in memory at a time, waiting and being joined together.
        progress_bar: Whether to show a bar if it lasts longer than a second; None means at a terminal and in
            notebooks.

    Raises:
        ValueError: there are no graphs, one cannot be written or fails a check, the folder exists, or it was begun with
            other graphs.

    Example:
        >>> import tempfile, torch
        >>> paths = (Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [n - 1]])) for n in (2, 3, 4))
        >>> with tempfile.TemporaryDirectory() as home:
        ...     write(paths, f"{home}/paths")
        FlatStore(3 graphs, 9 nodes, 3 edges; x: node, edge_index: edge)
    """
    name = transform_name(getattr(graphs, "transform", None), transform)
    with FolderWriter(Path(folder), transform=name, indices_checked=validate is not False) as writer:
        choices: dict[str, Any] = {"exclude_keys": exclude_keys, "validate": validate}

        def join(some: list[Graph], start: int) -> FlatStore:
            """Flattens graphs like those that have been written."""
            numbers, known = range(start, start + len(some)), levels_of(writer.attributes, levels)
            return flat_graphs(some, numbers, writer.check, levels=known, **choices)

        is_dataset = not isinstance(graphs, (list, tuple)) and _is_indexed(graphs)
        if transform is None and is_dataset and why_not_flat(graphs) is None:
            store = FlatStore.from_dataset(graphs, levels=levels, **choices)
            parts: Blocks = partial(blocks, store, max_bytes=buffer_bytes)
        else:
            parts = partial(_joined, graphs, transform, buffer_bytes, join)

        def sorted_parts(start: int) -> Iterator[Columns]:
            return map(sorted_by_destination, parts(start)) if sort_edges else parts(start)

        extend(writer, sorted_parts, len(graphs) if isinstance(graphs, Sized) else None, progress_bar)
    return FlatStore.open(folder)


def transform_name(*transforms: Any) -> str | None:
    """What to call transforms that are applied one after the other.

    Example:
        >>> from torch_geometric.transforms import ToUndirected
        >>> transform_name(None, ToUndirected())
        'ToUndirected()'
    """
    names = [getattr(one, "__qualname__", None) or repr(one) for one in transforms if one is not None]
    return ", ".join(names) or None


def _is_indexed(graphs: Any) -> bool:
    return hasattr(graphs, "__getitem__") and hasattr(graphs, "__len__")


def _joined(
    graphs: Any,
    transform: Callable[[Any], Any] | None,
    buffer_bytes: int,
    join: Callable[[list[Graph], int], FlatStore],
    position: int,
) -> Iterator[Columns]:
    """Blocks of graphs that come one by one, from number `position` on."""
    size, bundle = 0, list[Graph]()
    # Datasets are asked only for the graphs from that number on.
    rest = (
        map(graphs.__getitem__, range(position, len(graphs))) if _is_indexed(graphs) else islice(graphs, position, None)
    )
    for graph in rest:
        graph = graph if transform is None else transform(graph)
        if not isinstance(graph, (Data, HeteroData)):
            raise ValueError(f"Graph {position + len(bundle)} is a {type(graph).__name__}, not Data or HeteroData.")
        bundle.append(graph)
        size += _bytes(graph)
        # The graphs, and the arrays that they are joined into, are in memory at the same time.
        if size >= buffer_bytes // 2:
            yield join(bundle, position)
            position, bundle, size = position + len(bundle), [], 0
    if bundle:
        yield join(bundle, position)


def _bytes(graph: Graph) -> int:
    tensors = [value for store in graph.stores for value in store.values() if isinstance(value, Tensor)]
    return _OBJECT_BYTES + sum(tensor.numel() * tensor.element_size() + _TENSOR_BYTES for tensor in tensors)
