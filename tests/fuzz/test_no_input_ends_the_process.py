"""Tensors of every class, layout and dtype of torch, in every public function: a result or an error, never a crash.

A crash ends the process of the test, and the test runner reports it.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor
from torch.utils._pytree import tree_map
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Batch, Data

from popgeo import FixedSizeDataLoader, FixedSizeOptions, Predictor, ops
from popgeo.data import FixedSizeCollater, Pad, write
from popgeo.loader import FixedSizeClusterLoader, FixedSizeLinkLoader, FixedSizeNeighborLoader
from popgeo.loader.large import measure_sizes
from popgeo.sampling import CompressedGraph, sample_neighbors

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex32, torch.complex64),
]


class Subclass(torch.Tensor):
    """A subclass of Tensor with its own name."""


class Wrapper(torch.Tensor):
    """A tensor without memory that forwards operations to another tensor."""

    @staticmethod
    def __new__(cls, held: Tensor) -> "Wrapper":
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held: Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_map(lambda part: part.held if isinstance(part, Wrapper) else part, (args, kwargs or {}))
        return func(*given[0], **given[1])


pytestmark = pytest.mark.filterwarnings("ignore")  # torch's warnings about experimental features


@pytest.fixture(autouse=True)
def _sizes_are_measured_on_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure sizes on few samples: a crash occurs in the first ones, and 512 would take most of the time."""
    monkeypatch.setattr(measure_sizes, "_SOME", 8)


def forms_of(plain: Tensor) -> Iterator[Any]:
    """Yield a tensor in every form of torch, PyG and Python."""
    yield from (plain.as_subclass(Subclass), Wrapper(plain), torch.nn.Parameter(plain, requires_grad=False))
    yield from (plain.to(dtype) for dtype in DTYPES)
    if plain.dtype is torch.int64:
        yield EdgeIndex(plain, sparse_size=(4, 4)) if plain.dim() == 2 else Index(plain)
    elif plain.is_floating_point():
        yield torch.quantize_per_tensor(plain, 0.1, 0, torch.quint8)
        yield from (masked_tensor(plain, plain > 0), plain.clone().requires_grad_() * 1)
    if plain.dim() == 2:
        yield from (plain.to_sparse_csr(), plain.to_mkldnn() if plain.is_floating_point() else plain)
    yield from (plain.to_sparse(), plain.to("meta"), torch.nested.nested_tensor([plain, plain]))
    yield from (FakeTensorMode().from_tensor(plain), torch._to_functional_tensor(plain), torch._neg_view(plain))
    yield from (
        plain.to(torch.complex64).conj(),
        torch.stack([plain, plain], -1)[..., 1],
        plain.tolist(),
        plain.numpy(),
    )
    with torch.inference_mode():
        yield plain.clone()
    freed = plain.clone()
    freed.untyped_storage().resize_(0)
    yield freed


X, EDGES, Y = torch.arange(8.0).view(4, 2), torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([1.0])
ROWS = torch.tensor([0, 1, 2])
OPTIONS = FixedSizeOptions(16, 16, num_graphs=3)


class Sums(torch.nn.Module):
    """A model that sums the features of each node's neighbors."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return ops.scatter(x[edge_index[0]], edge_index[1], 0, dim_size=x.size(0))


DOORS: dict[str, Callable[[Data, Any], Any]] = {
    "loader": lambda graph, _: next(iter(FixedSizeDataLoader([graph, graph], 3))),
    "collater": lambda graph, _: FixedSizeCollater(OPTIONS)([graph, graph]),
    "pad": lambda graph, _: Pad(16, 16)(graph),
    "write": lambda graph, path: write([graph, graph], path / "store"),
    "predictor": lambda graph, _: Predictor(Sums(), OPTIONS, "none")([graph, graph]),
    "neighbors": lambda graph, _: next(iter(FixedSizeNeighborLoader(graph, [2, 2], batch_size=2))),
    "clusters": lambda graph, _: next(iter(FixedSizeClusterLoader(graph, num_parts=2, batch_size=1))),
    "links": lambda graph, _: next(iter(FixedSizeLinkLoader(graph, [2], batch_size=2))),
}


def survives(call: Callable[[], Any]) -> None:
    with contextlib.suppress(ValueError, TypeError, RuntimeError, IndexError, AssertionError, AttributeError):
        call()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("name", "plain"), [("x", X), ("edge_index", EDGES), ("y", Y), ("far_index", ROWS)])
def test_no_tensor_of_a_graph_ends_the_process(door, name, plain, tmp_path_factory):
    for value in forms_of(plain):
        graph = Data(x=X, edge_index=EDGES, y=Y)
        graph[name] = value
        survives(lambda graph=graph: DOORS[door](graph, tmp_path_factory.mktemp("fuzz")))


@pytest.mark.parametrize("door", ["loader", "collater", "pad", "neighbors"])
def test_pygs_own_classes_are_what_they_hold(door, tmp_path):
    plain, own = Data(x=X, edge_index=EDGES), Data(x=X, edge_index=EdgeIndex(EDGES, sparse_size=(4, 4)))
    if door != "neighbors":  # sampling refuses attributes that count nodes
        plain.far_index, own.far_index = ROWS, Index(ROWS)
    one, other = (DOORS[door](graph, tmp_path) for graph in (plain, own))
    for name in plain.keys():  # noqa: SIM118
        assert torch.equal(one[name], other[name])
    if door == "loader":
        assert torch.equal(one.edge_index[:, :6], Batch.from_data_list([plain, plain]).edge_index)


SRC, INDEX, POINTERS, POS, GRAPH, REAL = (
    torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 3]), torch.zeros(3, 3),
    torch.tensor([0, 0, 1]), torch.tensor([True, True, False]),
)  # fmt: skip
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    **{
        name: (partial(lambda name, s, i: getattr(ops, name)(s, i, 0, dim_size=3), name), (SRC, INDEX))
        for name in ("scatter", "scatter_mean", "scatter_max", "scatter_mul", "scatter_std", "scatter_logsumexp")
    },
    "scatter_softmax": (lambda s, i: ops.scatter_softmax(s, i, 0, dim_size=3), (SRC, INDEX)),
    "gather": (ops.gather, (SRC, INDEX)),
    "segment_csr": (ops.segment_csr, (SRC, POINTERS)),
    "segment_max_csr": (ops.segment_max_csr, (SRC, POINTERS)),
    "gather_csr": (ops.gather_csr, (SRC[:2], POINTERS)),
    "gather_coo": (ops.gather_coo, (SRC, INDEX)),
    "cfconv": (lambda x, w, s, d: ops.cfconv(x, w, s, d, 3), (SRC, SRC, INDEX, INDEX)),
    "plan": (lambda i: ops.ScatterPlan.from_index(i, 3), (INDEX,)),
    "knn": (lambda p, b, m: ops.knn(p, b, 1, 5.0, num_graphs=2, nodes_mask=m), (POS, GRAPH, REAL)),
    "pairs": (lambda p, b, m: ops.pairs(p, b, 5.0, num_graphs=2, max_num_nodes=2, nodes_mask=m), (POS, GRAPH, REAL)),
    "radius": (lambda p, b, m: ops.radius(p, b, 5.0, 4, num_graphs=2, nodes_mask=m), (POS, GRAPH, REAL)),
    "pool": (lambda s, i: ops.global_mean_pool(s, i, 2), (SRC, GRAPH)),
    "softplus": (ops.shifted_softplus, (SRC,)),
    "compress": (lambda e: CompressedGraph.from_edge_index(e, 4), (EDGES,)),
    "sample": (lambda s: sample_neighbors(CompressedGraph.from_edge_index(EDGES, 4), s, [1], seed=0), (ROWS,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_argument_of_a_function_ends_the_process(name):
    function, arguments = FUNCTIONS[name]
    for position, plain in enumerate(arguments):
        for value in forms_of(plain):
            given = [*arguments[:position], value, *arguments[position + 1 :]]
            survives(lambda given=given: function(*given))
