"""Which lowering an operation takes: those of its family, in order, else one tile does it all."""

import numpy as np

from popgeo.capture.op_graph import Op
from popgeo.ipu.cost.plan import FAMILY_OF, family_of
from popgeo.ipu.tiles.lower import (
    distances,
    elementwise,
    fused,
    gather,
    matmul,
    movement,
    norms,
    reduce,
    scatter,
    slices,
)
from popgeo.ipu.tiles.lower.builder import Lowering, Scope
from popgeo.ipu.tiles.lower.elementwise import operands
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.steps import Operand, Vertex

# A sort, a softmax or a running sum takes each slice by itself, as `slices` does for all families.
_WAYS = {
    "gather": (gather, slices),
    "scatter": (scatter, slices),
    "matmul": (matmul,),
    "elementwise": (elementwise,),
    "reduce": (reduce, slices),
    "norms": (norms, slices),
    "movement": (movement, elementwise),
    "view": (movement, elementwise),
    "sorting": (slices,),
    "distances": (distances,),
    "losses": (elementwise,),
    "fused": (fused,),
    "unknown": (movement, elementwise),
}
_RUN_ON_ONE_TILE = {
    "gather": "_unsafe_index",
    "scatter": "index_copy index_reduce _index_put_impl _unsafe_index_put",
    "matmul": "vdot matmul addmv linear",
    "elementwise": "_foreach_add _foreach_mul _foreach_sub floor_divide _foreach_div _foreach_addcmul "
    "_foreach_addcdiv _foreach_lerp _foreach_sqrt log_sigmoid_forward log_sigmoid_backward bernoulli uniform normal "
    "rand randn rand_like randn_like randint random exponential normal_functional randint_like native_dropout to",
    "reduce": "count_nonzero nansum mode",
    "norms": "_native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update cudnn_batch_norm "
    "batch_norm_backward",
    "movement": "concat hstack vstack repeat_interleave tile rot90 index_fill diag_embed _reshape_copy im2col "
    "_foreach_copy pixel_shuffle as_strided_scatter unfold_backward diagonal_scatter masked_scatter linspace eye "
    "tril_indices triu_indices",
    "view": "lift empty_permuted sym_size _local_scalar_dense resize set",
    "sorting": "msort searchsorted bucketize",
    "distances": "cdist",
    "losses": "binary_cross_entropy binary_cross_entropy_with_logits l1_loss mse_loss smooth_l1_loss huber_loss "
    "kl_div binary_cross_entropy_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward "
    "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward",
    "fused": "_fused_adam _fused_adamw _fused_adagrad _fused_sgd",
}
FALLBACKS = frozenset(f"aten.{name}" for names in _RUN_ON_ONE_TILE.values() for name in names.split())
"""Operations that have a cost and no lowering: `TileExact` runs them on one tile."""

TILE = 0


def lower(scope: Scope, op: Op) -> bool:
    """Adds an operation's steps; False where no lowering knows it and it runs on one tile."""
    known = lowering_of(scope, op)
    (known or _on_one_tile)(scope, op)
    return known is not None


def has_lowering(name: str) -> bool:
    """Whether an operation of this name is divided over the tiles, in one of its forms at least.

    Example:
        >>> has_lowering("aten.mm"), has_lowering("aten.native_dropout")
        (True, False)
    """
    return any(way.knows(name) for way in _WAYS[FAMILY_OF.get(name, "unknown")])


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """How an operation is divided over the tiles; None where no lowering of its family takes it."""
    ways = (way.lowering_of(scope, op) for way in _WAYS[family_of(op.target)])
    return next((found for found in ways if found is not None), None)


def _on_one_tile(scope: Scope, op: Op) -> None:
    """All operands go to one tile, the operation runs there, and its results go where they lie."""
    builder = scope.builder
    reads, arguments, keywords = operands(scope, op)
    fresh = [v for v in op.outputs if v is not None and v not in op.reads()]
    changed = [Operand(op.reads().index(v)) for v in dict.fromkeys(op.writes)]
    places = [scope.region(v) for v in (*fresh, *dict.fromkeys(op.writes))]
    here = [
        builder.partial(scope.label, builder.dtype(place), np.full(place.elements.shape, TILE, np.int32))
        for place in places
    ]
    kept = tuple(v is not None and v not in op.reads() for v in op.outputs)
    vertex = Vertex(
        tile=TILE,
        operation="call",
        reads=tuple(reads),
        writes=tuple(here),
        arguments=(op.target, arguments, kept, changed, *keywords.items()),
    )
    builder.compute(f"{scope.label} on one tile", [vertex])
    for place, made in zip(places, here, strict=True):
        copy(scope, place, made)
