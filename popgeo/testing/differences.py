"""Tensors of a model's result by name, their loss, and their largest difference from other tensors."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from popgeo.testing.claims import BrokenError

_TOLERANCES = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_SMALLEST_SCALE = 1e-3


def named_tensors(result: Any, name: str = "result") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a nest of tuples, named tuples, lists and dictionaries, with their access paths.

    Example:
        >>> [name for name, _ in named_tensors({"energy": torch.ones(2), "parts": (torch.ones(1), 3)})]
        ["result['energy']", "result['parts'][0]"]
    """
    if isinstance(result, Tensor):
        yield name, result
    elif isinstance(result, Mapping):
        for key, part in result.items():
            yield from named_tensors(part, f"{name}[{key!r}]")
    elif isinstance(result, tuple | list):
        fields = [f".{field}" for field in getattr(result, "_fields", ())] or [f"[{i}]" for i in range(len(result))]
        for field, part in zip(fields, result, strict=True):
            yield from named_tensors(part, f"{name}{field}")


def returned_tensors(result: Any, remedy: str = "") -> dict[str, Tensor]:
    """Return the tensors of a model's result, by name.

    Raises:
        ValueError: the result contains no tensor; the message ends with the remedy.
    """
    tensors = dict(named_tensors(result))
    if not tensors:
        raise ValueError(f"The model returned {type(result).__name__} without a tensor. Return tensors{remedy}.")
    return tensors


def noise_of(slopes: Mapping[str, Tensor]) -> float:
    """Return the largest slope that counts as zero. A bias before a norm, for example, has only rounding errors."""
    return 0.01 * max((float(slope.detach().abs().max()) for slope in slopes.values() if slope.numel()), default=0.0)


def loss_of(trained: Iterable[Tensor]) -> Tensor:
    """Return the sum of the scalars, or without scalars the sum of the mean squares of all tensors."""
    tensors = list(trained)
    scalars = [tensor for tensor in tensors if tensor.dim() == 0]
    return torch.stack(scalars or [tensor.abs().square().mean() for tensor in tensors]).sum()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest difference between two tensors.

    Attributes:
        row: Position on dimension 0; None for a scalar.
        found: Found value.
        expected: Expected value.
        allowed: Largest allowed difference.
    """

    row: int | None
    found: float
    expected: float
    allowed: float


def difference(
    found: Tensor, expected: Tensor, tolerance: float | None = None, *, scale: float = _SMALLEST_SCALE
) -> Difference | None:
    """Return the largest difference between two tensors of one shape; None if it is allowed.

    Args:
        found: Tensor of any type and shape.
        expected: Tensor of the same shape.
        tolerance: Largest allowed difference relative to the largest entry of `expected`, or to `scale` if that is
            larger. Default: 1e-4, 1e-8 for float64, and more for halves. Integers must be equal.
        scale: Lower limit of the scale.

    Example:
        >>> difference(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
        Difference(row=1, found=2.5, expected=2.0, allowed=0.0002)
        >>> difference(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan])) is None
        True
    """
    if expected.numel() == 0:
        return None
    found, expected = found.detach().cpu(), expected.detach().cpu()  # some devices have no float64
    allowed = 0.0
    if expected.is_floating_point() or expected.is_complex():
        relative = _TOLERANCES.get(expected.dtype, 1e-4) if tolerance is None else tolerance
        magnitude = expected.abs().to(torch.float64)
        largest = float(magnitude.where(magnitude.isfinite(), 0.0).max())
        allowed = relative * max(largest, scale)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    one, other = found.to(wide), expected.to(wide)
    same = (one == other) | (one.isnan() & other.isnan())
    distance = torch.where(same, 0.0, (one - other).abs().nan_to_num(nan=torch.inf))
    worst = int(distance.argmax())
    if float(distance.flatten()[worst]) <= allowed:
        return None
    row = worst // max(expected[0].numel(), 1) if expected.dim() else None
    entries = (float(tensor.flatten()[worst].real) for tensor in (one, other))
    return Difference(row=row, found=next(entries), expected=next(entries), allowed=allowed)


def require_alike(
    what: str, found: Tensor, expected: Tensor, tolerance: float | None, words: str, scale: float = _SMALLEST_SCALE
) -> None:
    """Raise BrokenError if two tensors differ by more than is allowed.

    Args:
        what: Name of the tensors.
        found: Found tensor.
        words: Text after the name, with the fields of `Difference` in braces.
        expected: Expected tensor of the same shape.
        tolerance: Largest allowed relative difference, as in `difference`.
        scale: Lower limit of the scale, as in `difference`.

    Raises:
        BrokenError: the tensors differ.
    """
    if (apart := difference(found, expected, tolerance, scale=scale)) is not None:
        raise BrokenError(f"{what} {words.format(**vars(apart))}", found=apart.found, expected=apart.expected)
