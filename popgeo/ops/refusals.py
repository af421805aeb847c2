"""Checks of arguments of ops and layers, with error messages."""

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops.eager import is_plain
from popgeo.ops.sum_on_device import require_range

INDEX_DTYPES = (torch.int64, torch.int32)


def require(holds: Tensor, value: Tensor, reason: Callable[[], str]) -> Tensor:
    """Check a condition on data, also in captured code, and return `value`.

    In eager code a false condition raises. Captured, traced or transformed code cannot raise: there a floating point
    `value` becomes NaN, and an index becomes -1, for which every function of indices raises.

    Args:
        holds: Condition: one boolean, or one per part of the value. [] or broadcast to the value
        value: Tensor that the caller may only use if the condition holds.
        reason: Function that returns the message of the error.

    Raises:
        ValueError: the condition is false, in eager code.

    Example:
        >>> pos = torch.tensor([1.0, 2.0])
        >>> require(pos.min() > 0, pos, lambda: f"pos starts at {float(pos.min())}; it must be positive.")
        tensor([1., 2.])
    """
    if not is_plain():
        return torch.where(holds, value, torch.nan if value.is_floating_point() else -1)
    if not holds.all():
        raise ValueError(reason())
    return value


def check_shapes(remedy: str, **named: tuple[Tensor | None, Sequence[int | None]]) -> None:
    """Check that tensors have the required shapes.

    Args:
        remedy: End of the message, with the meaning of the shapes or a remedy.
        named: Each tensor and its shape, by its name. None in a shape allows any size, and None for a tensor passes.

    Raises:
        ValueError: a shape does not match.

    Example:
        >>> check_shapes("Pass one per row.", mask=(torch.ones(2), (3,)), scores=(torch.ones(3, 2), (3, None)))
        Traceback (most recent call last):
            ...
        ValueError: mask has shape (2,); it must be (3,). Pass one per row.
    """
    for name, (tensor, shape) in named.items():
        found = shape if tensor is None else tuple(tensor.shape)
        if len(found) != len(shape) or any(s not in (None, f) for s, f in zip(shape, found, strict=True)):
            wanted = str(tuple("any" if s is None else s for s in shape)).replace("'", "")
            raise ValueError(f"{name} has shape {found}; it must be {wanted}. {remedy}")


def check_least(least: int, why: str = "", **named: float) -> None:
    """Check that numbers are not too small.

    Args:
        least: Smallest allowed number.
        why: End of the message.
        named: Numbers, by name.

    Raises:
        ValueError: a number is smaller than `least`.

    Example:
        >>> check_least(1, "A node needs an edge slot.", num_graphs=2, k=0)
        Traceback (most recent call last):
            ...
        ValueError: k is 0; it must be at least 1. A node needs an edge slot.
    """
    for name, number in named.items():
        if number < least:
            raise ValueError(f"{name} is {number}; it must be at least {least}. {why}".rstrip())


def check_choice(name: str, given: object, allowed: Iterable[object]) -> None:
    """Check that an argument is one of the allowed choices.

    Raises:
        ValueError: the argument is no choice; the message lists the choices.

    Example:
        >>> check_choice("readout", "median", ("add", "mean"))
        Traceback (most recent call last):
            ...
        ValueError: readout is 'median'; it must be one of 'add', 'mean'.
    """
    known = list(allowed)
    if given not in known:
        raise ValueError(f"{name} is {given!r}; it must be one of {', '.join(map(repr, known))}.")


def check_dimension(what: str, dim: int, rank: int) -> int:
    """Return the number of a dimension, counted from the first one, of a tensor with `rank` dimensions.

    Raises:
        ValueError: the tensor does not have the dimension.

    Example:
        >>> check_dimension("src", -1, rank=3)
        2
    """
    if not rank:
        raise ValueError(f"{what} has no dimensions, so none is dim {dim}. Pass a tensor of at least one.")
    if not -rank <= dim < rank:
        raise ValueError(f"dim is {dim}; {what} has {rank} dimensions, so it is {-rank} to {rank - 1}.")
    return dim % rank


def refuse_integers(src: Tensor) -> None:
    """Raise a ValueError unless the values are of a floating point type."""
    if not src.is_floating_point():
        raise ValueError(f"src has dtype {src.dtype}; this function takes floating point values. Call src.float().")


def check_ends(edge_index: Tensor) -> None:
    """Check that edges have two rows, sources and destinations; no value is read.

    Raises:
        ValueError: the shape is not [2, num_edges].
    """
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index has shape {tuple(edge_index.shape)}; pass [2, num_edges] or edge_index.t().")


def check_index(name: str, index: Tensor, num_edges: int, like: Tensor) -> None:
    """Check that an index has one integer per edge, on the device of the data; no value is read.

    Raises:
        ValueError: the type, the shape or the device does not fit.
    """
    if index.dtype not in INDEX_DTYPES:
        raise ValueError(f"{name} has dtype {index.dtype}; an index is torch.int64 or torch.int32. Call {name}.long().")
    if index.shape != (num_edges,):
        raise ValueError(
            f"{name} has shape {tuple(index.shape)}; it needs one entry for each of the {num_edges} rows that it "
            f"routes: ({num_edges},)."
        )
    if not (index.is_cpu and like.is_cpu) and index.device != like.device:
        raise ValueError(f"{name} is on {index.device} and the data on {like.device}; move both to one device.")


def refuse_index(name: str, index: Tensor, num_rows: int) -> None:
    """Check that all values of an index are in [0, num_rows).

    On a GPU the check does not wait for the values: a later call of torch raises the error.

    Raises:
        ValueError: a value is outside; the message names the first one and its position.
    """
    if index.is_cuda:  # the host would have to wait for the values
        return require_range(name, index, num_rows)
    library.address(index)  # raises if the memory was freed, which torch's own comparison would read
    outside = (index < 0) | (index >= num_rows)
    if outside.any():
        position = int(outside.nonzero()[0])
        raise ValueError(
            f"{name}[{position}] is {int(index[position])}; allowed are 0 to {num_rows - 1}. "
            f"Correct the index or raise the number of rows, which is {num_rows}."
        )


def refuse_plan(name: str, index: Tensor, num_rows: int, rowptr: Tensor, perm: Tensor | None) -> None:
    """Check that a plan was made from `index`.

    Raises:
        ValueError: the plan belongs to a different index.
    """
    start, stop = rowptr[:-1].long(), rowptr[1:].long()
    order = torch.arange(index.shape[0], device=index.device) if perm is None else perm.long()
    fits = (
        rowptr.shape == (num_rows + 1,)
        and order.shape == index.shape
        and int(rowptr[0]) == 0
        and int(rowptr[-1]) == index.shape[0]
        and bool((start <= stop).all())
        and not bool(((order < 0) | (order >= index.shape[0])).any())
    )
    if fits:
        rows = torch.repeat_interleave(torch.arange(num_rows, device=index.device), stop - start)
        fits = torch.equal(index.long()[order], rows)
    if not fits:
        raise ValueError(
            f"The plan was made for another {name}, for another number of rows than {num_rows}, or before {name} was "
            f"changed in place. Make a new one: ScatterPlan.from_index({name}, {num_rows})."
        )


def explain(name: str, index: Tensor | None, num_rows: int, rowptr: Tensor | None, perm: Tensor | None) -> NoReturn:
    """Raise the error of a kernel that failed: an index out of range, a plan of a different index, or no memory."""
    if index is not None:
        refuse_index(name, index, num_rows)
        if rowptr is not None:
            refuse_plan(name, index, num_rows, rowptr, perm)
    raise MemoryError("popgeo could not allocate its working memory.")
