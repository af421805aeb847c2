"""Replacements for PyG's missing extensions: searches, partitions and samples of popgeo."""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch_geometric import typing as pyg_typing
from torch_geometric.loader import ClusterData
from torch_geometric.nn import MessagePassing, pool
from torch_geometric.sampler import HeteroSamplerOutput, NeighborSampler, SamplerOutput

from popgeo.compat import torch_cluster
from popgeo.compat.account import honoured, ignored
from popgeo.replaced import replaced
from popgeo.sampling import CompressedGraph, partition, sample_neighbors

_FLAGS = {"knn": "WITH_KNN", "knn_graph": "WITH_KNN", "radius": "WITH_RADIUS", "radius_graph": "WITH_RADIUS"}
_FLAGS |= {"nearest": "WITH_NEAREST"}
_LAYERS = ("edge_conv", "gravnet_conv", "x_conv")
_SAMPLED = ("node", "row", "col", "edge", "batch", "num_sampled_nodes", "num_sampled_edges")

_CHANGES = ExitStack()  # closing it restores PyG's functions
_IN_PLACE: list[str] = []  # names of replaced functions


def stand_in() -> None:
    """Replace PyG's missing extensions until `take_back`. Installed extensions stay in use.

    Example:
        >>> stand_in()
        >>> pool.knn(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[4.0]]), 2)
        tensor([[0, 0],
                [2, 1]])
        >>> take_back()
    """
    if _IN_PLACE:
        return
    for name, flag in _FLAGS.items():
        if not getattr(pyg_typing, flag):
            _replace_function(pool, name, getattr(torch_cluster, name))
    if not getattr(pyg_typing, _FLAGS["knn"]):
        _replace_search_of_layers()
    if not getattr(pyg_typing, "WITH_GRID_CLUSTER", True):
        _replace_attribute(torch.ops.pyg, "grid_cluster", torch_cluster.grid_cluster)
        _replace_attribute(pyg_typing, "WITH_GRID_CLUSTER", True)
    if not (pyg_typing.WITH_METIS or pyg_typing.WITH_TORCH_SPARSE):
        _replace_attribute(ClusterData, "_metis", _partitioned)
    if not (pyg_typing.WITH_PYG_LIB or pyg_typing.WITH_TORCH_SPARSE):
        _replace_attribute(NeighborSampler, "_sample", _sampled(NeighborSampler._sample))
    for flag in sorted(set(_FLAGS.values())):
        _replace_attribute(pyg_typing, flag, True)
    _accept_old_arguments()


def take_back() -> None:
    """Restore PyG's own functions.

    Example:
        >>> take_back()
    """
    _CHANGES.close()
    _IN_PLACE.clear()


def _replace_attribute(holder: Any, name: str, part: Any) -> None:
    _CHANGES.enter_context(replaced(holder, name, part))
    _IN_PLACE.append(name)


def _accept_old_arguments() -> None:
    """Ignore `add_self_loops` of layers without loops, as PyG 2.4 did; old programs pass it to `SAGEConv`."""
    make = MessagePassing.__init__
    if hasattr(make, "__wrapped__") or "add_self_loops" in inspect.signature(make).parameters:
        return

    @functools.wraps(make)
    def take(layer: MessagePassing, *args: Any, **kwargs: Any) -> None:
        if kwargs.pop("add_self_loops", None) is not None:
            ignored(
                f"{type(layer).__name__}(add_self_loops=)", "the layer adds no loops; PyG 2.4 ignored the argument, too"
            )
        make(layer, *args, **kwargs)

    _replace_attribute(MessagePassing, "__init__", take)


def _replace_search_of_layers() -> None:
    """Replace the search of PyG's layers, which pass graph boundaries. Here they pass the graph of each node."""
    for layer in _LAYERS:
        module = importlib.import_module(f"torch_geometric.nn.conv.{layer}")
        _replace_attribute(module, "index2ptr", lambda batch: batch)
    _replace_attribute(torch.ops.pyg, "knn", _knn)  # this namespace accepts any name


def _knn(x: Tensor, y: Tensor, of_x: Any, of_y: Any, k: int, cosine: bool, num_workers: int) -> Tensor:
    return torch_cluster.knn(x, y, k, of_x, of_y, cosine)


def _replace_function(module: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a function of PyG in its module, and in each module of PyG that has imported it."""
    original = getattr(module, name)
    for importer in [value for key, value in sys.modules.items() if key.partition(".")[0] == "torch_geometric"]:
        if vars(importer).get(name) is original:
            _replace_attribute(importer, name, function)


def _partitioned(clusters: Any, edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return the part of each node for `ClusterData` [num_nodes]."""
    honoured("torch_geometric.loader.ClusterData", "popgeo's partition replaces METIS")
    return partition(edge_index, clusters.num_parts, num_nodes=num_nodes)


def _sampled(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sample(sampler: Any, seed: Any, seed_time: Any = None, **kwargs: Any) -> Any:
        if sampler.sample_direction != "forward":
            return original(sampler, seed, seed_time, **kwargs)
        honoured("torch_geometric.loader.NeighborLoader", "popgeo samples, since pyg-lib is missing")
        how = {name: getattr(sampler, name) for name in ("replace", "disjoint", "temporal_strategy")}
        induced = sampler.subgraph_type.value == "induced"
        how |= {"subgraph_type": "induced" if induced else "directional", "seed_time": seed_time}
        numbers, kind = sampler.num_neighbors, HeteroSamplerOutput if isinstance(seed, dict) else SamplerOutput
        if isinstance(seed, dict):
            graphs = {edge_type: _compressed(sampler, edge_type) for edge_type in sampler.edge_types}
            seeds = {key: ids.long() for key, ids in seed.items()}
            out: Any = sample_neighbors(graphs, seeds, numbers._get_values(sampler.edge_types), **how)
        else:
            out = sample_neighbors(_compressed(sampler, None), seed.long(), numbers.get_mapped_values(), **how)
        return kind(**{name: _plain(getattr(out, name)) for name in _SAMPLED})

    return sample


def _plain(part: Any) -> Any:
    """Return a part of a sample with dictionaries and lists, as in PyG."""
    if isinstance(part, Mapping):
        return {key: _plain(of) for key, of in part.items()}
    return list(part) if isinstance(part, tuple) else part


def _compressed(sampler: Any, edge_type: Any) -> CompressedGraph:
    """Return the edges of a type, or of a graph without types, with weights and times of edges or source nodes."""
    if edge_type is None:
        colptr, row, num_sources = sampler.colptr, sampler.row, sampler.num_nodes
        weight, of_edges, of_nodes = sampler.edge_weight, sampler.edge_time, sampler.node_time
    else:
        key = sampler.to_rel_type[edge_type]
        colptr, row, num_sources = sampler.colptr_dict[key], sampler.row_dict[key], sampler.num_nodes[edge_type[0]]
        weight, of_edges = ((found or {}).get(key) for found in (sampler.edge_weight, sampler.edge_time))
        of_nodes = (sampler.node_time or {}).get(edge_type[0])
    time = of_edges if of_edges is not None else None if of_nodes is None else of_nodes[row]
    return CompressedGraph(rowptr=colptr, col=row.to(colptr.dtype), num_cols=num_sources, weight=weight, time=time)
