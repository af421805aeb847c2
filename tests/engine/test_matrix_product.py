"""Our products of small matrices equal torch's, whatever lies where, and run only where they are the faster ones."""

import copy
import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

import popgeo
from popgeo.engine import matrix_product
from popgeo.engine.matrix_product import Kind, Product, is_faster, suits
from popgeo.native import library

pytestmark = pytest.mark.skipif(not matrix_product._is_served(), reason="no kernel for this processor")

SIZES = st.sampled_from([1, 2, 4, 7, 8, 15, 16, 33, 48, 50, 100])


def turned(matrix: Tensor) -> Tensor:
    """The same matrix, column after column in memory."""
    return matrix.t().contiguous().t()


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computed amid numbers that must stay."""
    around = torch.full((a.shape[0] + 2, b.shape[1]), torch.nan)
    Product(around[1:-1], a, b, bias)()
    assert around[[0, -1]].isnan().all()
    return around[1:-1].clone()


@pytest.mark.parametrize("lies", [lambda m: m, turned])
def test_values_by_hand(lies):
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[10.0, 1.0, 0.0], [100.0, 0.0, 1.0]])
    assert product(lies(a), lies(b)).tolist() == [[210, 1, 2], [430, 3, 4]]
    assert product(a, lies(b), torch.tensor([1.0, 2.0, 3.0])).tolist() == [[211, 3, 5], [431, 5, 7]]


@settings(deadline=None, max_examples=60)
@given(
    rows=SIZES,
    depth=st.one_of(SIZES, st.sampled_from([256, 257, 600])),
    columns=SIZES,
    flags=st.tuples(*[st.booleans()] * 3),
)
def test_results_are_torchs_within_a_millionth(rows, depth, columns, flags):
    generator = torch.Generator().manual_seed(rows * depth + columns)
    a, b, bias = (torch.randn(*size, generator=generator) for size in ((rows, depth), (depth, columns), (columns,)))
    a, b = (turned(m) if flag else m for m, flag in zip((a, b), flags, strict=False))
    expected = a @ b + bias if flags[2] else a @ b
    scale = (a.double().abs() @ b.double().abs()).max().item()
    assert_close(product(a, b, bias if flags[2] else None), expected, rtol=0, atol=1e-6 * scale)


def test_every_instruction_set_and_number_of_threads_gives_the_same_bits(generator):
    choose = library.function("popgeo_choose_isa", (ctypes.c_int64,), ctypes.c_int64)
    assert choose is not None
    a, b, bias = (torch.randn(*size, generator=generator) for size in ((581, 300), (300, 100), (100,)))
    results = []
    for isa in range(choose(-1), 0, -1):
        choose(isa)
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            results += [product(a, b, bias), product(turned(a), turned(b), bias)]
    choose(-1)
    assert all(torch.equal(results[0], other) for other in results)


def test_rows_that_are_one_in_memory_and_rows_apart_are_read_right(generator):
    a, b = torch.randn(1, 20, generator=generator), torch.randn(20, 60, generator=generator)
    assert_close(product(a.expand(9, 20), b), (a @ b).expand(9, 60))
    assert_close(product(b, a[:, :1].expand(60, 20)), b @ a[:, :1].expand(60, 20))
    assert_close(product(b, a.expand(60, 20)), b @ a.expand(60, 20))
    assert_close(product(a, b[:, 10:30]), a @ b[:, 10:30])


def test_results_narrower_than_a_vector_are_right(generator):
    for columns in (1, 3, 15, 17, 31):
        whole = torch.full((8 * columns + 64,), torch.nan)
        b = whole[: 8 * columns].view(8, columns).copy_(torch.randn(8, columns, generator=generator))
        a = torch.randn(5, 8, generator=generator)
        assert_close(product(a, b), a @ b)


def test_a_nan_and_infinities_come_through():
    a, b = torch.ones(9, 20), torch.ones(20, 17)
    a[3, 19], b[2, 16] = torch.nan, torch.inf
    assert_close(product(a, b), a @ b, equal_nan=True)


@pytest.mark.parametrize(
    ("a", "b", "fits"),
    [
        (torch.ones(64, 32), torch.ones(32, 16), True),
        (torch.ones(64, 32).double(), torch.ones(32, 16).double(), False),
        (torch.ones(64, 64)[:, ::2], torch.ones(32, 16), False),
        (torch.ones(64, 32), torch.ones(32, 1), False),
        (torch.ones(64, 0), torch.ones(0, 16), False),
        (torch.ones(64, 32), torch.ones(32, 1024), False),
    ],
)
def test_only_plain_matrices_that_are_small_are_taken(a, b, fits):
    assert suits(torch.empty(len(a), b.shape[1], dtype=a.dtype), a, b) == fits


@pytest.fixture
def always_faster(monkeypatch):
    monkeypatch.setattr(matrix_product, "is_faster", lambda kind: True)


def test_a_compiled_step_with_our_products_trains_as_eager(always_faster, generator):
    model = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 8, bias=False), nn.Tanh(), nn.Linear(8, 5))
    eager = copy.deepcopy(model)

    class Step(nn.Module):
        def __init__(self, layers: nn.Module) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            out = self.layers(x)
            return out, out.square().mean()

    x, optimizer = torch.randn(40, 12, generator=generator), torch.optim.SGD(eager.parameters(), lr=0.1)
    step = popgeo.training_model(Step(model), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        out, _ = step(x)
        optimizer.zero_grad()
        expected = eager(x)
        expected.square().mean().backward()
        optimizer.step()
        assert_close(out, expected.detach(), rtol=1e-6, atol=1e-6)
    names = step._compiled.runner.graph_runner._run.__globals__
    assert sum(isinstance(call, Product) for call in names.values()) >= 6


def test_whether_it_is_faster_is_measured_once_and_leaves_the_threads_as_they_were():
    torch.set_num_threads(3)
    answers = [is_faster(kind) for kind in Kind]
    assert torch.get_num_threads() == 3
    assert answers == [is_faster(kind) for kind in Kind]
