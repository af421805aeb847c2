"""Contexts around some of a model's operations: names, convolutions side by side, products in float16."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from popgeo.capture.recorder import active_recorder
from popgeo.compat.account import honoured, ignored, recorded
from popgeo.compat.poptorch.enums import MultiConvPlanType
from popgeo.compat.poptorch.errors import CheckFailed

__all__ = ["Attribute", "MultiConv", "NameScope", "autocast"]


class Attribute(nullcontext[None]):
    """A context whose operations were to carry attributes for Graphcore's compiler, which is not used here.

    Example:
        >>> with Attribute(__outline={"layer": "embedding"}):
        ...     pass
    """

    def __init__(self, **attributes: Any) -> None:
        self.attributes = attributes

    def __enter__(self) -> None:
        names = ", ".join(sorted(self.attributes))
        ignored(f"Attribute({names})", "it speaks to Graphcore's own compiler")


class NameScope:
    """Operations inside are listed under this name in the report of a compiled model.

    Example:
        >>> with NameScope("attention"):
        ...     pass
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ValueError("Parameter to NameScope must be a string")
        self.name = name
        self._recorder: Any = None

    def __enter__(self) -> None:
        self._recorder = active_recorder()
        if self._recorder is not None:
            modules = self._recorder.modules
            modules.append(f"{modules[-1]}.{self.name}" if modules and modules[-1] else self.name)

    def __exit__(self, *error: object) -> None:
        if self._recorder is not None:
            self._recorder.modules.pop()
            self._recorder = None


class MultiConv(nullcontext[None]):
    """A context whose convolutions were to run side by side; here they run one after the other, with equal results.

    Example:
        >>> with MultiConv().availableMemoryProportions(0.5).cycleBackOff(0.1):
        ...     pass
    """

    def availableMemoryProportions(self, value: Any) -> "MultiConv":
        """A share of memory for all convolutions, or one for each."""
        return self._each(value, lambda share: isinstance(share, float), "Invalid available memory proportion!")

    def partialsTypes(self, value: Any) -> "MultiConv":
        """float32 or float16 for all convolutions, or one for each."""
        types = (torch.float32, torch.float16)
        refusal = "Invalid partials types. Expecting torch.float or torch.half"
        return self._each([None] if value is None else value, types.__contains__, refusal)

    def enableConvDithering(self, value: Any) -> "MultiConv":
        """Whether convolutions begin on different tiles: for all, or for each."""
        return self._each(value, lambda on: isinstance(on, bool), "value must be bool or list of bools")

    def planType(self, value: Any) -> "MultiConv":
        """A member of `MultiConvPlanType`."""
        return self._each(value, lambda kind: isinstance(kind, MultiConvPlanType), "Invalid plan type!")

    def perConvReservedTiles(self, value: int) -> "MultiConv":
        """Tiles for each convolution."""
        return self._each(value, lambda tiles: isinstance(tiles, int), "Invalid number of reserved tiles!")

    def cycleBackOff(self, value: float) -> "MultiConv":
        """A share of cycles, between 0 and 1."""
        return self._each(value, lambda share: isinstance(share, float), "Invalid cycle back off!")

    def __enter__(self) -> None:
        recorded("MultiConv", "convolutions are planned one after the other")

    def _each(self, value: Any, accepts: Callable[[Any], bool], refusal: str) -> "MultiConv":
        listed = list(value) if isinstance(value, list | tuple) else [value]
        if value is not None and not (listed and all(map(accepts, listed))):
            raise CheckFailed(refusal)
        return self


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
        honoured("autocast", "torch's rules say which operations run in float16")
