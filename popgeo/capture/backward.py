"""The backward pass of a step that is captured: which result is the loss, and its gradients by the weights."""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from popgeo.capture.identity_loss import instead_of_a_loss
from popgeo.capture.op_graph import shape_text
from popgeo.capture.recorder import Recorder


class NothingToTrainError(ValueError):
    """There is a loss, but none of the parameters to train has a part in it."""


def backward(
    results: Sequence[Tensor], weights: Mapping[str, Tensor], recorder: Recorder, start: Tensor | float | None
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Writes the backward pass down: the loss, and the gradients of the weights that it depends on, by name.

    Args:
        results: The tensors that the model returns.
        weights: The parameters to train, by name; without any there is no backward pass.
        recorder: Has written the forward pass down.
        start: The gradient of the loss to start from; None means 1.

    Raises:
        ValueError: there is no loss, there are several, or a checkpoint is reentrant.
    """
    if not weights:
        return None, {}
    loss = _find_loss(results, recorder)
    with recorder, torch.autograd.set_detect_anomaly(False):  # which would read values while nothing has any
        recorder.phase = "backward"
        if isinstance(start, Tensor):  # in the type and shape of the loss, in memory of its own
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
    """The marked tensor that all other marked ones feed; if none is marked, the only scalar with a gradient.

    Raises:
        ValueError: there is no loss, or several losses of which no one depends on the others.
    """
    marked = [tensor for tensor in recorder.marked if tensor.requires_grad]
    if marked:
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
    found = instead_of_a_loss(results) if not scalars else f"{len(scalars)} scalars that could be the loss"
    has_one = not scalars and (recorder.marked or any(tensor.dim() == 0 for tensor in results))
    raise (NothingToTrainError if has_one else ValueError)(
        f"Couldn't find a loss in graph: the model returns {found}. Return a loss, or mark it: ipu.identity_loss(loss)."
    )


def _warn_of_more(loss: Tensor, results: Sequence[Tensor], recorder: Recorder) -> None:
    """Warns of a scalar that the model computes from its marked loss and returns, as it is not what is trained on."""
    number = recorder.page.number(loss)
    scalars = [tensor for tensor in results if tensor.numel() == 1 and tensor.requires_grad]
    if any(number in recorder.page.depends_on(one) - {recorder.page.number(one)} for one in scalars):
        warnings.warn(
            f"The model is trained on its marked loss {shape_text(loss)}, not on the scalar that it makes of it. "
            "Wrap that scalar in poptorch.identity_loss(scalar, 'none') (or popgeo.ipu's) to train on it.",
            stacklevel=2,
        )
