"""B-spline kernels of SplineCNN (arXiv:1711.08920): bases, and features weighted by them."""

import torch
from torch import Tensor

# The polynomials of each degree, from the first spline that reaches an interval to the last: coefficients of
# 1, v, v^2, v^3 at the position 0 <= v < 1 in the interval.
_POLYNOMIALS = {
    1: [[1.0, -1.0], [0.0, 1.0]],
    2: [[0.5, -1.0, 0.5], [0.5, 1.0, -1.0], [0.0, 0.0, 0.5]],
    3: [[1 / 6, -0.5, 0.5, -1 / 6], [2 / 3, 0.0, -1.0, 0.5], [1 / 6, 0.5, 0.5, -0.5], [0.0, 0.0, 0.0, 1 / 6]],
}


def spline_basis(pseudo: Tensor, kernel_size: Tensor, is_open_spline: Tensor, degree: int = 1) -> tuple[Tensor, Tensor]:
    """Return the products of B-splines that are not 0 at each point, and the numbers of their weights.

    Args:
        pseudo: Points in the unit cube. [num_edges, dimensions]
        kernel_size: The number of splines in each dimension. int64 [dimensions]
        is_open_spline: Whether the splines of a dimension end at its borders (1), or continue at the other border (0).
            [dimensions]
        degree: The degree of the splines: 1, 2 or 3.

    Returns:
        The basis, which has derivatives with respect to the points [num_edges, (degree + 1)^dimensions]; the numbers
        of the weights. int64 [num_edges, (degree + 1)^dimensions]

    Raises:
        ValueError: the degree is not 1, 2 or 3.

    Example:
        >>> basis, index = spline_basis(torch.tensor([[0.25]]), torch.tensor([3]), torch.tensor([1]))
        >>> basis.tolist(), index.tolist()
        ([[0.5, 0.5]], [[0, 1]])
    """
    if degree not in _POLYNOMIALS:
        raise ValueError(f"degree is {degree}; B-splines have degree 1, 2 or 3.")
    position = pseudo * (kernel_size - degree * is_open_spline.to(kernel_size.dtype)).to(pseudo.dtype)
    interval = position.detach().floor()
    powers = (position - interval).unsqueeze(-1) ** torch.arange(degree + 1, device=pseudo.device)
    values = powers @ powers.new_tensor(_POLYNOMIALS[degree]).t()  # [num_edges, dimensions, degree + 1]
    steps = torch.arange(degree + 1, device=pseudo.device)
    places = (interval.long().unsqueeze(-1) + steps) % kernel_size.view(-1, 1)
    strides = torch.cat([kernel_size.new_ones(1), kernel_size.cumprod(0)[:-1]])
    basis, index = pseudo.new_ones(len(pseudo), 1), places.new_zeros(len(pseudo), 1)
    for d in range(pseudo.shape[1]):  # the first dimension counts fastest
        basis = (values[:, d, :, None] * basis[:, None, :]).flatten(1)
        index = (places[:, d, :, None] * strides[d] + index[:, None, :]).flatten(1)
    return basis, index


def spline_weighting(x: Tensor, weight: Tensor, basis: Tensor, weight_index: Tensor) -> Tensor:
    """Multiply each row with the sum of the weight matrices that its basis chooses.

    Args:
        x: Features. [num_edges, channels]
        weight: One matrix per spline. [num_splines, channels, out_channels]
        basis: The share of each chosen matrix. [num_edges, num_chosen]
        weight_index: The numbers of the chosen matrices. int64 [num_edges, num_chosen]

    Returns:
        New features. [num_edges, out_channels]

    Example:
        >>> x, weight = torch.tensor([[2.0]]), torch.tensor([[[1.0]], [[10.0]]])
        >>> spline_weighting(x, weight, torch.tensor([[0.5, 0.5]]), torch.tensor([[0, 1]]))
        tensor([[11.]])
    """
    shares = x.new_zeros(len(x), len(weight)).scatter_add(1, weight_index, basis)  # [num_edges, num_splines]
    return torch.einsum("es,ec,sco->eo", shares, x, weight)
