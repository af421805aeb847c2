"""The tensors that a model returns, by name, the loss that they represent, and how far two of them lie apart."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from popgeo.testing.claims import BrokenError

_TOLERANCES = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_SMALLEST_SCALE = 1e-3


def named_tensors(result: Any, name: str = "result") -> Iterator[tuple[str, Tensor]]:
    """The tensors in a nest of tuples, named tuples, lists and dictionaries, each with the words to reach it.

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
    """The tensors that a model returned, by name.

    Raises:
        ValueError: no result needs a gradient; the message ends with the remedy.
    """
    tensors = dict(named_tensors(result))
    if not tensors:
        raise ValueError(f"The model returned {type(result).__name__} with no tensor. Return tensors{remedy}.")
    return tensors


def noise_of(slopes: Mapping[str, Tensor]) -> float:
    """What counts as zero among slopes. Some are zero but for rounding, such as a bias's before a norm."""
    return 0.01 * max((float(slope.detach().abs().max()) for slope in slopes.values() if slope.numel()), default=0.0)


def loss_of(trained: Iterable[Tensor]) -> Tensor:
    """The scalars among results that need a gradient, summed; without scalars, the mean squares of all."""
    tensors = list(trained)
    scalars = [tensor for tensor in tensors if tensor.dim() == 0]
    return torch.stack(scalars or [tensor.abs().square().mean() for tensor in tensors]).sum()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two tensors lie furthest apart.

    Attributes:
        row: Position on dimension 0; None in a scalar.
        found: The value found.
        expected: The expected value.
        allowed: How far apart they may lie.
    """

    row: int | None
    found: float
    expected: float
    allowed: float


def difference(
    found: Tensor, expected: Tensor, tolerance: float | None = None, *, scale: float = _SMALLEST_SCALE
) -> Difference | None:
    """Where two tensors of one shape lie furthest apart, or None if no entry lies further than is allowed.

    Args:
        found: Any type and shape.
        expected: The same.
        tolerance: Largest distance allowed, relative to the largest entry of `expected`, or to `scale` if that is
            larger; by default 1e-4, 1e-8 for float64, and more for halves. Integers must be equal.
        scale: See there.

    Example:
        >>> difference(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
        Difference(row=1, found=2.5, expected=2.0, allowed=0.0002)
        >>> difference(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan])) is None
        True
    """
    if expected.numel() == 0:
        return None
    found, expected = found.detach().cpu(), expected.detach().cpu()  # not every device has float64
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
    """Refuses two tensors that differ by more than is allowed.

    Args:
        what: The tensors' name.
        found: See `difference`, as `expected`, `tolerance` and `scale`.
        words: What to say of the entries furthest apart, after the name, with the fields of `Difference` in braces.

    Raises:
        BrokenError: they differ.
    """
    apart = difference(found, expected, tolerance, scale=scale)
    if apart is not None:
        raise BrokenError(f"{what} {words.format(**vars(apart))}", found=apart.found, expected=apart.expected)
