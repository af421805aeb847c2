"""Products in float16 inside a float32 model."""

from typing import Any

import torch

from popgeo.compat.account import ACCOUNT, Treatment

__all__ = ["autocast"]


class autocast(torch.autocast):
    """A context, or a decorator, in which products and convolutions run in float16, by torch's own rules.

    Args:
        enabled: Whether they do.

    Example:
        >>> with autocast():
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float16
    """

    def __init__(self, enabled: bool = True, *args: Any) -> None:
        super().__init__("cpu", dtype=torch.float16, enabled=enabled)
        ACCOUNT.add("autocast", Treatment.HONOURED, "torch's rules say which operations run in float16")
