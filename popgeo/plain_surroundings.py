"""The state of torch in which popgeo captures models and allocates memory, whatever the caller has switched on."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def plain_surroundings() -> Iterator[None]:
    """Leave inference mode, and every default device but the processor, while the block runs.

    In inference mode torch hands composite operations whole to a capture, and memory that is made there can never be
    written to outside of it. Gradients remain switched on or off.

    Example:
        >>> with torch.inference_mode(), torch.device("meta"), plain_surroundings():
        ...     made = torch.empty(1)
        >>> made.is_inference(), made.device
        (False, device(type='cpu'))
    """
    with ExitStack() as left:
        if torch.is_inference_mode_enabled():
            differentiates = torch.is_grad_enabled()
            left.enter_context(torch.inference_mode(False))
            left.enter_context(torch.set_grad_enabled(differentiates))
        if torch.get_default_device().type != "cpu":
            left.enter_context(torch.device("cpu"))
        yield
