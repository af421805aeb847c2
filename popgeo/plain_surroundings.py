"""The context for captures and for allocations of memory, independent of the caller's own contexts of torch."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch._C import _len_torch_function_stack


@contextmanager
def plain_surroundings() -> Iterator[None]:
    """Leave inference mode, and use the processor as the default device, while the block runs.

    In inference mode a capture sees composite operations undivided, and memory that is allocated there can never be
    written to outside of it. The block keeps gradients enabled or disabled, as they are.

    Example:
        >>> with torch.inference_mode(), torch.device("meta"), plain_surroundings():
        ...     made = torch.empty(1)
        >>> made.is_inference(), made.device
        (False, device(type='cpu'))
    """
    if not torch.is_inference_mode_enabled() and not _len_torch_function_stack():  # a default device is a mode there
        yield  # entering contexts would take 0.1 ms in a thread that has slept
        return
    on_processor = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    differentiates = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(differentiates), on_processor:
        yield
