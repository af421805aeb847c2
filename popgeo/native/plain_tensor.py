"""The door for tensors that compiled code will read: plain ones, of numbers that lie in memory."""

from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def plain_tensor(name: str, value: Any) -> Tensor:
    """A tensor as one of torch's own class, outside of any gradient; of PyG's classes the tensor that they hold.

    Args:
        name: What it is called in an error.
        value: The tensor.

    Raises:
        ValueError: it is of a different class or layout, or it holds no values.

    Example:
        >>> from torch_geometric import EdgeIndex
        >>> plain_tensor("edge_index", EdgeIndex([[0, 1], [1, 0]]))
        tensor([[0, 1],
                [1, 0]])
    """
    kind = type(value)
    if kind is Tensor and not value.requires_grad and value.is_cpu and value.layout is torch.strided:
        if value.data_ptr() and not (value.is_neg() or value.is_conj() or value.is_quantized):
            return value  # nearly always
    elif kind.__module__.startswith("torch_geometric.") and hasattr(value, "as_tensor"):
        value = value.as_tensor()
    if type(value) not in _PLAIN or value.layout is not torch.strided or value.is_quantized or value.is_nested:
        what = f"{kind.__module__}.{kind.__qualname__}" if kind is not Tensor else f"tensor of {value.layout}"
        what = f"{value.dtype}" if kind is Tensor and value.is_quantized else what
        raise ValueError(f"{name} is a {what}; pass a plain torch.Tensor, such as its values give.")
    if value.numel() and not value.data_ptr():
        raise ValueError(f"{name} has no values: it lies on {value.device}, and its memory was never filled or freed.")
    return value.detach().resolve_conj().resolve_neg()
