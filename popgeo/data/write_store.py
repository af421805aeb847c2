"""Writing of any source of graphs to disk as a stream, so that the graphs need not fit in memory."""

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
_OBJECT_BYTES, _TENSOR_BYTES = 2048, 512  # approximate memory of a graph object and of a tensor object


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
    """Write a stream of graphs into a folder and open the folder.

    The folder is written as `FOLDER.part` and renamed when it is complete. After an interruption the same call
    continues. It then reads the written graphs from the source again, but does not transform them again.

    Args:
        graphs: A dataset, a list, or any iterable of `Data` or `HeteroData`, such as a generator.
        folder: The folder, which must not exist.
        transform: A function that is applied to each graph first; the store notes its name.
        sort_edges: Whether to sort edges by destination, so that batches have `rowptr`.
        exclude_keys: Attributes to leave out.
        levels: The level of attributes, as `{"y": "graph"}`. Default: registered (`register_attributes`) or inferred
            from the first `buffer_bytes`. A later graph that contradicts raises a ValueError.
        validate: The checks, as in `FlatStore.from_dataset`.
        buffer_bytes: The largest number of bytes that graphs take in memory at a time.
        progress_bar: Whether to show a bar after one second. Default: at a terminal and in notebooks.

    Raises:
        ValueError: there are no graphs, a graph cannot be written or fails a check, the folder exists, or its beginning
            has other graphs.

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
            """Return graphs as a flat store with the levels of the written graphs."""
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
    """Return the names of transforms that are applied one after the other.

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
    """Yield blocks of a stream of graphs, from number `position` on."""
    size, bundle = 0, list[Graph]()
    # A dataset is read from that number on only.
    rest = (
        map(graphs.__getitem__, range(position, len(graphs))) if _is_indexed(graphs) else islice(graphs, position, None)
    )
    for graph in rest:
        graph = graph if transform is None else transform(graph)
        if not isinstance(graph, (Data, HeteroData)):
            raise ValueError(f"Graph {position + len(bundle)} is a {type(graph).__name__}, not Data or HeteroData.")
        bundle.append(graph)
        size += _bytes(graph)
        # The graphs and their concatenated arrays are in memory at the same time.
        if size >= buffer_bytes // 2:
            yield join(bundle, position)
            position, bundle, size = position + len(bundle), [], 0
    if bundle:
        yield join(bundle, position)


def _bytes(graph: Graph) -> int:
    tensors = [value for store in graph.stores for value in store.values() if isinstance(value, Tensor)]
    return _OBJECT_BYTES + sum(tensor.numel() * tensor.element_size() + _TENSOR_BYTES for tensor in tensors)
