"""The backward pass of a captured step: it finds the loss and records the gradients of the weights."""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from popgeo.capture.identity_loss import describe_missing_loss
from popgeo.capture.op_graph import shape_text
from popgeo.capture.recorder import Recorder


class NothingToTrainError(ValueError):
    """An error about a loss that does not depend on any parameter to train."""


def backward(
    results: Sequence[Tensor], weights: Mapping[str, Tensor], recorder: Recorder, start: Tensor | float | None
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Record the backward pass; return the loss, and the gradients of the weights that it depends on, by name.

    Args:
        results: Tensors that the model returns.
        weights: Parameters to train, by name. Without parameters there is no backward pass.
        recorder: Recorder of the forward pass.
        start: Gradient of the loss to start from; None means 1.

    Raises:
        ValueError: there is no loss, there are several, or a checkpoint is reentrant.
    """
    if not weights:
        return None, {}
    loss = _find_loss(results, recorder)
    with recorder, torch.autograd.set_detect_anomaly(False):  # anomaly detection would read values of stand-ins
        recorder.phase = "backward"
        if isinstance(start, Tensor):  # cast and expanded to the loss, in new memory
            seed = start.to(loss.dtype, copy=True).expand(loss.shape)
        else:
            seed = torch.full_like(loss, start or 1.0)
        try:
            slopes = torch.autograd.grad(loss, list(weights.values()), seed, allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant" not in str(error):
                raise
            raise ValueError(
                "The model calls torch.utils.checkpoint with use_reentrant=True, which cannot be part of a step. Call "
                "it with use_reentrant=False; draws and results are the same."
            ) from error
    return loss, {name: slope for name, slope in zip(weights, slopes, strict=True) if slope is not None}


def _find_loss(results: Sequence[Tensor], recorder: Recorder) -> Tensor:
    """Return the marked tensor that depends on all other marked ones; without marks, the only scalar with a gradient.

    Raises:
        ValueError: there is no loss, or no loss depends on all others.
    """
    if marked := [tensor for tensor in recorder.marked if tensor.requires_grad]:
        numbers = set(map(recorder.page.number, marked))
        final = [tensor for tensor in marked if numbers <= recorder.page.depends_on(tensor)]
        if len(final) == 1:
            _warn_of_more(final[0], results, recorder)
            return final[0]
        raise ValueError(
            f"Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss "
            f"in poptorch.identity_loss (or popgeo.ipu's). Of {len(marked)} marked tensors none depends on all others."
        )
    scalars = [tensor for tensor in results if tensor.dim() == 0 and tensor.requires_grad]
    if len(scalars) == 1:
        return scalars[0]
    found = describe_missing_loss(results) if not scalars else f"{len(scalars)} scalars that could be the loss"
    has_one = not scalars and (recorder.marked or any(tensor.dim() == 0 for tensor in results))
    raise (NothingToTrainError if has_one else ValueError)(
        f"Couldn't find a loss in graph: the model returns {found}. Return a loss, or mark it: ipu.identity_loss(loss)."
    )


def _warn_of_more(loss: Tensor, results: Sequence[Tensor], recorder: Recorder) -> None:
    """Warn if the model returns a scalar that it computes from its marked loss: that scalar is not trained on."""
    number = recorder.page.number(loss)
    scalars = [tensor for tensor in results if tensor.numel() == 1 and tensor.requires_grad]
    if any(number in recorder.page.depends_on(one) - {recorder.page.number(one)} for one in scalars):
        warnings.warn(
            f"The model is trained on its marked loss {shape_text(loss)}, not on the scalar that it makes of it. "
            "Wrap that scalar in poptorch.identity_loss(scalar, 'none') (or popgeo.ipu's) to train on it.",
            stacklevel=2,
        )
