"""Casts the operands of a product to one float type during a capture, because torch requires equal types."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

_FLOATS = (torch.float16, torch.float32, torch.float64)
# Functions that need operands of one type; all others promote types by torch's own rules.
_NAMES = """
    addbmm addmm addmv baddbmm bilinear binary_cross_entropy bmm chain_matmul conv1d conv2d conv3d conv_tbc
    conv_transpose1d conv_transpose2d conv_transpose3d cross cross_entropy dot einsum grid_sample group_norm gru
    gru_cell inner layer_norm lerp linear lstm lstm_cell matmul mm multi_dot multi_head_attention_forward mv nll_loss
    prelu rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention tensordot vdot vecdot __matmul__
    __rmatmul__
"""
_HOMES = (torch, F, torch.linalg, Tensor)
_TAKE_ONE_TYPE = {getattr(home, name) for home in _HOMES for name in _NAMES.split() if hasattr(home, name)}
# These change running statistics in place, so a copy of another type would lose the change.
_NORMS = {F.batch_norm, F.instance_norm}


class OneType(TorchFunctionMode):
    """A mode that casts the operands of a product to the type of the first operand that is no parameter, or to float32.

    While the mode is active, recurrent layers do not check the type of their input.

    Args:
        upcasts: Whether the type is always float32.

    Example:
        >>> with OneType(upcasts=False):
        ...     nn.Linear(2, 3)(torch.ones(2, dtype=torch.float16)).dtype
        torch.float16
    """

    def __init__(self, upcasts: bool) -> None:
        super().__init__()
        self._upcasts = upcasts

    def __enter__(self) -> Any:
        check = self._check = nn.RNNBase.check_input

        def check_but_type(layer: Any, input: Tensor, batch_sizes: Tensor | None) -> None:
            check(layer, input.to(layer._flat_weights[0].dtype), batch_sizes)

        nn.RNNBase.check_input = check_but_type  # type: ignore[assignment, method-assign]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        nn.RNNBase.check_input = self._check  # type: ignore[method-assign]
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        parts = tree_leaves(given) if func in _TAKE_ONE_TYPE or func in _NORMS else []
        floats = [one for one in parts if isinstance(one, Tensor) and one.dtype in _FLOATS]
        if len({one.dtype for one in floats}) < 2:
            return func(*args, **given[1])
        first = next((one for one in floats if not isinstance(one, nn.Parameter)), floats[0])
        kind = torch.float32 if self._upcasts else first.dtype
        if func not in _NORMS:
            args, kwargs = _cast(given, kind)
            return func(*args, **kwargs)
        # Statistics are sums over many elements, so they are computed in the widest type.
        wide = _cast(given, max((one.dtype for one in floats), key=_FLOATS.index))
        made = func(*wide[0], **wide[1]).to(kind)
        for own, other in zip(tree_leaves(given), tree_leaves(wide), strict=True):
            if isinstance(own, Tensor) and own is not other and not isinstance(own, nn.Parameter) and own is not first:
                own.copy_(other)
        return made


def _cast(given: Any, kind: torch.dtype) -> Any:
    """Return the same arguments with all float tensors in one type."""
    return tree_map_only(Tensor, lambda one: one.to(kind) if one.dtype in _FLOATS else one, given)
