"""Whether values can be looked at now, or only shapes: under capture nothing may depend on data."""

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


def is_eager() -> bool:
    """True outside `torch.compile`, `make_fx` and fake tensors: arguments hold values that may be checked.

    Example:
        >>> is_eager()
        True
    """
    return not torch.compiler.is_compiling() and not is_in_torch_dispatch_mode()
