"""A batch as a plain dictionary of NumPy arrays, which any framework reads."""

from typing import Any

import numpy as np
from torch import Tensor


def as_arrays(batch: Any) -> dict[str, np.ndarray]:
    """The tensors of a batch as NumPy arrays of the same memory; nothing is copied.

    What is not a tensor, such as a list of names, is left out.

    Args:
        batch: A `Batch` on the processor, or a named tuple of tensors.

    Returns:
        Arrays by name; those of a node or edge type of a heterogeneous batch as `paper.x` and
        `author__writes__paper.edge_index`.

    Raises:
        ValueError: a tensor lies on another device, or has a type that NumPy does not know.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Batch
        >>> as_arrays(Batch(x=torch.ones(2, 1)))["x"].shape
        (2, 1)
    """
    arrays = {}
    for store in [batch._asdict()] if hasattr(batch, "_asdict") else batch.stores:
        key = getattr(store, "_key", None)
        prefix = "" if key is None else f"{key if isinstance(key, str) else '__'.join(key)}."
        for name, value in store.items():
            if isinstance(value, Tensor):
                arrays[f"{prefix}{name}"] = _array(f"{prefix}{name}", value)
    return arrays


def _array(name: str, tensor: Tensor) -> np.ndarray:
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} lies on {tensor.device}; NumPy reads memory of the processor. Use device='cpu'.")
    try:
        return tensor.detach().numpy()
    except TypeError:
        raise ValueError(f"{name} is {tensor.dtype}, which NumPy does not know; convert it, say to float32.") from None
