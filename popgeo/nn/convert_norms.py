"""Conversion of torch's batch norms to norms that ignore padding, with masks from the model's arguments."""

import copy
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from popgeo.nn.norm import BatchNorm, batch_normalized

_MASKS = ("nodes_mask", "edges_mask", "graphs_mask")
_GRAPH_NORMS = ("GraphNorm", "InstanceNorm", "LayerNorm", "MeanSubtractionNorm", "PairNorm")  # of PyG


class RealBatchNorm(nn.BatchNorm1d):
    """A `torch.nn.BatchNorm1d` over real rows only, inside a model that `convert_norms` returns."""

    name = ""
    masks: Mapping[str, Tensor] = {}

    def forward(self, input: Tensor) -> Tensor:
        """Return normalised features; the mask is the model's argument with the same number of rows.

        In evaluation with running statistics no row depends on another row, so no mask is needed.

        Args:
            input: Features. [rows, channels]

        Raises:
            ValueError: no mask, or more than one mask, has the same number of rows; the message names the norm.
        """
        fitting = [name for name, mask in self.masks.items() if input.dim() == 2 and len(mask) == len(input)]
        if len(fitting) != 1 and not self.training and self.running_mean is not None:
            return super().forward(input)
        if len(fitting) != 1:
            known = ", ".join(f"{name} [{len(mask)}]" for name, mask in self.masks.items()) or "no mask"
            raise ValueError(
                f"{self.name} gets features {list(input.shape)}, and the call has {known}: exactly one mask must have "
                "as many rows. Pass the missing mask to the model, choose sizes that differ, or use "
                "popgeo.nn.BatchNorm with nodes_mask= there."
            )
        return batch_normalized(self, input, self.masks[fitting[0]])


def convert_norms(model: nn.Module) -> nn.Module:
    """Return a copy of a model with batch norms that leave padding out; its `state_dict` has the same keys.

    Each `torch.nn.BatchNorm1d`, also inside PyG's `BatchNorm`, takes its mask from the arguments of the model's call:
    `nodes_mask`, `edges_mask` or `graphs_mask`, as an argument or as an attribute of a batch. PyG's norms over the
    nodes of a graph stay unchanged; they need `batch`, because without it they average over padding too.

    Args:
        model: Model whose `forward` takes a batch, or masks by these names.

    Raises:
        ValueError: the statistics of a norm count padding and it cannot be converted; or, in a call, the number of
            masks that fit a norm is not one, or a norm over graphs gets no `batch`.

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
    own = {id(one.module) for one in model.modules() if isinstance(one, BatchNorm)}
    copies: dict[int, Any] = {}  # deepcopy takes these instead of the norms
    for name, norm in model.named_modules():
        kind = _kind_of_pyg(norm)
        if type(norm) is nn.BatchNorm1d and id(norm) not in own:
            real = copies[id(norm)] = RealBatchNorm(norm.num_features)
            vars(real).update(copy.deepcopy(vars(norm), copies), name=name or "The norm")
        elif isinstance(norm, _BatchNorm) and id(norm) not in own:
            raise ValueError(f"{name} is a {type(norm).__name__}; only torch.nn.BatchNorm1d can be converted.")
        elif kind == "HeteroBatchNorm" or (kind == "InstanceNorm" and getattr(norm, "track_running_stats", False)):
            raise ValueError(
                f"{name} is PyG's {kind}, whose statistics count padding; it cannot be converted. Use "
                "popgeo.nn.InstanceNorm, or a popgeo.nn.BatchNorm per type, with nodes_mask=."
            )
    model = copy.deepcopy(model, copies)
    for name, norm in model.named_modules():
        if _kind_of_pyg(norm) in _GRAPH_NORMS and getattr(norm, "mode", "graph") == "graph":
            norm.register_forward_pre_hook(functools.partial(_require_batch, name), with_kwargs=True)
    model.register_forward_pre_hook(_set_masks, with_kwargs=True)
    model.register_forward_hook(_remove_masks, always_call=True)
    return model


def _kind_of_pyg(norm: nn.Module) -> str:
    """Return the class name of a norm of PyG; empty for other modules."""
    return type(norm).__name__ if type(norm).__module__.startswith("torch_geometric.nn.norm.") else ""


def _require_batch(name: str, norm: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check, as a hook of a norm over the nodes of a graph, that the norm gets the graph of each row.

    Raises:
        ValueError: the norm gets no `batch`.
    """
    if inspect.signature(norm.forward).bind(*args, **kwargs).arguments.get("batch") is None:
        raise ValueError(
            f"{name}, PyG's {type(norm).__name__}, gets no batch, so it averages over all rows, padding included. "
            "Pass it the graph of each row: norm(x, batch, num_graphs)."
        )


def _set_masks(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Set the masks of a call in the norms."""
    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    found: dict[str, Tensor] = {}
    for part in (given, *given.values()):
        for name in _MASKS:
            mask = part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)
            found |= {name: mask} if isinstance(mask, Tensor) else {}
    for norm in model.modules():
        if isinstance(norm, RealBatchNorm):
            norm.masks = found


def _remove_masks(model: nn.Module, *call: Any) -> None:
    """Remove the masks of a call from the norms."""
    for norm in model.modules():
        if isinstance(norm, RealBatchNorm):
            vars(norm).pop("masks", None)
