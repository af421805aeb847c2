"""Functions of single tensors in a model: print, slice, hints for the plan, and functions that cannot run here."""

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
    """Return a view of the same tensor.

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
    """Return the same tensor and print it in each run of the step, with its gradient. Use the returned tensor.

    The output has torch's format. Brackets, separator and `float_format` have no effect.

    Example:
        >>> y = ipu_print_tensor(torch.tensor([1.0]), "summation") + 1
        summation: tensor([1.])
    """
    _require_tensor(tensor, "ipu print tensor must take a torch.tensor argument")
    honoured("ipu_print_tensor", "the step prints in torch's format")
    return print_tensor(
        tensor, title, print_gradient=print_gradient, threshold=summarise_threshold, edge_items=edge_items,
        width=max_line_width, digits=digits,
    )  # fmt: skip


def set_available_memory(tensor: Tensor, available_memory_proportion: float) -> Tensor:
    """Return the same tensor, and record the memory that its operation may use."""
    _require_tensor(tensor, "You may only set available memory for torch.tensor values")
    recorded("set_available_memory", "plans use the memory with the fewest cycles")
    return tensor


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Return the same tensors. All values are kept for the backward pass here.

    Raises:
        ValueError: An argument is not a tensor.

    Example:
        >>> a, b = recomputationCheckpoint(torch.ones(1), torch.zeros(1))
    """
    if len(tensors) == 1 and isinstance(tensors[0], tuple | list):
        return type(tensors[0])(recomputationCheckpoint(*tensors[0]))
    check(all(isinstance(tensor, Tensor) for tensor in tensors), "All inputs must be tensors", ValueError)
    recorded("recomputationCheckpoint", "the backward pass computes nothing again")
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def set_overlap_for_input(input_tensors: Any, mode: Any) -> Any:
    """Return the same nest of tensors, and record the overlap of transfers."""
    for leaf in tree_leaves(input_tensors):
        _require_tensor(leaf, "You may only set overlap for torch.tensor inputs")
    recorded("set_overlap_for_input", "the report shows transfers next to the step")
    return input_tensors


def set_overlap_for_output(output_tensors: Any, mode: Any) -> Any:
    """Return the same nest of tensors, and record the overlap of transfers."""
    for leaf in tree_leaves(output_tensors):
        _require_tensor(leaf, "You may only set overlap for torch.tensor outputs")
    recorded("set_overlap_for_output", "the report shows transfers next to the step")
    return output_tensors


def serializedMatMul(lhs: Tensor, rhs: Tensor, mode: Any, factor: int = 0, keep_precision: bool = False) -> Tensor:
    """Return the product of two matrices, and record that an IPU would compute it in parts.

    Args:
        lhs: Left matrix. [..., m, n]
        rhs: Right matrix. [..., n, p]
        mode: Dimension to divide, a member of `MatMulSerializationMode`.
        factor: Number of parts.
        keep_precision: Whether parts of float16 products add up in float32, as in torch.

    Raises:
        ValueError: The factor does not divide the dimension.
    """
    name = getattr(mode, "name", None)
    sizes = {"InputChannels": lhs.shape[-2:-1], "ReducingDim": lhs.shape[-1:], "OutputChannels": rhs.shape[-1:]}
    if name not in {*sizes, "Disabled"}:
        raise ValueError(f"serializedMatMul got mode {mode!r}; pass a member of poptorch.MatMulSerializationMode.")
    size = next(iter(sizes.get(name, ())), 0)
    if name != "Disabled" and (factor < 1 or size % factor):
        raise ValueError(
            f"serializedMatMul cannot divide a dimension of {size} into {factor} parts; choose a divisor of {size}."
        )
    recorded("serializedMatMul", "the product is planned as a whole")
    return torch.matmul(lhs, rhs)


def dynamic_slice(tensor: Tensor, dim: int, start: Tensor, size: int, step: int) -> Tensor:
    """Return a slice that starts at the value of a tensor.

    Args:
        tensor: Tensor to slice.
        dim: Dimension of the slice.
        start: Start of the slice, one integer. The slice must end within the tensor.
        size: Length of the sliced range.
        step: Step inside the range.

    Raises:
        ValueError: An argument has another type.

    Example:
        >>> dynamic_slice(torch.arange(6), 0, torch.tensor([1]), 4, 2)
        tensor([1, 3])
    """
    _require_tensor(tensor, "dynamic_slice must take a torch.tensor input")
    _require_place("dynamic_slice", dim, start, size, step)
    return tensor.index_select(dim, start.reshape(1) + torch.arange(0, size, step))


def dynamic_update(input: Tensor, src: Tensor, dim: int, start: Tensor, size: int) -> Tensor:
    """Return a copy of a tensor with new values in a slice that starts at the value of a tensor.

    Args:
        input: Tensor to copy.
        src: New values, with the shape of `input` except for `size` in dimension `dim`.
        dim: Dimension of the slice.
        start: Start of the slice, one integer.
        size: Length of the slice.

    Raises:
        ValueError: An argument has another type, or `src` has another size.

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
    """Function that an IPU would leave to the host. Here its operations are part of the step.

    Args:
        layer_to_call: Function of tensors, or a module. A module's parameters are not trained.
        ID: Name of the function.

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
        """Call the function. Return a list if its result is a tuple, as PopTorch does."""
        made = self._layer_to_call(*input, **kwargs)
        return list(made) if isinstance(made, tuple) else made


def custom_op(inputs: Any, name: str, domain: str, domain_version: int, example_outputs: Any, **attributes: Any) -> Any:
    """Run an operation written in C++ against PopART.

    Raises:
        Error: Always, since such code is compiled for an IPU.
    """
    raise Error(said("custom_op", name=name, domain=domain))


def ctc_beam_search_decoder(probs: Any, lengths: Any, blank: int = 0, beam_width: int = 100, top_paths: int = 1) -> Any:
    """Return the most likely label sequences of a speech model.

    Raises:
        Error: Always, since the search is part of Graphcore's library.
    """
    raise Error(said("ctc_beam_search_decoder"))


def allclose(a: Any, b: Any, **kwargs: Any) -> bool:
    """Check whether tensors, or lists and tuples of tensors, are pairwise `torch.allclose`.

    Args:
        a: Tensor, or nest of lists and tuples of tensors.
        b: Nest of the same structure.
        kwargs: Arguments of `torch.allclose`.

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
