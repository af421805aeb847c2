"""The state of torch in which popgeo captures models and allocates memory, whatever the caller has switched on."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

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
    on_processor = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    differentiates = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(differentiates), on_processor:
        yield
