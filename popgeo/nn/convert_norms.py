"""Models with torch's norms of batches, made to leave padding out: each norm finds the mask in the model's call."""

import copy
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from popgeo.nn.norm import BatchNorm, batch_normalized

_MASKS = ("nodes_mask", "edges_mask", "graphs_mask")
_OF_A_GRAPH = ("GraphNorm", "InstanceNorm", "LayerNorm", "MeanSubtractionNorm", "PairNorm")  # PyG's


class RealBatchNorm(nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` over real rows only, within a model that `convert_norms` has returned."""

    name = ""
    masks: Mapping[str, Tensor] = {}

    def forward(self, input: Tensor) -> Tensor:
        """Return normalised features; the mask is the one of the call that has as many rows.

        In evaluation with running statistics no row depends on another one, so no mask is needed.

        Args:
            input: Features. [rows, channels]

        Raises:
            ValueError: no mask of the call has as many rows, or several have; the message names the norm.
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
    """A copy of a model whose norms of batches leave padding out; its `state_dict` has the keys of the model's own.

    Each `torch.nn.BatchNorm1d`, also inside PyG's `BatchNorm`, takes the mask from the arguments of the model's call:
    `nodes_mask`, `edges_mask` or `graphs_mask`, by itself or as an attribute of a batch. PyG's norms over the nodes of
    a graph stay as they are; they must get `batch`, without which they average over padding too.

    Args:
        model: Its `forward` takes a batch, or masks by these names.

    Raises:
        ValueError: the statistics of a norm count padding and it cannot be converted; or, in a call, there is no mask,
            or not exactly one that fits a norm, or a norm over graphs does not get `batch`.

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
    copies: dict[int, Any] = {}  # deepcopy puts them wherever the model refers to a norm
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
        if _kind_of_pyg(norm) in _OF_A_GRAPH and getattr(norm, "mode", "graph") == "graph":
            norm.register_forward_pre_hook(functools.partial(_require_batch, name), with_kwargs=True)
    model.register_forward_pre_hook(_hand_out, with_kwargs=True)
    model.register_forward_hook(_take_back, always_call=True)
    return model


def _kind_of_pyg(norm: nn.Module) -> str:
    """The class of one of PyG's norms; empty for other modules."""
    return type(norm).__name__ if type(norm).__module__.startswith("torch_geometric.nn.norm.") else ""


def _require_batch(name: str, norm: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The hook of a norm over the nodes of a graph.

    Raises:
        ValueError: the norm does not get the graph of each row.
    """
    if inspect.signature(norm.forward).bind(*args, **kwargs).arguments.get("batch") is None:
        raise ValueError(
            f"{name}, PyG's {type(norm).__name__}, gets no batch, so it averages over all rows, padding included. "
            "Pass it the graph of each row: norm(x, batch, num_graphs)."
        )


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
