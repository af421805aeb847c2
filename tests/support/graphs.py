"""Random graphs for tests, and comparisons of graphs."""

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from popgeo.data import FixedSizeOptions

WRITES = ("a", "writes", "b")
CITES = ("b", "cites", "b")


def graph(num_nodes: int, num_edges: int, seed: int = 0) -> Data:
    """Return a homogeneous graph with attributes of every level, several dtypes and widths."""
    random = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(num_nodes, 3, generator=random),
        edge_index=torch.randint(max(1, num_nodes), (2, num_edges), generator=random),
        edge_attr=torch.randint(9, (num_edges,), generator=random, dtype=torch.int16),
        y=torch.randn(1, 5, generator=random),
        pos=torch.randn(num_nodes, 3, generator=random, dtype=torch.float64),
        z=torch.randint(1, 9, (num_nodes,), generator=random),
        train_mask=torch.rand(num_nodes, generator=random) < 0.5,
        root_index=torch.tensor([num_nodes - 1]),
        charge=seed,
        weight=torch.tensor(0.5 + seed),
        name=f"graph {seed}",
    )


def hetero_graph(num_a: int, num_b: int, num_writes: int, num_cites: int, seed: int = 0) -> HeteroData:
    """Return a heterogeneous graph; its type `b` has no features."""
    random = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["a"].x = torch.randn(num_a, 2, generator=random)
    data["b"].num_nodes = num_b
    ends = [torch.randint(n, (num_writes,), generator=random) for n in (num_a, num_b)]
    data[WRITES].edge_index = torch.stack(ends)
    data[WRITES].edge_attr = torch.randn(num_writes, 2, generator=random)
    data[CITES].edge_index = torch.randint(num_b, (2, num_cites), generator=random)
    data.y = torch.randn(1, generator=random)
    return data


@st.composite
def lists_of_graphs(draw: st.DrawFn, max_size: int = 6) -> list[Data]:
    """Draw graphs of 1 to 7 nodes and 0 to 9 edges."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 7), st.integers(0, 9)), min_size=1, max_size=max_size))
    return [graph(nodes, edges, seed) for seed, (nodes, edges) in enumerate(sizes)]


@st.composite
def lists_of_hetero_graphs(draw: st.DrawFn) -> list[HeteroData]:
    """Draw heterogeneous graphs, some without edges of a type."""
    size = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 5), st.integers(0, 5))
    sizes = draw(st.lists(size, min_size=1, max_size=4))
    return [hetero_graph(*size, seed=seed) for seed, size in enumerate(sizes)]


def options_for(graphs: list[Data], nodes: int, edges: int, num_graphs: int) -> FixedSizeOptions:
    """Return options with extra slots besides the required padding node and padding graph."""
    return FixedSizeOptions(
        num_nodes=sum(g.num_nodes for g in graphs) + 1 + nodes,
        num_edges=sum(g.num_edges for g in graphs) + edges,
        num_graphs=len(graphs) + 1 + num_graphs,
    )


def same(a: Any, b: Any) -> bool:
    """Check whether two attributes are equal to the last bit, including NaN."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
    return bool(a == b)


def assert_real_part_equals(batch: Batch, graphs: Sequence[Data]) -> None:
    """Check that the real part of a fixed-size batch equals `Batch.from_data_list` to the last bit."""
    expected = Batch.from_data_list(list(graphs))
    for own, other in zip(batch.stores, expected.stores, strict=True):
        for name, value in other.items():
            if name == "num_nodes":
                continue
            if isinstance(value, Tensor):
                dim = value.dim() - 1 if name == "edge_index" else 0
                assert same(own[name].narrow(dim, 0, value.shape[dim]), value), name
            else:
                assert own[name][: len(value)] == value, name


def assert_same_graphs(found: Sequence[Data], expected: Sequence[Data]) -> None:
    """Check that two lists of graphs have the same attributes with the same values."""
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        for own_store, other_store in zip(own.stores, other.stores, strict=True):
            assert set(own_store.keys()) == set(other_store.keys())
            for name, value in other_store.items():
                assert same(_as_joined(own_store[name]), _as_joined(value)), name


def _as_joined(value: Any) -> Any:
    """Convert numbers and 0-d labels to tensors of one row, as PyG does when it joins graphs."""
    value = torch.tensor([value]) if isinstance(value, int | float) else value
    return value[None] if isinstance(value, Tensor) and value.dim() == 0 else value
