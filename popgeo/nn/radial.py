"""Functions of a distance: bases that expand it, envelopes that end filters, and the activation of filter networks."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.ops.exp_or_zero import exp_or_zero
from popgeo.ops.refusals import check_least
from popgeo.ops.shifted_softplus import shifted_softplus


class GaussianSmearing(nn.Module):
    """A basis of Gaussians of equal width and spacing, exp(-(r - mu)^2 / (2 spacing^2)), arXiv:1706.08566.

    Below e^-60 a Gaussian is exactly 0 (`popgeo.ops.exp_or_zero`), so that neither it nor its product with a weight is
    a denormal number.

    Args:
        start: Center of the first Gaussian, in the unit of the distances.
        stop: Center of the last Gaussian.
        num_gaussians: Number of Gaussians, at least 2.

    Raises:
        ValueError: there are fewer than two Gaussians, which have no spacing.

    Example:
        >>> GaussianSmearing(0.0, 2.0, num_gaussians=3)(torch.tensor([1.0]))
        tensor([[0.6065, 1.0000, 0.6065]])
    """

    offset: Tensor

    def __init__(self, start: float = 0.0, stop: float = 5.0, num_gaussians: int = 50) -> None:
        super().__init__()
        check_least(2, "The width of Gaussians is their spacing.", num_gaussians=num_gaussians)
        self.register_buffer("offset", torch.linspace(start, stop, num_gaussians))
        centers = torch.linspace(start, stop, num_gaussians, device="cpu")  # on "meta" they would have no values
        self.coeff = -0.5 / float(centers[1] - centers[0]) ** 2

    def forward(self, dist: Tensor) -> Tensor:
        """Expand distances of any shape, flattened: [num_edges] -> [num_edges, num_gaussians]."""
        return exp_or_zero(self.coeff * (dist.reshape(-1, 1) - self.offset).square())

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"start={float(self.offset[0]):g}, stop={float(self.offset[-1]):g}, num_gaussians={len(self.offset)}"


class BesselBasis(nn.Module):
    """A basis of sin(n pi r / cutoff) / r, n = 1, 2, ..., arXiv:2003.03123, eq. 7, without its constant.

    Args:
        cutoff: Distance at which all functions are 0.
        num_radial: Number of functions.

    Raises:
        ValueError: the cutoff or the number is not positive.

    Example:
        >>> BesselBasis(cutoff=4.0, num_radial=3)(torch.tensor([2.0])).round(decimals=4) + 0.0
        tensor([[ 0.5000,  0.0000, -0.5000]])
    """

    frequency: Tensor

    def __init__(self, cutoff: float, num_radial: int = 20) -> None:
        super().__init__()
        if cutoff <= 0 or num_radial < 1:
            raise ValueError(f"cutoff is {cutoff} and num_radial {num_radial}; both must be positive.")
        self.cutoff = cutoff
        self.register_buffer("frequency", torch.arange(1, num_radial + 1) * (math.pi / cutoff))

    def forward(self, dist: Tensor) -> Tensor:
        """Expand distances of any shape, flattened: [num_edges] -> [num_edges, num_radial]."""
        r = dist.reshape(-1, 1)
        apart = r != 0  # also true for NaN, which stays NaN
        safe = torch.where(apart, r, 1.0)  # at 0 the result is the limit, which has no slope
        return torch.where(apart, torch.sin(self.frequency * safe) / safe, self.frequency)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"cutoff={self.cutoff}, num_radial={len(self.frequency)}"


class CosineEnvelope(nn.Module):
    """An envelope that falls from 1 at distance 0 to exactly 0 at the cutoff: (cos(pi r / cutoff) + 1) / 2.

    Beyond the cutoff it is 0. A distance of NaN, the mark of a wrong input, stays NaN.

    Args:
        cutoff: Distance from which on the envelope is 0.

    Example:
        >>> CosineEnvelope(cutoff=4.0)(torch.tensor([0.0, 2.0, 4.0, 5.0]))
        tensor([1.0000, 0.5000, 0.0000, 0.0000])
    """

    def __init__(self, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff

    def forward(self, dist: Tensor) -> Tensor:
        """Return the envelope at distances: [num_edges] -> [num_edges]."""
        return torch.where(dist >= self.cutoff, 0.0, 0.5 * (torch.cos(dist * (math.pi / self.cutoff)) + 1.0))

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"cutoff={self.cutoff}"


class PolynomialEnvelope(nn.Module):
    """An envelope that falls from 1 to 0 at the cutoff with two continuous derivatives, arXiv:2003.03123, eq. 8.

    Args:
        cutoff: Distance from which on the envelope is 0.
        exponent: p of the paper; with a larger p the envelope stays near 1 for longer.

    Example:
        >>> PolynomialEnvelope(cutoff=4.0)(torch.tensor([0.0, 2.0, 4.0, 5.0]))
        tensor([1.0000, 0.8555, 0.0000, 0.0000])
    """

    def __init__(self, cutoff: float, exponent: int = 6) -> None:
        super().__init__()
        self.cutoff, self.exponent = cutoff, exponent

    def forward(self, dist: Tensor) -> Tensor:
        """Return the envelope at distances: [num_edges] -> [num_edges]."""
        # A d^p below 1e-18 does not change the result, and smaller d have denormal powers.
        p, d = self.exponent, F.threshold(dist / self.cutoff, 1e-18 ** (1 / self.exponent), 0.0)
        fall = 0.5 * (p + 1) * (p + 2) - p * (p + 2) * d + 0.5 * p * (p + 1) * d.square()
        return torch.where(d >= 1.0, 0.0, 1.0 - _power(d, p) * fall)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"cutoff={self.cutoff}, exponent={self.exponent}"


def envelope_for(cutoff: float, envelope: nn.Module | None) -> nn.Module:
    """Return the envelope of a model after a check, or `CosineEnvelope(cutoff)`.

    Absent edges have the length of the cutoff or more. If the envelope were not 0 there, they would send messages, and
    results would depend on the number of slots.

    Args:
        cutoff: Longest edge of the model, in the unit of the distances.
        envelope: Module that ends the filters. Default: `CosineEnvelope(cutoff)`.

    Raises:
        ValueError: the envelope is not 0 from the cutoff on.

    Example:
        >>> envelope_for(5.0, CosineEnvelope(8.0))
        Traceback (most recent call last):
            ...
        ValueError: The envelope reaches 0.309 at the cutoff 5 or beyond; it must be 0 there, or absent edges send ...
    """
    if envelope is None:
        return CosineEnvelope(cutoff)
    if all(tensor.is_cpu for tensor in (*envelope.parameters(), *envelope.buffers())):
        with torch.no_grad():
            ends = envelope(torch.tensor([1.0, 1.5, 2.0], device="cpu") * cutoff).abs()
        if ends.max() > 1e-6:
            raise ValueError(
                f"The envelope reaches {float(ends.max()):.3g} at the cutoff {cutoff:g} or beyond; it must be 0 there, "
                f"or absent edges send messages. Pass an envelope that ends at {cutoff:g}."
            )
    return envelope


def _power(d: Tensor, exponent: int) -> Tensor:
    """Compute d to an integer power by products, because `pow` is far slower on some machines."""
    power = d
    for bit in f"{exponent:b}"[1:]:
        power = power * power * d if bit == "1" else power * power
    return power


class ShiftedSoftplus(nn.Module):
    """The activation ln(e^x / 2 + 1 / 2), which is 0 at 0 (arXiv:1706.08566).

    Args:
        stable: Whether to compute `max(x, 0) + log1p(e^-|x|) - ln 2`, which is correct for every x. Otherwise compute
            log(0.5 e^x + 0.5), the fast form on machines without softplus: it needs one exponential and one logarithm,
            is infinite above x = 88 in float32, and uses denormal numbers below -87.

    Example:
        >>> ShiftedSoftplus()(torch.tensor([-200.0, 0.0, 200.0]))
        tensor([ -0.6931,   0.0000, 199.3069])
    """

    def __init__(self, stable: bool = True) -> None:
        super().__init__()
        self.stable = stable

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated features, of the same shape."""
        return shifted_softplus(x) if self.stable else torch.log(0.5 * torch.exp(x) + 0.5)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"stable={self.stable}"
