"""Every field of a neighbor list against the definition, pair by pair, with padding, windows and exact cutoffs."""

import itertools
import time
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo.native import library
from popgeo.native.library import without_native
from popgeo.ops.neighbors import distance, knn, pairs, radius

CUTOFF = 2.0  # many pairs on a grid are exactly as far apart
SIZES = [[1], [2], [3, 1], [4, 2, 5], [6, 1, 6]]


def make_batch(sizes: list[int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(sizes))
    pos = torch.randint(0, 4, (sum(sizes), 3), generator=generator).float()
    return pos, torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def near(pos: Tensor, batch: Tensor, real: Tensor) -> dict[int, list[tuple[float, int]]]:
    """Return for each node the distances and numbers of nodes within the cutoff, in the order of the numbers."""
    found: dict[int, list[tuple[float, int]]] = {i: [] for i in range(len(pos))}
    for i, j in itertools.permutations(range(len(pos)), 2):
        r2 = float((pos[i] - pos[j]).square().sum())
        if batch[i] == batch[j] and real[i] and real[j] and r2 <= CUTOFF**2:
            found[i].append((float(torch.tensor(r2).sqrt()), j))
    return found


@pytest.fixture(params=[False, True], ids=["compiled", "plain torch"])
def in_plain_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    with without_native() if request.param else nullcontext():
        yield


@pytest.fixture(params=[False, True], ids=["all real", "the last graph is padding"])
def with_padding(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.mark.usefixtures("in_plain_torch")
@pytest.mark.parametrize("window", [None, "largest", "larger"])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_field_is_as_the_definition_has_it(sizes: list[int], window: str | None, with_padding: bool):
    pos, batch = make_batch(sizes)
    real = batch < len(sizes) - 1 if with_padding else torch.ones(len(pos), dtype=torch.bool)
    largest = max(
        (size for size, last in zip(sizes, [*[False] * (len(sizes) - 1), with_padding], strict=True) if not last),
        default=1,
    )
    max_num_nodes = {None: None, "largest": largest, "larger": largest + 9}[window]
    given = {"num_graphs": len(sizes), "max_num_nodes": max_num_nodes, "nodes_mask": real if with_padding else None}
    found = near(pos, batch, real)

    for k in (1, 2, 7):
        edge_index, edge_weight, edges_mask = knn(pos, batch, k, CUTOFF, **given)
        slots = [sorted((r, j) for r, j in found[i])[:k] for i in range(len(pos))]
        assert edge_index.shape == (2, k * len(pos))
        assert edge_index.dtype is torch.int64
        for i, mine in enumerate(slots):
            own = slice(i * k, (i + 1) * k)
            made = zip(edge_weight[own].tolist(), edge_index[0, own].tolist(), edges_mask[own].tolist(), strict=True)
            assert edge_index[1, own].tolist() == [i] * k
            expected = [(r, j, True) for r, j in mine] + [(CUTOFF, i, False)] * (k - len(mine))
            assert sorted(made) == sorted(expected)

    half = pairs(pos, batch, CUTOFF, **given)
    width = len(pos) if max_num_nodes is None else min(max_num_nodes, len(pos))
    assert half.edge_index.shape == (2, len(pos) * (width // 2))
    present = half.edge_index[:, half.edges_mask].t().tolist()
    assert sorted(map(sorted, present)) == sorted([j, i] for i in found for _, j in found[i] if j < i)
    absent = ~half.edges_mask
    assert torch.equal(half.edge_index[0, absent], half.edge_index[1, absent])
    assert (half.edge_weight[absent] == CUTOFF).all()
    lengths = [{j: r for r, j in found[i]}[j] for j, i in present]
    assert half.edge_weight[half.edges_mask].tolist() == lengths
    assert half.edge_index[1].tolist() == [i for i in range(len(pos)) for _ in range(width // 2)]

    all_edges = [(j, i, r) for i in found for r, j in found[i]]
    for num_edges in (len(all_edges) + 2, len(all_edges), max(len(all_edges) - 3, 0)):
        shared, num_missing = radius(pos, batch, CUTOFF, num_edges, **given)
        kept, spare = all_edges[:num_edges], max(num_edges - len(all_edges), 0)
        last = len(pos) - 1
        assert shared.edge_index.tolist() == [
            [j for j, _, _ in kept] + [last] * spare,
            [i for _, i, _ in kept] + [last] * spare,
        ]
        assert shared.edges_mask.tolist() == [True] * len(kept) + [False] * spare
        assert shared.edge_weight.tolist() == [r for *_, r in kept] + [CUTOFF] * spare
        assert int(num_missing) == len(all_edges) - len(kept)


def test_of_many_at_the_same_distance_the_lowest_go_first():
    pos = torch.zeros(150, 3)
    pos[:, 0] = torch.arange(150) % 10
    edge_index, _, _ = knn(pos, torch.zeros(150).long(), 20, 20.0, num_graphs=1)
    for i in (0, 77, 149):
        others = [j for j in range(150) if j != i]
        expected = sorted(others, key=lambda j: (abs(j % 10 - i % 10), j))[:20]
        assert edge_index[0, 20 * i : 20 * i + 20].tolist() == expected


def test_a_periodic_image_lies_where_its_shift_puts_it():
    pos = torch.tensor([[0.0, 0, 0], [9, 0, 0], [0, 0, 0]], requires_grad=True)
    edges = torch.tensor([[1, 1, 2, 1], [0, 0, 0, 0]])
    shift = torch.tensor([[-10.0, 0, 0], [0, 0, 0], [0, 0, 0], [5, 5, 5]])
    mask = torch.tensor([True, True, True, False])
    assert distance(pos, edges, mask, 7.0, shift).tolist() == [1, 9, 0, 7]
    assert distance(pos, edges[:, :3], None, 7.0, shift[:3]).tolist() == [1, 9, 0]
    distance(pos, edges, mask, 7.0, shift).sum().backward()
    assert pos.grad.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0]]  # one pulls as the other pushes
    pos.grad = None
    distance(pos, edges[:, :1], None, 7.0, shift[:1]).sum().backward()
    assert pos.grad.tolist() == [[1, 0, 0], [-1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", ["cube", "line", "with atoms that are nowhere", "all at one place"])
def test_a_large_graph_is_searched_by_cells_with_the_same_result(shape: str, dtype: torch.dtype):
    pos = 8 * torch.rand(700, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)
    if shape == "line":
        pos *= torch.tensor([40, 1e-4, 0])
    elif shape == "with atoms that are nowhere":
        pos[::50], pos[7] = torch.nan, torch.inf
    elif shape == "all at one place":
        pos[:] = 1.5
    batch = torch.tensor([0] * 12 + [1] * 600 + [2] * 88)
    given = {"num_graphs": 3, "nodes_mask": (batch < 2) & pos.isfinite().all(1)}
    searches = [(knn, {"k": 9}), (pairs, {}), (radius, {"num_edges": 9000}), (radius, {"num_edges": 400_000})]
    for search, size in searches:
        compiled = search(pos, batch, cutoff=CUTOFF, **size, **given)
        with without_native():
            plain = search(pos, batch, cutoff=CUTOFF, **size, **given)
        for one, other in zip(flat(compiled), flat(plain), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def flat(found: tuple) -> list[Tensor]:
    return [tensor for part in found for tensor in (flat(part) if isinstance(part, tuple) else [part])]


@pytest.mark.skipif(not library.is_available(), reason="the search is compiled")
def test_a_search_costs_what_the_graphs_cost_however_wide_the_windows_are():
    batch = torch.arange(30_000) // 20
    pos = torch.rand(len(batch), 3)
    start = time.process_time()
    knn(pos, batch, 8, 1.0, num_graphs=1500)
    radius(pos, batch, 1.0, 600_000, num_graphs=1500)
    one = torch.zeros(len(batch)).long()
    knn(30 * pos, one, 8, 1.0, num_graphs=1)
    assert time.process_time() - start < 20  # all pairs of rows would take minutes, and 36 GB


@pytest.mark.parametrize("search", [knn, pairs, radius])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cutoff": -1.0}, r"The cutoff is -1\.0; it must be positive"),
        ({"cutoff": 0.0}, r"The cutoff is 0\.0; it must be positive"),
        ({"max_num_nodes": 3}, "A graph has 4 nodes, max_num_nodes is 3"),
        ({"max_num_nodes": 3, "nodes_mask": torch.tensor([False] * 2 + [True] * 4)}, "A graph has 4 nodes"),
        ({"max_num_nodes": 3, "nodes_mask": torch.tensor([True] * 2 + [False] * 4)}, None),
        ({"max_num_nodes": 4}, None),
        ({"cutoff": 1e-9}, None),
    ],
)
def test_what_cannot_be_searched_is_refused(search, change: dict, message: str | None):
    pos, batch = torch.zeros(6, 3), torch.tensor([0, 0, 1, 1, 1, 1])
    given = {"pos": pos, "batch": batch, "cutoff": 1.0, "num_graphs": 2} | change
    given |= {"k": 1} if search is knn else {"num_edges": 9} if search is radius else {}
    if message is None:
        search(**given)
        return
    with pytest.raises(ValueError, match=message):
        search(**given)


def test_under_capture_the_sizes_of_graphs_are_not_looked_at():
    with FakeTensorMode() as mode:
        pos, batch = mode.from_tensor(torch.zeros(6, 3)), mode.from_tensor(torch.zeros(6, dtype=torch.long))
        assert knn(pos, batch, 4, 1.0, num_graphs=2, max_num_nodes=2).edge_index.shape == (2, 24)
    assert pairs(torch.zeros(0, 3), torch.zeros(0).long(), 1.0, num_graphs=1, max_num_nodes=4).edge_index.shape == (
        2,
        0,
    )
    with pytest.raises(ValueError, match="A graph has 1 nodes, max_num_nodes is 0"):
        pairs(torch.zeros(1, 3), torch.zeros(1).long(), 1.0, num_graphs=1, max_num_nodes=0)
    with pytest.raises(ValueError, match="k is -1; it must be at least 1"):
        knn(torch.zeros(2, 3), torch.zeros(2).long(), -1, 1.0, num_graphs=1)
