"""What a model does to single tensors: print and slice them, say how they are planned; and what cannot run here."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from popgeo.capture.print_tensor import print_tensor
from popgeo.compat.account import honoured, recorded
from popgeo.compat.poptorch.errors import Error, check, said


def _require_tensor(tensor: Any, says: str) -> None:
    check(isinstance(tensor, Tensor), f"{says}. {type(tensor)} is not supported.", ValueError)


def nop(tensor: Tensor) -> Tensor:
    """The same tensor.

    Example:
        >>> nop(torch.ones(2))
        tensor([1., 1.])
    """
    _require_tensor(tensor, "nop must take a torch.tensor argument")
    return tensor.view_as(tensor)


def ipu_print_tensor(
    tensor: Tensor, title: str = "", print_gradient: bool = True, summarise_threshold: int = 1000,
    edge_items: int = 3, max_line_width: int = 80, digits: int = 4, float_format: str = "auto", separator: str = ", ",
    open_bracket: str = "(", close_bracket: str = ")",
) -> Tensor:  # fmt: skip
    """The same tensor, printed in each run of the step, and its gradient if there is one; its result must be used.

    Lines look as torch prints tensors; brackets, separators and the format of numbers are not looked at.

    Example:
        >>> y = ipu_print_tensor(torch.tensor([1.0]), "summation") + 1
        summation: tensor([1.])
    """
    _require_tensor(tensor, "ipu print tensor must take a torch.tensor argument")
    honoured("ipu_print_tensor", "the step prints as torch does")
    return print_tensor(
        tensor, title, print_gradient=print_gradient, threshold=summarise_threshold, edge_items=edge_items,
        width=max_line_width, digits=digits,
    )  # fmt: skip


def set_available_memory(tensor: Tensor, available_memory_proportion: float) -> Tensor:
    """The same tensor; how much memory its operation may use is remembered."""
    _require_tensor(tensor, "You may only set available memory for torch.tensor values")
    recorded("set_available_memory", "plans take the memory that is cheapest in cycles")
    return tensor


def recomputationCheckpoint(*tensors: Any) -> Any:
    """The same tensors: kept from the forward to the backward pass, as all values are here.

    Raises:
        ValueError: something is not a tensor.

    Example:
        >>> a, b = recomputationCheckpoint(torch.ones(1), torch.zeros(1))
    """
    if len(tensors) == 1 and isinstance(tensors[0], tuple | list):
        return type(tensors[0])(recomputationCheckpoint(*tensors[0]))
    check(all(isinstance(tensor, Tensor) for tensor in tensors), "All inputs must be tensors", ValueError)
    recorded("recomputationCheckpoint", "nothing is computed again in the backward pass")
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def set_overlap_for_input(input_tensors: Any, mode: Any) -> Any:
    """The same tensors, in any nest of lists, tuples and dictionaries."""
    for leaf in tree_leaves(input_tensors):
        _require_tensor(leaf, "You may only set overlap for torch.tensor inputs")
    recorded("set_overlap_for_input", "the report shows transfers next to the step")
    return input_tensors


def set_overlap_for_output(output_tensors: Any, mode: Any) -> Any:
    """The same tensors, likewise."""
    for leaf in tree_leaves(output_tensors):
        _require_tensor(leaf, "You may only set overlap for torch.tensor outputs")
    recorded("set_overlap_for_output", "the report shows transfers next to the step")
    return output_tensors


def serializedMatMul(lhs: Tensor, rhs: Tensor, mode: Any, factor: int = 0, keep_precision: bool = False) -> Tensor:
    """The product of two matrices; that it is to be made in parts, one after the other, is remembered.

    Args:
        lhs: [..., m, n]
        rhs: [..., n, p]
        mode: The dimension that is cut, of `MatMulSerializationMode`.
        factor: In how many parts.
        keep_precision: Whether parts of float16 products are added in float32, as torch does.

    Raises:
        ValueError: the factor does not divide that dimension.
    """
    name = getattr(mode, "name", None)
    sizes = {"InputChannels": lhs.shape[-2:-1], "ReducingDim": lhs.shape[-1:], "OutputChannels": rhs.shape[-1:]}
    if name not in {*sizes, "Disabled"}:
        raise ValueError(f"serializedMatMul got mode {mode!r}; pass a member of poptorch.MatMulSerializationMode.")
    size = next(iter(sizes.get(name, ())), 0)
    if name != "Disabled" and (factor < 1 or size % factor):
        raise ValueError(f"serializedMatMul is to cut a dimension of {size} into {factor} parts, which does not go.")
    recorded("serializedMatMul", "the product is planned as a whole")
    return torch.matmul(lhs, rhs)


def dynamic_slice(tensor: Tensor, dim: int, start: Tensor, size: int, step: int) -> Tensor:
    """A slice that starts where a tensor says.

    Args:
        tensor: The tensor to cut.
        dim: Along which dimension.
        start: Where, one whole number; at a run it must lie so that the slice ends within the tensor.
        size: How long the part is that the slice is taken of.
        step: The slice takes each that many-th of it.

    Raises:
        ValueError: an argument is of another type.

    Example:
        >>> dynamic_slice(torch.arange(6), 0, torch.tensor([1]), 4, 2)
        tensor([1, 3])
    """
    _require_tensor(tensor, "dynamic_slice must take a torch.tensor input")
    _require_place("dynamic_slice", dim, start, size, step)
    return tensor.index_select(dim, start.reshape(1) + torch.arange(0, size, step))


def dynamic_update(input: Tensor, src: Tensor, dim: int, start: Tensor, size: int) -> Tensor:
    """A copy of a tensor with another in the place of a slice that starts where a tensor says.

    Args:
        input: The tensor to copy.
        src: The values to put in; as `input` but for dimension `dim`, which is `size`.
        dim: Along which dimension.
        start: Where, one whole number.
        size: How long the slice is.

    Raises:
        ValueError: an argument is of another type, or `src` has another size.

    Example:
        >>> dynamic_update(torch.zeros(4), torch.ones(2), 0, torch.tensor([1]), 2)
        tensor([0., 1., 1., 0.])
    """
    _require_tensor(input, "dynamic_update must take a torch.tensor input")
    _require_tensor(src, "dynamic_update must take a torch.tensor src")
    _require_place("dynamic_update", dim, start, size)
    if src.shape[dim] != size:
        raise ValueError(f"dynamic_update got src of {src.shape[dim]} along dimension {dim}, but size {size}.")
    return input.index_copy(dim, start.reshape(1) + torch.arange(size), src)


def _require_place(who: str, dim: Any, start: Any, size: Any, step: Any = 1) -> None:
    if not isinstance(start, Tensor) or start.numel() != 1 or start.is_floating_point():
        raise ValueError(f"Slice start argument to {who} must be a torch.tensor of one whole number, not {start!r}.")
    for what, number in (("Dimension", dim), ("Size", size), ("Step", step)):
        if isinstance(number, bool) or not isinstance(number, int) or (what != "Dimension" and number < 1):
            raise ValueError(f"{what} must be an integer.")


class CPU:
    """A function that an IPU was to leave to the host; here its operations are part of the step like all others.

    Args:
        layer_to_call: A function of tensors, or a module, whose parameters are then not trained.
        ID: Its name.

    Example:
        >>> double = CPU(lambda x: x * 2.0, "double")
        >>> double(torch.ones(2))
        tensor([2., 2.])
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        if isinstance(layer_to_call, nn.Module):
            layer_to_call.requires_grad_(False)
        self._layer_to_call, self._ID = layer_to_call, ID
        honoured(f"CPU({ID!r})", "its operations are part of the step")

    def __call__(self, *input: Any, **kwargs: Any) -> Any:
        made = self._layer_to_call(*input, **kwargs)
        return list(made) if isinstance(made, tuple) else made


def custom_op(inputs: Any, name: str, domain: str, domain_version: int, example_outputs: Any, **attributes: Any) -> Any:
    """An operation written in C++ against PopART.

    Raises:
        Error: always, since such code is compiled for an IPU and there is nothing here that could run it.
    """
    raise Error(said("custom_op", name=name, domain=domain))


def ctc_beam_search_decoder(probs: Any, lengths: Any, blank: int = 0, beam_width: int = 100, top_paths: int = 1) -> Any:
    """The most likely label sequences of a speech model.

    Raises:
        Error: always, since the search is Graphcore's own library and is not part of training or of graph networks.
    """
    raise Error(said("ctc_beam_search_decoder"))


def allclose(a: Any, b: Any, **kwargs: Any) -> bool:
    """Whether tensors, or lists and tuples of them, are `torch.allclose` one by one.

    Args:
        a: A tensor, or tensors in lists and tuples.
        b: Likewise.
        kwargs: What `torch.allclose` takes.

    Example:
        >>> allclose((torch.ones(1), [torch.zeros(2)]), (torch.ones(1), [torch.zeros(2)]))
        True
        >>> allclose((torch.ones(1),), (torch.ones(1), torch.ones(1)))
        False
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.allclose(a, b, **kwargs)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(allclose(one, other, **kwargs) for one, other in zip(a, b, strict=True))
    return bool(a == b)
