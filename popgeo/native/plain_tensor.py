"""Checks of tensors that compiled code reads: plain tensors of numbers in memory."""

from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def plain_tensor(name: str, value: Any) -> Tensor:
    """Return a plain tensor of torch's own class, without a gradient; PyG's tensor classes are unwrapped.

    Args:
        name: Name of the tensor in an error.
        value: Tensor to check.

    Raises:
        ValueError: the tensor has a different class or layout, or holds no values.

    Example:
        >>> from torch_geometric import EdgeIndex
        >>> plain_tensor("edge_index", EdgeIndex([[0, 1], [1, 0]]))
        tensor([[0, 1],
                [1, 0]])
    """
    kind = type(value)
    if kind is Tensor and not value.requires_grad and value.is_cpu and value.layout is torch.strided:
        if lies_in_memory(value) and not (value.is_neg() or value.is_conj() or value.is_quantized):
            return value  # the usual case
    elif kind.__module__.startswith("torch_geometric.") and hasattr(value, "as_tensor"):
        value = value.as_tensor()
    if type(value) not in _PLAIN or value.layout is not torch.strided or value.is_quantized or value.is_nested:
        what = f"{kind.__module__}.{kind.__qualname__}" if kind is not Tensor else f"tensor of {value.layout}"
        what = f"{value.dtype}" if kind is Tensor and value.is_quantized else what
        raise ValueError(f"{name} is a {what}; pass its values as a plain torch.Tensor.")
    require_memory(name, value)
    return value.detach().resolve_conj().resolve_neg()


def lies_in_memory(tensor: Tensor) -> bool:
    """Check quickly that a tensor lies in memory; a False may be wrong, so that `require_memory` must check again.

    Example:
        >>> tensor = torch.ones(6)
        >>> lies_in_memory(tensor[2:]), lies_in_memory(tensor.to_sparse()), lies_in_memory(torch.ones(1).expand(2))
        (True, False, False)
    """
    if tensor.layout is not torch.strided or not tensor.data_ptr():
        return False
    return tensor.storage_offset() * tensor.itemsize + tensor.nbytes <= tensor.untyped_storage().nbytes()


def require_memory(name: str, tensor: Tensor) -> None:
    """Check that all elements of a tensor lie in memory, so that reading them cannot crash the process.

    Raises:
        ValueError: the tensor is on the meta device, or its storage was freed or made smaller.

    Example:
        >>> tensor = torch.ones(6)[2:]
        >>> _ = tensor.untyped_storage().resize_(0)
        >>> require_memory("x", tensor)
        Traceback (most recent call last):
            ...
        ValueError: x has no values: it lies on cpu, and its memory was never filled or freed.
    """
    if tensor.layout is not torch.strided or not tensor.numel():
        return
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + reach) * tensor.element_size()
    if not tensor.data_ptr() or tensor.untyped_storage().nbytes() < end:
        raise ValueError(f"{name} has no values: it lies on {tensor.device}, and its memory was never filled or freed.")
