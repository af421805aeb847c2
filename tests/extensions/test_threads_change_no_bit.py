"""Each function of torch_scatter and torch_cluster returns the same bits with one thread and with two."""

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

# Enough elements for two threads, and a number of channels that no vector divides.
NUM_ROWS, NUM_EDGES, CHANNELS = 500, 4000, 33
DRAW = torch.Generator().manual_seed(0)
INDEX = torch.randint(NUM_ROWS, (NUM_EDGES,), generator=DRAW)
SORTED = INDEX.sort().values
INDPTR = torch.searchsorted(SORTED, torch.arange(NUM_ROWS + 1))
SRC, ROWS = (torch.randn(n, CHANNELS, generator=DRAW) for n in (NUM_EDGES, NUM_ROWS))
POINTS, CLOUDS = torch.rand(600, 3, generator=DRAW), torch.arange(600) // 250
COL = torch.randint(NUM_ROWS, (NUM_EDGES,), generator=DRAW)
CLUSTER: dict[str, tuple[Any, ...]] = {
    "fps": (POINTS, CLOUDS, 0.02),
    "graclus_cluster": (SORTED, COL),
    "grid_cluster": (POINTS, torch.tensor([0.1, 0.1, 0.1])),
    "knn": (POINTS, POINTS, 5, CLOUDS, CLOUDS),
    "knn_graph": (POINTS, 5, CLOUDS),
    "nearest": (POINTS, POINTS[::3], CLOUDS, CLOUDS[::3]),
    "neighbor_sampler": (torch.arange(NUM_ROWS), INDPTR, 3.0),
    "radius": (POINTS, POINTS, 0.3, CLOUDS, CLOUDS),
    "radius_graph": (POINTS, 0.3, CLOUDS),
    "random_walk": (SORTED, COL, torch.arange(NUM_ROWS), 20),
}


def functions(package: str) -> list[str]:
    module = importlib.import_module(f"popgeo.extensions.{package}")
    return [name for name, one in vars(module).items() if callable(one) and name != "with_arguments_of"]


def with_gradient(function: Callable[..., Any], src: Tensor, *arguments: Any, **named: Any) -> list[Tensor]:
    leaf = src.clone().requires_grad_()
    result = function(leaf, *arguments, **named)
    results = result if isinstance(result, tuple) else (result,)
    weight = torch.linspace(-1, 1, results[0].numel()).view_as(results[0])
    return [*results, *torch.autograd.grad(results[0], leaf, weight)]


def same_bits(call: Callable[[], list[Tensor]], set_num_threads: Callable[[int], None]) -> bool:
    found = []
    for num_threads in (1, 2):
        set_num_threads(num_threads)
        torch.manual_seed(0)
        found.append([one.detach().numpy().tobytes() for one in call()])
    return found[0] == found[1]


@pytest.fixture
def set_num_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", functions("torch_scatter"))
def test_scatters_and_their_gradients(native, set_num_threads, torch_scatter, name):
    function = getattr(torch_scatter, name)
    src = ROWS if name.startswith("gather") else SRC
    where = INDPTR if name.endswith("csr") else SORTED if name.endswith("coo") else INDEX
    named = [{"dim": 0} if name.startswith("scatter") else {}]
    if "reduce" in inspect.signature(function).parameters:
        named = [{**named[0], "reduce": reduce} for reduce in ("sum", "mean", "min", "max")]
    for given, rows in itertools.product(named, (src, src[:, :1])):
        assert same_bits(functools.partial(with_gradient, function, rows, where, **given), set_num_threads)


@pytest.mark.parametrize("name", [*CLUSTER])
def test_searches_clusters_and_samples(native, set_num_threads, torch_cluster, name):
    assert {*CLUSTER} == {*torch_cluster.__all__}
    assert same_bits(lambda: [getattr(torch_cluster, name)(*CLUSTER[name])], set_num_threads)
