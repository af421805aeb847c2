"""Models with torch's norms of batches, made to leave padding out: each norm finds the mask in the model's call."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from popgeo.nn.norm import BatchNorm, batch_normalized

_MASKS = ("nodes_mask", "edges_mask", "graphs_mask")


class RealBatchNorm(nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` over real rows only, within a model that `convert_norms` has returned."""

    name = ""
    masks: Mapping[str, Tensor] = {}

    def forward(self, input: Tensor) -> Tensor:
        """Normalised features; the mask is the one of the call that has as many rows.

        Args:
            input: Features. [rows, channels]

        Raises:
            ValueError: no mask of the call has as many rows, or several have; the message names the norm.
        """
        fitting = [name for name, mask in self.masks.items() if input.dim() == 2 and len(mask) == len(input)]
        if len(fitting) != 1:
            known = ", ".join(f"{name} [{len(mask)}]" for name, mask in self.masks.items()) or "no mask"
            raise ValueError(
                f"{self.name} gets features {list(input.shape)}, and the call has {known}: exactly one mask must have "
                "as many rows. Pass the missing mask to the model, choose sizes that differ, or use "
                "popgeo.nn.BatchNorm with nodes_mask= there."
            )
        return batch_normalized(self, input, self.masks[fitting[0]])


def convert_norms(model: nn.Module) -> nn.Module:
    """A copy of a model whose norms of batches leave padding out; its `state_dict` has the keys of the model's own.

    Each `torch.nn.BatchNorm1d`, also inside PyG's `BatchNorm`, takes the mask from the arguments of the model's call:
    `nodes_mask`, `edges_mask` or `graphs_mask`, by itself or as an attribute of a batch.

    Args:
        model: Its `forward` takes a batch, or masks by these names.

    Raises:
        ValueError: a norm of batches is of a different class, so it cannot be converted; or, in a call, there is no
            mask, or not exactly one that fits a norm.

    Example:
        >>> class Net(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.norm = nn.BatchNorm1d(1, affine=False)
        ...     def forward(self, x, nodes_mask=None):
        ...         return self.norm(x)
        >>> import torch
        >>> x, nodes_mask = torch.tensor([[1.0], [3.0], [999.0]]), torch.tensor([True, True, False])
        >>> convert_norms(Net())(x, nodes_mask)[:2].flatten()
        tensor([-1.0000,  1.0000])
    """
    model = copy.deepcopy(model)
    own = {id(one.module) for one in model.modules() if isinstance(one, BatchNorm)}
    for name, norm in model.named_modules():
        if not isinstance(norm, _BatchNorm) or id(norm) in own:
            continue
        if type(norm) is not nn.BatchNorm1d:
            raise ValueError(f"{name} is a {type(norm).__name__}; only torch.nn.BatchNorm1d can be converted.")
        norm.__class__ = RealBatchNorm  # keeps parameters, statistics and hooks, on their device
        norm.name = name
    model.register_forward_pre_hook(_hand_out, with_kwargs=True)
    model.register_forward_hook(_take_back, always_call=True)
    return model


def _hand_out(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Gives the norms the masks of a call."""
    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    found: dict[str, Tensor] = {}
    for part in (given, *given.values()):
        for name in _MASKS:
            mask = part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)
            found |= {name: mask} if isinstance(mask, Tensor) else {}
    for norm in model.modules():
        if isinstance(norm, RealBatchNorm):
            norm.masks = found


def _take_back(model: nn.Module, *call: Any) -> None:
    """Leaves no tensor of a call in the norms."""
    for norm in model.modules():
        if isinstance(norm, RealBatchNorm):
            vars(norm).pop("masks", None)
