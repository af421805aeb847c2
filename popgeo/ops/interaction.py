"""From distances to messages in one pass over the edges: SchNet's and PaiNN's interactions, with filters on a grid."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from popgeo.ops import interaction_call
from popgeo.ops.eager import is_captured, is_eager
from popgeo.ops.interaction_call import InteractionCall
from popgeo.ops.interaction_checks import check_call
from popgeo.ops.interaction_ops import interact, make_plan


@dataclass(frozen=True, kw_only=True, eq=False)
class InteractionPlan:
    """The edges within the cutoff in order of distance, made once for all layers on the same edges.

    It belongs to the tensors that it was made from. If they differ or were changed, `interaction` makes its own.

    Args:
        tensor: As the compiled kernels read it. int32
        weights: Of the points of the grid between which each edge interpolates. [num_edges, 8]
        made_from: Source, destination and distance of each edge, and the versions of these tensors.
        sizes: Sources, receivers and points of the grid.
        cutoff: Where the grid ends.
    """

    tensor: Tensor
    weights: Tensor
    made_from: tuple[tuple[Tensor, int], ...]
    sizes: tuple[int, int, int]
    cutoff: float

    @classmethod
    def of(cls, src: Tensor, dst: Tensor, r: Tensor, sizes: tuple[int, int, int], cutoff: float) -> "InteractionPlan":
        """The plan of these edges. If something is captured, so is this.

        Args:
            src: Source of each edge. [num_edges]
            dst: Destination of each edge. [num_edges]
            r: Distance of each edge; edges from `cutoff` on are left out. [num_edges]
            sizes: Sources, receivers and points of the grid.
            cutoff: Where the grid ends, in the unit of the distances.

        Raises:
            ValueError: an index is out of range.
        """
        tensor, weights = make_plan(src, dst, r.detach().contiguous(), cutoff, *sizes)
        made_from = tuple((one, _version(one)) for one in (src, dst, r))
        return cls(tensor=tensor, weights=weights, made_from=made_from, sizes=sizes, cutoff=cutoff)

    def is_of(self, src: Tensor, dst: Tensor, r: Tensor, sizes: tuple[int, int, int], cutoff: float) -> bool:
        """Whether it was made from these tensors, and none was changed in place since."""
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
    so `table` holds it at equidistant points from 0 to the cutoff, and an edge takes the polynomial of degree 7 through
    the eight points around its distance. Edges from the cutoff on carry nothing; a distance of NaN makes NaN. Nothing
    that grows with edges and channels is written to memory, forward or backward. The result is twice differentiable by
    `x`, `table`, `r` and `direction` in one pass each, and has the same bits for any number of threads.

    The kernels take slopes from a table of slopes, which they make in float64 by differences of eleven points. So with
    a table in float64, features and distances in float32 have forces without loss: pass such a table where something is
    differentiated by `r`.

    With directions messages are of scalars and vectors, eq. 7 and 8 of PaiNN (arXiv:2102.03150): a third of the
    filters' channels is for each of scalars, vectors, and scalars that become vectors along the edge.

    Args:
        x: Features of the sources. [num_sources, channels]; with directions the scalars, the three axes of the vectors,
            and what goes along the edge, side by side. [num_sources, 5 * channels / 3]
        table: Filters at num_points distances, from 0 to the cutoff. At least 11 points. [num_points, channels]
        r: Distance of each edge. [num_edges]
        src: Source of each edge. [num_edges]
        dst: Destination of each edge. [num_edges]
        num_nodes: Rows of the result; never read from `dst`, so the shape is static.
        cutoff: Distance of the last row of the table.
        direction: Unit vector from the destination to the source, turned around for the way back. [num_edges, 3]
        half_list: Each edge represents both directions: messages also go from `dst` to `src`, by the same filter.
        plan: Of these edges, made once and reused by every layer; without it each call makes its own.

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
    if is_eager(call.tensors) and not call.is_served():
        return call.sums()
    sizes = x.shape[0], num_nodes, table.shape[0]
    if plan is None or not plan.is_of(src, dst, r, sizes, cutoff):
        plan = InteractionPlan.of(src, dst, r, sizes, cutoff)
    return interact(replace(call, plan=plan.tensor, weights=plan.weights))


def serves(*tensors: Tensor) -> bool:
    """Whether an interaction of these tensors is one operation: in float32 or float64 on a processor, without autocast.

    If it runs at once, the processor must have kernels for it; if it is captured, whatever runs it decides.
    A transform, and a mode of others, sees each operation.
    """
    return (
        all(t.is_cpu and t.dtype in (torch.float32, torch.float64) for t in tensors)
        and not torch.is_autocast_enabled("cpu")
        and (interaction_call.is_served() if is_eager(tensors) else is_captured())
    )


def _version(tensor: Tensor) -> int:
    """How often the tensor was changed in place, also as torch.compile sees it; 0 if that is not counted."""
    return 0 if tensor.is_inference() else tensor._version
