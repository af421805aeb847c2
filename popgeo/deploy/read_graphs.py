"""Conversion of users' graphs to a program's flat inputs, and errors for graphs that do not match these inputs."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from popgeo.capture.pytree import is_graph_data
from popgeo.data.attribute_names import COUNT_NODES
from popgeo.data.axes import GRAPHS
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
    """A reader that converts graphs to a flat store with the attributes of a program.

    Args:
        layout: Layout of batches.
        names: Attributes that the program uses; None for all.
        sizes: Sizes of a batch that has `kinds`.
        kinds: Shape and type of each input of the program; None for any graphs with equal kinds.
        cutoff: Length up to which pairs of atoms must be listed; None without a limit.
    """

    layout: LayoutChoices
    names: frozenset[str] | None = None
    sizes: FixedSizeOptions = field(default_factory=lambda: FixedSizeOptions(1, 0, 2))
    kinds: Kinds | None = None
    cutoff: float | None = None

    def read(self, graphs: Any, first: int = 0, keep: bool = False) -> tuple[FlatStore | None, Any, dict[int, Any]]:
        """Return the valid graphs as a flat store, their numbers, and the errors of invalid graphs.

        Args:
            graphs: A flat store, a dataset that can be flattened, or a list. In a list, an exception takes the place
                of a graph that could not be read.
            first: Number of the first graph, for errors.
            keep: Whether to continue without invalid graphs.

        Raises:
            ValueError: a graph is invalid, and `keep` is False. The message has the number of the graph.
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
        like, errors = self, {}
        kinds: dict[int, Kinds] = {}
        for i, graph in enumerate(graphs):
            try:
                if isinstance(graph, Exception):
                    raise graph
                kinds[i] = self._kinds(self._flat([graph], self._attributes(graph)))
            except Exception as raised:  # a dataset, or its transform, may raise anything
                errors[i] = raised
        if self.kinds is None and kinds:  # the kind of most graphs is valid
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
        keys = set().union(*(self._attributes(graphs[i]) for i in right))
        flat = self._flat([graphs[i] for i in right], keys, like._inputs()) if right else None
        return flat, np.array(right, np.int64), named_errors

    def _inputs(self) -> set[str]:
        """Return the names of the attributes that are inputs of the program."""
        return {name.partition("[")[0] for name in self.kinds or ()}

    def _flat(self, graphs: Any, keys: set[str], names: Collection[str] | None = None) -> FlatStore:
        """Return the graphs as a flat store, without attributes that the program does not use.

        Raises:
            ValueError: the graphs are invalid, or pairs of atoms are missing in a list that no program checks.
        """
        known, counting = set(names or self.names or keys), set(COUNT_NODES)
        # An attribute of the program counts the nodes, or else the attribute that PyG counts by.
        left_out = sorted(keys - known - (set() if keys & known & counting else counting))
        how: dict[str, Any] = {"levels": self.layout.levels, "progress_bar": False, "validate": True}
        store = FlatStore.from_dataset(graphs, exclude_keys=left_out, **how)
        if self.cutoff is not None and (listed := _values(store, "cutoff")) is not None:
            from popgeo.nn.neighbor_rule import NeighborRule  # imports PyG

            NeighborRule(cutoff=self.cutoff).require_all_pairs(listed, listed)
        return sort_edges(store) if self.layout.sort_edges else store

    @staticmethod
    def _attributes(graphs: Any) -> set[str]:
        if isinstance(graphs, FlatStore):
            return {attribute.name for attribute in graphs.attributes}
        return set(graphs.keys()) if is_graph_data(graphs) or isinstance(graphs, dict) else set()

    def _kinds(self, store: FlatStore) -> Kinds:
        slots = lay_out(store, self.sizes.with_rows_for(store), self.layout).slots
        # A cell of a molecule is 0 and says nothing, and a cutoff has been compared.
        idle = {name for name in ("cell", "pbc") if (of := _values(store, name)) is not None and not of.any()}
        idle = {"cutoff", *idle} - self._inputs() if self.kinds is not None else set()
        return {input_name(slot): (slot.shape, slot.dtype) for slot in slots if slot.name not in idle}

    def _why_not(self, found: Kinds) -> str | None:
        """Return a message about the first difference from the program's inputs, or None if there is no difference."""
        for name, (shape, dtype) in (self.kinds or {}).items():
            if name not in found:
                return f"it has no {name}; its attributes give {', '.join(found)}. Set {name}."
            if found[name][1] != dtype:
                return f"its {name} is {found[name][1]}, but must be {dtype}. Convert it."
            if found[name][0] != shape:
                return f"its {name} fills {list(found[name][0])} in a batch, but must fill {list(shape)}."
        known = set(self.kinds or found)
        more = [n for n in found if n not in known and (self.names is None or n.partition("[")[0] in self.names)]
        why = "the model takes and the other graphs lack. Make the predictor, or the file, with graphs that have it."
        return f"it has {more[0]}, which {why}" if more else None


def _values(store: FlatStore, name: str) -> Tensor | None:
    """Return the values of an attribute of graphs; None without the attribute."""
    found = {one.name: one.tensor for one in store.attributes if one.is_tensor and one.axis == GRAPHS}.get(name)
    return found if found is None or store.indices is None else found[store.indices]


def named(number: int, error: Exception) -> ValueError:
    """Return the error of one graph with the graph's number in the message."""
    made = ValueError(f"Graph {number}: {str(error).replace('Graph 0', 'it', 1)}")
    made.__cause__ = error
    return made


def opened(loader: Any) -> Any:
    """Return a dataset, or the dataset of a loader, as one flat store if possible.

    A dataset can become a flat store if it is in memory or is stored flat on disk. The graphs of a loader are in the
    loader's order. Any other iterable or loader is returned unchanged.

    Raises:
        ValueError: the loader gives each process a part of the graphs.
    """
    if getattr(loader, "world_size", getattr(getattr(loader, "sampler", None), "num_replicas", 1)) > 1:
        raise ValueError("The loader yields only a part of the graphs, but Predictor divides them. Pass the dataset.")
    source = getattr(loader, "source", None)
    if isinstance(source, FlatSource) and not (source.collater.trim_nodes or source.collater.trim_edges):
        return source.store.view(loader.plan().indices)
    is_in_order = isinstance(loader, DataLoader) and type(loader.sampler) is SequentialSampler and not loader.drop_last
    graphs = loader.dataset if is_in_order and type(loader.batch_sampler) is BatchSampler else loader
    if isinstance(graphs, (FlatStore, list)) or not hasattr(graphs, "__len__") or why_not_flat(graphs):
        return graphs
    return FlatStore.from_dataset(graphs) if len(graphs) else []


def pieces(graphs: Any, size: int) -> Iterable[Any]:
    """Yield graphs in groups of `size`. If a dataset raises for a graph, the exception replaces the graph.

    A flat store is cut into views, a dataset is indexed, and any other iterable is iterated over. Batches are split
    into their graphs, without padding.

    Raises:
        ValueError: `graphs` is one graph.
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
    """Return the graphs of a batch without padding; return any other item as a list of one item."""
    from popgeo.data.pad import unpad

    if not is_graph_data(item) or not hasattr(item, "to_data_list"):
        return [item]
    return unpad(item) if "graphs_mask" in item else item.to_data_list()


def _at(dataset: Any, i: int) -> Any:
    try:
        return dataset[i]
    except Exception as error:  # of the dataset, or of its transform
        return error


def reader_of(program: FixedProgram) -> GraphReader:
    """Return a reader that converts graphs to inputs of a program."""
    kinds = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in program.inputs.items()}
    how: dict[str, Any] = {"layout": program.layout, "names": program.names, "cutoff": program.cutoff}
    return GraphReader(sizes=program.sizes, kinds=kinds, **how)
