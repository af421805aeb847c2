"""Matrix products of the compiled library: also in float64, with the same bits for any rows, threads and processors."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import popgeo
from popgeo.native import library

SHAPES = [(1, 1, 1), (1, 40, 30), (7, 5, 3), (13, 300, 17), (40, 64, 64), (33, 16, 50), (9, 513, 70), (50, 1, 20)]


class Product(nn.Module):
    """The product of two matrices, or of two batches of matrices, with an addend."""

    def forward(self, a: Tensor, b: Tensor, first: Tensor | None = None) -> Tensor:
        if a.dim() == 3:
            return torch.bmm(a, b)
        return a @ b if first is None else torch.addmm(first, a, b)


@pytest.fixture
def choose_isa() -> Iterator[Callable[[int], int]]:
    choose = library.function("popgeo_choose_isa", "q", "q")
    if choose is None:
        pytest.skip("the compiled kernels are not in use")
    yield choose
    choose(-1)


def compiled(*arguments: Tensor) -> Tensor:
    return popgeo.compile_forward(Product())(*arguments)


def layouts(*shape: int, dtype: torch.dtype) -> list[Tensor]:
    """Return a matrix in several layouts, such as transposed, as columns of a wider matrix, and as one row repeated."""
    plain = torch.randn(*shape, dtype=dtype)
    wide = torch.randn(shape[0], 2 * shape[1] + 3, dtype=dtype)
    columns = wide[:, 2 : 2 + shape[1]], wide[:, : 2 * shape[1] : 2]
    return [plain, torch.randn(*shape[::-1], dtype=dtype).t(), *columns, plain[:1].expand(shape)]


def turned(batch: Tensor) -> Tensor:
    """Return the same numbers in column-major order."""
    return batch.transpose(1, 2).contiguous().transpose(1, 2)


def assert_exact(made: Tensor, a: Tensor, b: Tensor, first: Tensor | float = 0.0) -> None:
    expected = a.double() @ b.double() + first
    size = a.double().abs() @ b.double().abs() + 1
    assert ((made.double() - expected).abs() <= 16 * torch.finfo(made.dtype).eps * size).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_all_layouts_are_those_of_float64(shape: tuple[int, int, int], dtype: torch.dtype):
    torch.manual_seed(0)
    num_rows, num_inner, num_columns = shape
    of_a, of_b = layouts(num_rows, num_inner, dtype=dtype), layouts(num_inner, num_columns, dtype=dtype)
    for a, b in itertools.product(of_a, of_b):
        assert_exact(compiled(a, b), a, b)
    a, b = of_a[0], of_b[1]
    for sizes in ((num_columns,), (1,), (), (num_rows, num_columns), (1, num_columns), (num_rows, 1)):
        first = torch.randn(sizes, dtype=dtype)
        assert_exact(compiled(a, b, first), a, b, first)
    a, b = torch.randn(3, num_rows, num_inner, dtype=dtype), torch.randn(3, num_inner, num_columns, dtype=dtype)
    for one, other in itertools.product((a, turned(a)), (b, turned(b))):
        assert_exact(compiled(one, other), a, b)


def test_a_number_by_which_a_product_is_multiplied_is_not_forgotten():
    class Scaled(nn.Module):
        def forward(self, first: Tensor, a: Tensor, b: Tensor) -> Tensor:
            return torch.addmm(first, a, b, beta=0.5, alpha=2.0)

    first, a, b = torch.randn(4), torch.randn(5, 3), torch.randn(3, 4)
    torch.testing.assert_close(popgeo.compile_forward(Scaled())(first, a, b), 0.5 * first + 2 * (a @ b))


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_products_of_nothing(shape: tuple[int, int, int]):
    a, b = torch.randn(shape[:2]), torch.randn(shape[1:])
    assert torch.equal(compiled(a, b), a @ b)
    assert torch.equal(compiled(a, b, torch.ones(shape[2])), a @ b + 1)


def test_infinities_and_nan_stay_in_their_rows():
    a, b = torch.randn(20, 30), torch.randn(30, 17)
    a[3, 4], a[11, 2] = torch.inf, torch.nan
    torch.testing.assert_close(compiled(a, b), a @ b, equal_nan=True)


@pytest.mark.usefixtures("choose_isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_row_is_the_same_whatever_the_other_rows_are(is_turned: bool, dtype: torch.dtype):
    a, b = torch.randn(64, 300, dtype=dtype), torch.randn(300, 40, dtype=dtype)
    whole = compiled(turned(a.unsqueeze(0)).squeeze(0) if is_turned else a, b)
    for num_rows in (1, 2, 3, 5, 6, 7, 31):
        assert torch.equal(compiled(a[:num_rows].clone(), b), whole[:num_rows])


@pytest.mark.parametrize("shape", [(700, 64, 64), (64, 700, 64), (4, 300, 500)])
def test_any_number_of_threads_gives_the_same_bits(shape: tuple[int, int, int]):
    a, b = torch.randn(shape[:2]), torch.randn(shape[1:])
    before, made = torch.get_num_threads(), []
    try:
        for num_threads in (1, 2, 3, 8):
            torch.set_num_threads(num_threads)
            made.append(compiled(a, b))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(made[0], other) for other in made[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_processors_with_fused_multiply_adds_give_the_same_bits(choose_isa: Callable[[int], int], dtype: torch.dtype):
    newest = choose_isa(-1)
    a, b = torch.randn(37, 300, dtype=dtype), torch.randn(50, 300, dtype=dtype).t()
    made = [compiled(a, b) for isa in range(1, newest + 1) if choose_isa(isa if isa < newest else -1) == isa]
    assert len(made) == newest
    assert all(torch.equal(made[0], other) for other in made[1:])
