"""SchNet's and PaiNN's interactions with filters on a grid, computed in one pass over the edges."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from popgeo.ops import interaction_call, interaction_on_device, sum_on_device
from popgeo.ops.eager import is_captured, is_eager
from popgeo.ops.interaction_call import InteractionCall
from popgeo.ops.interaction_checks import check_call
from popgeo.ops.interaction_ops import interact, make_plan


@dataclass(frozen=True, kw_only=True, eq=False)
class InteractionPlan:
    """A plan of the edges within the cutoff, sorted by distance, made once for all layers on the same edges.

    A plan belongs to the tensors from which it was made. If `interaction` gets different or changed tensors, it makes a
    new plan.

    Args:
        tensor: Plan in the layout of the compiled kernels. int32
        weights: Weights of the eight points of the grid around each edge's distance. [num_edges, 8]
        made_from: Source, destination and distance of each edge, with the versions of these tensors.
        sizes: Numbers of sources, receivers and points of the grid.
        cutoff: Distance of the grid's last point.
    """

    tensor: Tensor
    weights: Tensor
    made_from: tuple[tuple[Tensor, int], ...]
    sizes: tuple[int, int, int]
    cutoff: float

    @classmethod
    def of(cls, src: Tensor, dst: Tensor, r: Tensor, sizes: tuple[int, int, int], cutoff: float) -> "InteractionPlan":
        """Make the plan of these edges. In captured code this is an operation of its own.

        Args:
            src: Source of each edge. [num_edges]
            dst: Destination of each edge. [num_edges]
            r: Distance of each edge; edges from `cutoff` on are left out. [num_edges]
            sizes: Numbers of sources, receivers and points of the grid.
            cutoff: Distance of the grid's last point.

        Raises:
            ValueError: an index is out of range.
        """
        tensor, weights = make_plan(src, dst, r.detach().contiguous(), cutoff, *sizes)
        made_from = tuple((one, _version(one)) for one in (src, dst, r))
        return cls(tensor=tensor, weights=weights, made_from=made_from, sizes=sizes, cutoff=cutoff)

    def is_of(self, src: Tensor, dst: Tensor, r: Tensor, sizes: tuple[int, int, int], cutoff: float) -> bool:
        """Check whether the plan was made from these tensors, and no tensor has been changed in place since then."""
        return (sizes, cutoff) == (self.sizes, self.cutoff) and all(
            one is other and _version(one) == version
            for one, (other, version) in zip((src, dst, r), self.made_from, strict=True)
        )


def interaction(
    x: Tensor,
    table: Tensor,
    r: Tensor,
    src: Tensor,
    dst: Tensor,
    num_nodes: int,
    cutoff: float,
    *,
    direction: Tensor | None = None,
    half_list: bool = False,
    plan: InteractionPlan | None = None,
) -> Tensor:
    """Interpolate a filter for each edge, multiply the features of its source by it and sum them at its destination.

    out[dst[e]] += x[src[e]] * filter(r[e]), eq. 2 of SchNet (arXiv:1706.08566). A filter depends on the distance alone,
    so `table` contains its values at equidistant points from 0 to the cutoff. An edge's filter is the polynomial of
    degree 7 through the eight points around its distance. Edges from the cutoff on send nothing; a distance of NaN
    gives NaN. Neither the forward nor the backward pass writes a tensor of edges times channels. The result is twice
    differentiable by `x`, `table`, `r` and `direction` in one pass each, and has the same bits for any number of
    threads.

    For derivatives by `r` the kernels make a table of slopes, in float64, by differences of eleven points. With `table`
    in float64 the forces of features and distances in float32 lose no digits, so pass such a table for forces.

    With directions there are messages of scalars and vectors, eq. 7 and 8 of PaiNN (arXiv:2102.03150). Each third of
    the filters' channels is for one kind: scalars, vectors, and scalars that multiply the edge's direction.

    Args:
        x: Features of the sources. [num_sources, channels]; with directions the scalars, the three axes of the vectors,
            and the scalars that multiply the direction, side by side. [num_sources, 5 * channels / 3]
        table: Filters at num_points distances, from 0 to the cutoff. At least 11 points. [num_points, channels]
        r: Distance of each edge. [num_edges]
        src: Source of each edge. [num_edges]
        dst: Destination of each edge. [num_edges]
        num_nodes: Rows of the result; never read from `dst`, so the shape is static.
        cutoff: Distance of the last row of the table.
        direction: Unit vector from the destination to the source; the reverse edge uses its negative. [num_edges, 3]
        half_list: Whether each edge represents both directions: messages then also go from `dst` to `src`, with the
            same filter.
        plan: Plan of these edges, made once and reused by every layer. Default: each call makes a plan.

    Returns:
        Summed messages; zero if no edge arrives. [num_nodes, channels]; with directions scalars and the three axes
        of vectors. [num_nodes, 4 * channels / 3]

    Raises:
        ValueError: shapes or types do not fit, or an index is out of range.

    Example:
        >>> table = torch.linspace(0.0, 2.0, 21, dtype=torch.float64).square().view(-1, 1)  # r^2 up to a cutoff of 2
        >>> x, src, dst = torch.tensor([[1.0], [5.0]]), torch.tensor([1, 1]), torch.tensor([0, 1])
        >>> interaction(x, table, torch.tensor([1.5, 2.0]), src, dst, num_nodes=2, cutoff=2.0).round(decimals=5)
        tensor([[11.2500],
                [ 0.0000]])
    """
    call = InteractionCall(x, table, r, direction, src, dst, num_nodes, float(cutoff), half_list)
    check_call(call)
    if is_eager(call.tensors) and not (call.is_served() or interaction_on_device.serves(call)):
        return call.sums()
    sizes = x.shape[0], num_nodes, table.shape[0]
    if plan is None or not plan.is_of(src, dst, r, sizes, cutoff):
        plan = InteractionPlan.of(src, dst, r, sizes, cutoff)
    return interact(replace(call, plan=plan.tensor, weights=plan.weights))


def serves(*tensors: Tensor) -> bool:
    """Check whether an interaction can run as one operation: float32 or float64, without autocast, with kernels.

    A GPU has kernels if Triton is installed. In eager code the processor must have kernels; in popgeo's captures the
    backend decides later. Transforms, and dispatch modes of other libraries, see each operation of the definition.
    """
    on_device = all(map(sum_on_device.serves, tensors)) and sum_on_device.triton_kernels() is not None
    fits = all((on_device or t.is_cpu) and t.dtype in (torch.float32, torch.float64) for t in tensors)
    if not fits or torch.is_autocast_enabled("cuda" if on_device else "cpu"):
        return False
    return on_device or interaction_call.is_served() if is_eager(tensors) else is_captured()


def _version(tensor: Tensor) -> int:
    """Return the number of changes in place, also under torch.compile; 0 for inference tensors, which do not count."""
    return 0 if tensor.is_inference() else tensor._version
