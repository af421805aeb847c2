"""An operation that prints a tensor, and its gradient, each time that a step runs."""

from typing import Any

import torch
from torch import Tensor
from torch._tensor_str import printoptions


@torch.library.custom_op("popgeo::print_tensor", mutates_args=())
def _print(x: Tensor, title: str, grad_title: str, threshold: int, edge_items: int, width: int, digits: int) -> Tensor:
    with printoptions(threshold=threshold, edgeitems=edge_items, linewidth=width, precision=digits):
        print(f"{title}: {x.detach()}")
    return x.clone()


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.how = inputs[2:]


def _print_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    title, *how = ctx.how
    return _print(grad, title, "", *how) if title else grad, *(None,) * 6


_print.register_fake(lambda x, *how: torch.empty_like(x))
_print.register_autograd(_print_backward, setup_context=_remember)


def print_tensor(
    tensor: Tensor,
    title: str = "",
    *,
    print_gradient: bool = True,
    threshold: int = 1000,
    edge_items: int = 3,
    width: int = 80,
    digits: int = 4,
) -> Tensor:
    """Return a copy of a tensor, and print it; a compiled step prints at every run.

    A compiled step removes unused operations, so it prints only if the model uses the copy.

    Args:
        tensor: Tensor to print.
        title: Text before the tensor. Default: none.
        print_gradient: Print the gradient as well, with the title and `_gradient`. Default: True.
        threshold: Number of elements above which only the edges are printed. Default: 1000.
        edge_items: Elements at each edge. Default: 3.
        width: Characters per line. Default: 80.
        digits: Digits after the point. Default: 4.

    Example:
        >>> doubled = 2 * print_tensor(torch.tensor([1.5]), "x")
        x: tensor([1.5000])
    """
    gradient_title = f"{title}_gradient" if print_gradient else ""
    return _print(tensor, title, gradient_title, threshold, edge_items, width, digits)
