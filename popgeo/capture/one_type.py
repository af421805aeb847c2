"""Products of float16 and float32, which torch refuses when they run: given one type while a model is captured."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

_FLOATS = (torch.float16, torch.float32)
# What takes tensors of one type alone; all else promotes by torch's own rules.
_NAMES = """
    addbmm addmm addmv baddbmm bilinear bmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d dot
    einsum group_norm gru_cell layer_norm linear lstm_cell matmul mm multi_head_attention_forward mv prelu rnn_relu_cell
    rnn_tanh_cell scaled_dot_product_attention __matmul__ __rmatmul__
"""
_HOMES = (torch, torch.nn.functional, Tensor)
_TAKE_ONE_TYPE = {getattr(home, name) for home in _HOMES for name in _NAMES.split() if hasattr(home, name)}


class OneType(TorchFunctionMode):
    """Gives a product of float16 and float32 one type: that of its first tensor which is no parameter, or float32.

    Args:
        upcasts: Whether it is float32 in any case.

    Example:
        >>> with OneType(upcasts=False):
        ...     nn.Linear(2, 3)(torch.ones(2, dtype=torch.float16)).dtype
        torch.float16
    """

    def __init__(self, upcasts: bool) -> None:
        super().__init__()
        self._upcasts = upcasts

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        if func in _TAKE_ONE_TYPE:
            floats = [one for one in tree_leaves(given) if isinstance(one, Tensor) and one.dtype in _FLOATS]
            if len({one.dtype for one in floats}) > 1:
                first = next((one for one in floats if not isinstance(one, nn.Parameter)), floats[0])
                kind = torch.float32 if self._upcasts else first.dtype
                given = tree_map_only(Tensor, lambda one: one.to(kind) if one.dtype in _FLOATS else one, given)
        return func(*given[0], **given[1])
