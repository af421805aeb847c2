"""Moving averages of weights, which a compiled step brings up to date after each update."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn


def require_average(average: AveragedModel, model: nn.Module) -> None:
    """Check that an average has the same parameters and buffers as a model.

    Raises:
        ValueError: it is not an `AveragedModel`, or shapes, types or devices differ.
    """
    if not isinstance(average, AveragedModel):
        raise ValueError(
            f"average is of type {type(average).__name__}. Pass torch.optim.swa_utils.AveragedModel(model, ...)."
        )
    for kind in ("parameters", "buffers"):
        own, other = (_kinds(getattr(one, kind)()) for one in (average.module, model))
        if own != other:
            raise ValueError(
                f"average has {len(own)} {kind} and the model {len(other)}, or their shapes, types or devices differ. "
                "Pass torch.optim.swa_utils.AveragedModel(model, ...) of the model itself, made after model.to(...)."
            )


@torch.no_grad()
def update_average(average: AveragedModel, model: nn.Module) -> None:
    """Do the same as `average.update_parameters(model)` without reading the count, so that a CUDA graph can hold it.

    The count must be on the device, and 1 or more: the first update of an average copies the weights.
    """
    count = average.n_averaged
    averages, weights = (
        [*one.parameters(), *(one.buffers() if average.use_buffers else ())] for one in (average.module, model)
    )
    if average.multi_avg_fn is not None:
        for dtype in dict.fromkeys(one.dtype for one in averages):
            ours, theirs = ([one.detach() for one in many if one.dtype == dtype] for many in (averages, weights))
            average.multi_avg_fn(ours, theirs, count)
    else:
        join = average.avg_fn or get_swa_avg_fn()
        for one, weight in zip(averages, weights, strict=True):
            one.copy_(join(one.detach(), weight.detach(), count))
    if not average.use_buffers:
        for one, buffer in zip(average.module.buffers(), model.buffers(), strict=True):
            one.copy_(buffer)
    count.add_(1)


def _kinds(tensors: Iterable[Tensor]) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return [(one.shape, one.dtype, one.device) for one in tensors]
