"""popgeo::scatter_mul: the product of the rows that share an index, with gradients that are right at zeros."""

from typing import Any

import torch
from torch import Tensor

from popgeo.ops import reference
from popgeo.ops.gather_scatter import check_sum, gather_rows
from popgeo.ops.refusals import refuse_index
from popgeo.ops.register_op import register


def _scatter_mul(src: Tensor, index: Tensor, num_rows: int, *plan: Any) -> Tensor:
    check_sum(src, index, num_rows)
    refuse_index("index", index, num_rows)
    return reference.scatter_mul(src, index, num_rows)


def _fake(src: Tensor, index: Tensor, num_rows: int, *plan: Any) -> Tensor:
    check_sum(src, index, num_rows)
    return src.new_empty(num_rows, src.shape[1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    src, index, *_ = inputs
    ctx.save_for_backward(src, index)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    src, index = ctx.saved_tensors
    order = torch.argsort(index, stable=True)
    others = _product_of_others(src.index_select(0, order), index.index_select(0, order))
    back = torch.argsort(order)
    return gather_rows(grad, index, None, None, 0) * others.index_select(0, back), *[None] * 5


def _product_of_others(src: Tensor, index: Tensor) -> Tensor:
    """For each edge the product of all other edges of its row, without dividing by what may be zero.

    Edges before times edges after, each by doubling the reach of a running product; made of plain torch ops, so torch
    differentiates it as often as asked. `index` is sorted.
    """
    before = _running_product(src, index, shift=1)
    after = _running_product(src.flip(0), index.flip(0), shift=1).flip(0)
    return before * after


def _running_product(src: Tensor, index: Tensor, shift: int) -> Tensor:
    product = _shifted(src, index, shift)
    reach = 1
    while reach < src.shape[0]:
        product = product * _shifted(product, index, reach)
        reach *= 2
    return product


def _shifted(src: Tensor, index: Tensor, shift: int) -> Tensor:
    """Each row's entry `shift` positions earlier, or 1 where that belongs to another row."""
    same = (index[shift:] == index[:-shift]).unsqueeze(1)
    ones = torch.ones_like(src[:shift])
    return torch.cat([ones, torch.where(same, src[:-shift], torch.ones_like(src[:-shift]))])


# (src, index, num_rows, *plan): the product of the rows of `src` that share an index. [num_rows, channels]
scatter_mul_rows = register(
    "scatter_mul(Tensor src, Tensor index, SymInt num_rows, "
    "Tensor? rowptr=None, Tensor? perm=None, int num_tiles=0) -> Tensor",
    kernel=_scatter_mul,
    fake=_fake,
    setup_context=_save,
    backward=_differentiate,
)
