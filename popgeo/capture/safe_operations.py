"""The operations that a program file may contain, `safe_operations.txt`: they never leave their memory.

Torch's tags do not show which operations are safe. Some kernels, most of them derivatives, use sizes or indices that
only their callers check; these kernels have a rule here, or are not in the list. Overloads on plain numbers and texts
are not allowed. The types of arguments are checked here, because torch accepts a number as a dtype and then reads
beyond the end of a table.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

import torch
from torch._ops import OpOverload

from popgeo.capture.op_graph import overload
from popgeo.capture.operations import name_of
from popgeo.capture.schemas import named_arguments

_NAMES = Path(__file__).with_name("safe_operations.txt").read_text().split()
_SAFE = frozenset(name if "." in name else f"aten.{name}" for name in _NAMES)
# Derivatives that index without a check. Their forward operation makes valid indices, but a file may contain others.
_UNCHECKED_INDICES = frozenset({
    "aten.nll_loss_backward", "aten.nll_loss2d_backward", "aten.max_pool2d_with_indices_backward",
    "aten.adaptive_max_pool2d_backward",
})  # fmt: skip
# The Python type of each argument type of a schema, without tensors. No file contains generators.
_TYPES: dict[str, type | UnionType] = {
    "int": int, "float": float | int, "bool": bool, "number": complex | float | int, "str": str,
    "ScalarType": torch.dtype, "Layout": torch.layout, "MemoryFormat": torch.memory_format, "Device": torch.device,
    "Generator": NoneType,
}  # fmt: skip
_TENSORS = {"Tensor", "List[Tensor]"}


@functools.cache
def safe_operation(target: str) -> OpOverload:
    """Return the function of an operation that a file may contain; it reads, and makes or changes, tensors.

    Raises:
        ValueError: a file may not contain the operation.
    """
    found = overload(target) if target.count(".") == 2 and name_of(target) in _SAFE else None
    if not isinstance(found, OpOverload) or not _is_of_tensors(found._schema):
        raise ValueError(f"{target!r:.100} is not one of the operations that a file may contain")
    return found


def _is_of_tensors(schema: Any) -> bool:
    """Check that results are tensors, that argument types are known, and that no dtype is passed as a number."""
    types = {argument.name: str(argument.real_type) for argument in schema.arguments}
    makes = {str(result.type) for result in schema.returns}
    return (
        makes <= _TENSORS
        and bool(makes or _TENSORS & {*types.values()})
        and all(_part(one) in {*_TYPES, "Tensor"} for one in types.values())
        and not any(name == "dtype" and _part(one) == "int" for name, one in types.items())
    )


def _part(kind: str) -> str:
    """Return the type of the parts of an argument, such as int of Optional[List[int]]."""
    return kind.replace("Optional[", "").replace("List[", "").rstrip("]")


def require_types(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensor: type) -> None:
    """Check that each argument of an operation has the type in torch's schema.

    Args:
        func: The operation.
        args: Its arguments by position.
        kwargs: Its arguments by name.
        tensor: Class that represents a tensor among the arguments.

    Raises:
        ValueError: an argument has a wrong type, is unknown to the schema, or is missing.
    """
    declared = func._schema.arguments
    given = dict(zip((one.name for one in declared), args, strict=False))
    if unknown := {*kwargs} - {one.name for one in declared if one.name not in given}:
        raise ValueError(f"{func} has no such arguments: {', '.join(sorted(unknown)):.100}")
    if len(args) > len(declared):
        raise ValueError(f"{func} takes {len(declared)} arguments, not {len(args)}")
    given |= kwargs
    for argument in declared:
        if argument.name not in given:
            if not argument.has_default_value():
                raise ValueError(f"{func} lacks the argument {argument.name}")
        elif not _is_of_type(given[argument.name], str(argument.real_type), getattr(argument, "N", None), tensor):
            raise ValueError(f"{func} takes {argument.real_type} as {argument.name}, but the file passes another type")


def _is_of_type(value: Any, kind: str, length: int | None, tensor: type) -> bool:
    if kind.startswith("Optional["):
        return value is None or _is_of_type(value, kind[9:-1], length, tensor)
    if kind.startswith("List["):
        if isinstance(value, list | tuple):
            return all(_is_of_type(one, kind[5:-1], None, tensor) for one in value)
        return length is not None and _is_of_type(value, kind[5:-1], None, tensor)  # one number for each dimension
    # A program may pass a number for a tensor; torch converts it.
    return isinstance(value, tensor | _TYPES["number"] if kind == "Tensor" else _TYPES[kind])


def needs_forward(target: str) -> bool:
    """Check whether an operation relies on indices that only its forward operation makes or checks."""
    return name_of(target) in _UNCHECKED_INDICES


def has_rule(target: str) -> bool:
    """Check whether `require_fitting` has a rule for an operation."""
    return name_of(target) in _FITS


def require_fitting(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that the tensor sizes match if the kernel of an operation does not check them.

    Raises:
        ValueError: the sizes do not match.
    """
    target = str(func)
    if has_rule(target) and not _FITS[name_of(target)](named_arguments(func, args, kwargs)):
        raise ValueError(f"{target} takes tensors whose sizes do not match")


def _channels(g: Any, *names: str, may_be_missing: bool = True) -> bool:
    """Check that each of these tensors has one number per channel of the input."""
    given = [getattr(g, name, None) for name in names]
    fitting = all(one is None or one.shape == g.input.shape[1:2] for one in given)
    return g.input.dim() > 1 and fitting and (may_be_missing or not any(one is None for one in given))


def _normalizes(g: Any) -> bool:
    trains = getattr(g, "training", not hasattr(g, "running_mean") or hasattr(g, "reserve"))
    return _channels(g, "weight", "bias") and _channels(g, "running_mean", "running_var", may_be_missing=trains)


def _normalizes_backward(g: Any) -> bool:
    saved = ("save_mean", "save_invstd" if hasattr(g, "save_invstd") else "save_var")
    used = saved if getattr(g, "train", getattr(g, "update", None)) else ("running_mean", "running_var")
    return g.grad_out.shape == g.input.shape and _channels(g, "weight") and _channels(g, *used, may_be_missing=False)


def _layer_norm_backward(g: Any) -> bool:
    rows = g.input.numel() // max(1, math.prod(g.normalized_shape))
    return g.grad_out.shape == g.input.shape and g.mean.numel() == g.rstd.numel() == rows


def _group_norm_backward(g: Any) -> bool:
    sizes = g.input.numel() == g.N * g.C * g.HxW and g.mean.numel() == g.rstd.numel() == g.N * g.group
    return sizes and g.grad_out.shape == g.input.shape and (g.weight is None or g.weight.numel() == g.C)


def _distances_backward(g: Any) -> bool:
    shape = (*g.x1.shape[:-1], g.x2.shape[-2])
    fits = g.x1.shape[:-2] == g.x2.shape[:-2] and g.x1.shape[-1] == g.x2.shape[-1]
    grad = g.grad_output if hasattr(g, "grad_output") else g.grad  # its name since torch 2.14, and before
    return fits and grad.shape == g.cdist.shape == shape


def _attends(g: Any) -> bool:
    fits = g.key.shape == g.value.shape and g.query.dim() == g.key.dim() == 4
    fits = fits and all(g.query.shape[i] == g.key.shape[i] for i in (0, 1, 3))
    if fits and hasattr(g, "logsumexp"):
        fits = g.grad_out.shape == g.out.shape == g.query.shape and g.logsumexp.numel() == g.query[..., 0].numel()
    return fits


def _convolves_backward(g: Any) -> bool:
    like = (g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups)
    return g.grad_output.shape == torch.ops.aten.convolution.default(g.input, g.weight, None, *like).shape


def _lists_fit(g: Any) -> bool:
    return len({len(one) for one in vars(g).values() if isinstance(one, list | tuple)}) == 1


def _transforms(g: Any) -> bool:
    """Check that the dimensions of a Fourier transform exist and are different."""
    dims = {dim % max(1, g.self.dim()) for dim in g.dim if -g.self.dim() <= dim < g.self.dim()}
    halves = not hasattr(g, "last_dim_size") or g.self.shape[g.dim[-1]] == g.last_dim_size // 2 + 1
    return 0 < len(dims) == len(g.dim) and halves


_FITS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(["aten._softmax_backward_data", "aten._log_softmax_backward_data"],
                    lambda g: g.grad_output.shape == g.output.shape),
    **dict.fromkeys([f"aten.{one}" for one in (
        "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training", "_batch_norm_with_update")], _normalizes),
    **dict.fromkeys(["aten.native_batch_norm_backward", "aten.batch_norm_backward"], _normalizes_backward),
    **dict.fromkeys([f"aten._scaled_dot_product_flash_attention_for_cpu{one}" for one in ("", "_backward")], _attends),
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten.native_group_norm_backward": _group_norm_backward,
    "aten._cdist_backward": _distances_backward,
    "aten.convolution_backward": _convolves_backward,
    "aten.embedding_dense_backward": lambda g: not g.scale_grad_by_freq,
    "aten._adaptive_avg_pool2d_backward": lambda g: g.grad_output.shape[:-2] == g.self.shape[:-2],
    **dict.fromkeys(["aten._fft_c2c", "aten._fft_c2r", "aten._fft_r2c"], _transforms),
    **dict.fromkeys([one for one in _SAFE if one.startswith("aten._foreach_")], _lists_fit),
    "aten.round": lambda g: abs(getattr(g, "decimals", 0)) < 400,  # torch multiplies by 10 once per decimal
    "aten.smooth_l1_loss_backward": lambda g: g.self.is_floating_point(),
    "aten.unfold_backward": lambda g: g.grad_in.shape
    == torch.empty(g.input_sizes, device="meta").unfold(g.dim, g.size, g.step).shape,
}  # fmt: skip
