"""Which lowering an operation takes: that of its family, else one tile does it all."""

import numpy as np

from popgeo.capture.op_graph import Op
from popgeo.ipu.cost.plan import family_of
from popgeo.ipu.tiles.lower import (
    attention,
    control,
    convolution,
    distances,
    elementwise,
    fused,
    gather,
    matmul,
    movement,
    norms,
    pooling,
    reduce,
    scatter,
    sorting,
)
from popgeo.ipu.tiles.lower.builder import Lowering, Scope
from popgeo.ipu.tiles.lower.elementwise import operands
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.steps import Operand, Vertex

_OF_FAMILY = {
    "gather": gather, "scatter": scatter, "matmul": matmul, "elementwise": elementwise, "reduce": reduce,
    "norms": norms, "movement": movement, "view": movement, "sorting": sorting, "distances": distances,
    "losses": elementwise, "fused": fused, "control": control, "attention": attention,
    "convolution": convolution, "pooling": pooling,
    "unknown": movement,
}  # fmt: skip
_RUN_ON_ONE_TILE = {
    "gather": "_unsafe_index",
    "scatter": "index_copy index_reduce _index_put_impl _unsafe_index_put",
    "matmul": "vdot matmul addmv linear",
    "elementwise": "_foreach_add _foreach_mul _foreach_sub floor_divide _foreach_div _foreach_addcmul "
    "_foreach_addcdiv _foreach_lerp _foreach_sqrt log_sigmoid_forward log_sigmoid_backward bernoulli uniform normal "
    "rand randn rand_like randn_like randint random exponential normal_functional randint_like native_dropout to "
    "_prelu_kernel_backward glu glu_backward",
    "reduce": "count_nonzero nansum mode",
    "norms": "_native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update cudnn_batch_norm "
    "batch_norm_backward native_group_norm native_group_norm_backward",
    "movement": "concat hstack vstack repeat_interleave tile rot90 index_fill diag_embed _reshape_copy im2col "
    "_foreach_copy pixel_shuffle pixel_unshuffle channel_shuffle "
    "as_strided_scatter unfold_backward diagonal_scatter masked_scatter linspace eye "
    "tril_indices triu_indices popgeo.all_to_all",
    "view": "lift unsafe_split empty_permuted sym_size _local_scalar_dense resize set",
    "sorting": "msort searchsorted bucketize",
    "distances": "cdist",
    "losses": "binary_cross_entropy binary_cross_entropy_with_logits l1_loss mse_loss smooth_l1_loss huber_loss "
    "kl_div binary_cross_entropy_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward "
    "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward",
    "fused": "_fused_adam _fused_adamw _fused_adagrad _fused_sgd",
}
FALLBACKS = frozenset(
    name if "." in name else f"aten.{name}" for names in _RUN_ON_ONE_TILE.values() for name in names.split()
)
"""Operations that have a cost and no lowering: `TileExact` runs them on one tile."""

TILE = 0


def lower(scope: Scope, op: Op) -> bool:
    """Adds an operation's steps; False where no lowering knows it and it runs on one tile."""
    known = lowering_of(scope, op)
    (known or _on_one_tile)(scope, op)
    return known is not None


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """How an operation is divided over the tiles; None where its family cannot do it."""
    return _OF_FAMILY[family_of(op.target)].lowering_of(scope, op)


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
