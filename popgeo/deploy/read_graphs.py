"""Converts users' graphs to a program's flat inputs; rejects, by number, graphs that differ from these inputs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from popgeo.capture.pytree import is_graph_data
from popgeo.data.attribute_names import COUNT_NODES
from popgeo.data.batch_layout import LayoutChoices, lay_out
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore, why_not_flat
from popgeo.data.sort_edges import sort_edges
from popgeo.deploy.fixed_program import FixedProgram, input_name
from popgeo.loader.source import FlatSource

Kinds = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type of each tensor of a batch."""


@dataclass(frozen=True, kw_only=True)
class GraphReader:
    """Makes graphs flat, with the attributes that a program takes.

    Args:
        layout: How batches are laid out.
        names: The attributes that the program takes; None for all.
        sizes: The sizes of a batch, by `kinds`.
        kinds: What the program's inputs are; None where any graphs will do, as long as they are alike.
    """

    layout: LayoutChoices
    names: frozenset[str] | None = None
    sizes: FixedSizeOptions = field(default_factory=lambda: FixedSizeOptions(1, 0, 2))
    kinds: Kinds | None = None

    def read(self, graphs: Any, first: int = 0, keep: bool = False) -> tuple[FlatStore | None, Any, dict[int, Any]]:
        """The graphs that are right, flat; which these are; and what is wrong with the others.

        Args:
            graphs: A flat store, a dataset that can be flattened, or a list, where an exception represents a graph
                that could not be read.
            first: The number of the first one, for errors.
            keep: Whether to continue without the graphs that are wrong.

        Raises:
            ValueError: a graph is wrong, which is named, and `keep` is False.
        """
        is_list = isinstance(graphs, (list, tuple))
        try:
            store = self._flat(graphs, self._attributes(graphs[0] if is_list and graphs else graphs))
            if self.kinds is not None and (wrong := self._why_not(self._kinds(store))):
                raise ValueError(wrong)
            return store, np.arange(len(store)), {}
        except (ValueError, TypeError, RuntimeError):
            if not is_list:
                raise
        keys = set().union(*map(self._attributes, graphs))
        like, errors = self, {}
        kinds: dict[int, Kinds] = {}
        for i, graph in enumerate(graphs):
            try:
                if isinstance(graph, Exception):
                    raise graph
                kinds[i] = self._kinds(self._flat([graph], self._attributes(graph)))
            except Exception as raised:  # whatever a dataset, or its transform, raises
                errors[i] = raised
        if self.kinds is None and kinds:  # the kind of most graphs is the right one
            found = list(kinds.values())
            like = replace(self, kinds=max(found, key=found.count))
        for i, kind in kinds.items():
            if wrong := like._why_not(kind):
                errors[i] = ValueError(wrong)
        if errors and not keep:
            number, error = min(errors.items())
            raise named(first + number, error) from error
        right = [i for i in range(len(graphs)) if i not in errors]
        named_errors = {i: named(first + i, error) for i, error in errors.items()}
        flat = self._flat([graphs[i] for i in right], keys) if right else None
        return flat, np.array(right, np.int64), named_errors

    def _flat(self, graphs: Any, keys: set[str]) -> FlatStore:
        """The graphs, without those attributes that the program does not take."""
        known, counting = self.names or keys, set(COUNT_NODES)
        # Nodes are counted by what the program takes, or else by what PyG counts them by.
        left_out = sorted(keys - known - (set() if keys & known & counting else counting))
        how: dict[str, Any] = {"levels": self.layout.levels, "progress_bar": False, "validate": True}
        store = FlatStore.from_dataset(graphs, exclude_keys=left_out, **how)
        return sort_edges(store) if self.layout.sort_edges else store

    @staticmethod
    def _attributes(graphs: Any) -> set[str]:
        if isinstance(graphs, FlatStore):
            return {attribute.name for attribute in graphs.attributes}
        return set(graphs.keys()) if is_graph_data(graphs) or isinstance(graphs, dict) else set()

    def _kinds(self, store: FlatStore) -> Kinds:
        slots = lay_out(store, self.sizes.with_rows_for(store), self.layout).slots
        return {input_name(slot): (slot.shape, slot.dtype) for slot in slots}

    def _why_not(self, found: Kinds) -> str | None:
        """What differs from the inputs that are known; None if nothing does."""
        for name, (shape, dtype) in (self.kinds or {}).items():
            if name not in found:
                return f"it has no {name}; its attributes give {', '.join(found)}. Set {name}."
            if found[name][1] != dtype:
                return f"its {name} is {found[name][1]}, {dtype} is needed. Convert it."
            if found[name][0] != shape:
                return f"its {name} fills {list(found[name][0])} in a batch, {list(shape)} is needed."
        known = set(self.kinds or found)
        more = [n for n in found if n not in known and (self.names is None or n.partition("[")[0] in self.names)]
        return f"it has {more[0]}, which the other graphs do not have, and which the model takes." if more else None


def named(number: int, error: Exception) -> ValueError:
    """The error of one graph, with the number of the graph."""
    made = ValueError(f"Graph {number}: {str(error).replace('Graph 0', 'it', 1)}")
    made.__cause__ = error
    return made


def opened(loader: Any) -> Any:
    """Graphs as one flat store, if they lie in memory or flat on disk; of a loader, those of its dataset, in its order.

    A loader whose graphs are only in its batches, and any other iterable, is returned as it is.

    Raises:
        ValueError: the loader gives each process a part of the graphs.
    """
    if getattr(loader, "world_size", getattr(getattr(loader, "sampler", None), "num_replicas", 1)) > 1:
        raise ValueError("The loader has a part of the graphs; Predictor shares them out itself. Pass the dataset.")
    source = getattr(loader, "source", None)
    if isinstance(source, FlatSource) and not (source.collater.trim_nodes or source.collater.trim_edges):
        return source.store.view(loader.plan().indices)
    is_in_order = isinstance(loader, DataLoader) and type(loader.sampler) is SequentialSampler and not loader.drop_last
    graphs = loader.dataset if is_in_order and type(loader.batch_sampler) is BatchSampler else loader
    if isinstance(graphs, (FlatStore, list)) or not hasattr(graphs, "__len__") or why_not_flat(graphs):
        return graphs
    return FlatStore.from_dataset(graphs) if len(graphs) else []


def pieces(graphs: Any, size: int) -> Iterable[Any]:
    """Graphs by that many at a time; an exception represents one that a dataset could not give.

    A batch is taken apart, a batch of this library without its padding; so is each batch of a loader, in its order.

    A flat store is cut into views, a dataset is asked for its graphs by number, anything else is gone through.

    Raises:
        ValueError: it is one graph.
    """
    if isinstance(graphs, dict) or (is_graph_data(graphs) and not hasattr(graphs, "to_data_list")):
        raise ValueError(f"graphs is one {type(graphs).__name__}; pass a list, even of one: [graph].")
    graphs = _graphs_of(graphs) if is_graph_data(graphs) else graphs
    if isinstance(graphs, FlatStore):
        yield from (graphs[start : start + size] for start in range(0, len(graphs), size))
    elif hasattr(graphs, "__getitem__") and hasattr(graphs, "__len__"):
        for start in range(0, len(graphs), size):
            yield [_at(graphs, i) for i in range(start, min(start + size, len(graphs)))]
    else:
        source = chain.from_iterable(map(_graphs_of, graphs))
        while piece := list(islice(source, size)):
            yield piece


def _graphs_of(item: Any) -> Any:
    """The graphs of a batch, without padding; anything else alone."""
    from popgeo.data.pad import unpad

    if not is_graph_data(item) or not hasattr(item, "to_data_list"):
        return [item]
    return unpad(item) if "graphs_mask" in item else item.to_data_list()


def _at(dataset: Any, i: int) -> Any:
    try:
        return dataset[i]
    except Exception as error:  # the dataset's own, or its transform's
        return error


def reader_of(program: FixedProgram, names: frozenset[str] | None) -> GraphReader:
    """What reads graphs with the attributes of these names for a program."""
    kinds = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in program.inputs.items()}
    return GraphReader(layout=program.layout, names=names, sizes=program.sizes, kinds=kinds)
