"""pyg-lib's operators in torch's dispatcher: PyG calls some functions as `torch.ops.pyg.NAME`, also in TorchScript."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from popgeo.ops.register_op import register_for, with_arguments_of

from . import ops, partition, sampler

_TIMES_AND_CHOICES = (
    "Tensor? node_time=None, Tensor? edge_time=None, Tensor? seed_time=None, Tensor? edge_weight=None, "
    "bool csc=False, bool replace=False, bool directed=True, bool disjoint=False, str temporal_strategy='uniform'"
)
_HETERO_TIMES_AND_CHOICES = _TIMES_AND_CHOICES.replace("Tensor?", "Dict(str, Tensor)?").replace("=None", "_dict=None")


def hetero_neighbor_sample(
    node_types: Sequence[str],
    edge_types: Sequence[tuple[str, str, str]],
    rowptr: Mapping[str, Tensor],
    col: Mapping[str, Tensor],
    seed: Mapping[str, Tensor],
    num_neighbors: Mapping[str, Sequence[int]],
    node_time: Mapping[str, Tensor] | None,
    edge_time: Mapping[str, Tensor] | None,
    seed_time: Mapping[str, Tensor] | None,
    edge_weight: Mapping[str, Tensor] | None,
    *choices: Any,
) -> tuple[Any, ...]:
    """Call `sampler.hetero_neighbor_sample` with the three parts of each edge type's name joined by `__`."""
    names = {"__".join(edge_type): edge_type for edge_type in edge_types}

    def by_type(of: Mapping[str, Any]) -> dict[tuple[str, str, str], Any]:
        return {edge_type: of[name] for name, edge_type in names.items() if name in of}

    graph = by_type(rowptr), by_type(col), seed, by_type(num_neighbors)
    times = node_time, None if edge_time is None else by_type(edge_time), seed_time
    weight = None if edge_weight is None else by_type(edge_weight)
    row, column, node, edge, num_nodes, num_edges = sampler.hetero_neighbor_sample(*graph, *times, weight, *choices)

    def by_name(of: Mapping[tuple[str, str, str], Any]) -> dict[str, Any]:
        return {"__".join(edge_type): part for edge_type, part in of.items()}

    return by_name(row), by_name(column), node, None if edge is None else by_name(edge), num_nodes, by_name(num_edges)


_OPERATORS: dict[str, Callable[..., Any]] = {
    f"neighbor_sample(Tensor rowptr, Tensor col, Tensor seed, int[] num_neighbors, {_TIMES_AND_CHOICES}, "
    "bool return_edge_id=True) -> (Tensor, Tensor, Tensor, Tensor?, int[], int[])": sampler.neighbor_sample,
    "hetero_neighbor_sample(str[] node_types, (str, str, str)[] edge_types, Dict(str, Tensor) rowptr_dict, "
    "Dict(str, Tensor) col_dict, Dict(str, Tensor) seed_dict, Dict(str, int[]) num_neighbors_dict, "
    f"{_HETERO_TIMES_AND_CHOICES}, bool return_edge_id=True) -> (Dict(str, Tensor), Dict(str, Tensor), "
    "Dict(str, Tensor), Dict(str, Tensor)?, Dict(str, int[]), Dict(str, int[]))": hetero_neighbor_sample,
    "subgraph(Tensor rowptr, Tensor col, Tensor nodes, bool return_edge_id=True) -> (Tensor, Tensor, Tensor?)": (
        sampler.subgraph
    ),
    "random_walk(Tensor rowptr, Tensor col, Tensor seed, int walk_length, float p, float q) -> Tensor": (
        sampler.random_walk
    ),
    "metis(Tensor rowptr, Tensor col, int num_partitions, Tensor? node_weight=None, Tensor? edge_weight=None, "
    "bool recursive=False) -> Tensor": partition.metis,
    "knn(Tensor x, Tensor y, Tensor? ptr_x=None, Tensor? ptr_y=None, int k=1, bool cosine=False, int num_workers=1) "
    "-> Tensor": lambda x, y, ptr_x=None, ptr_y=None, k=1, *choices: ops.knn(x, y, k, ptr_x, ptr_y, *choices),
    "radius(Tensor x, Tensor y, Tensor? ptr_x=None, Tensor? ptr_y=None, float r=1.0, int max_num_neighbors=32, "
    "int num_workers=1, bool ignore_same_index=False) -> Tensor": (
        lambda x, y, ptr_x=None, ptr_y=None, r=1.0, *choices: ops.radius(x, y, r, ptr_x, ptr_y, *choices)
    ),
    "nearest(Tensor x, Tensor y, Tensor? ptr_x=None, Tensor? ptr_y=None) -> Tensor": ops.nearest,
    "fps(Tensor src, Tensor ptr, float ratio=0.5, bool random_start=True) -> Tensor": ops.fps,
    "grid_cluster(Tensor pos, Tensor size, Tensor? start=None, Tensor? end=None) -> Tensor": ops.grid_cluster,
    "graclus_cluster(Tensor rowptr, Tensor col, Tensor? weight=None) -> Tensor": ops.graclus_cluster,
    "grouped_matmul(Tensor[] input, Tensor[] other) -> Tensor[]": ops.grouped_matmul,
}
register_for("pyg", _OPERATORS)
# PyG calls these by their Python names in TorchScript, too.
for function in (ops.index_sort, ops.segment_matmul, ops.softmax_csr, ops.spline_basis, ops.spline_weighting):
    with_arguments_of("pyg", function)
