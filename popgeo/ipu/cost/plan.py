"""How an operation is divided over the tiles, what each of its supersteps costs, and which family it belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Activity(str, Enum):
    """What the slowest tile spends a superstep on."""

    COMPUTE = "compute"
    EXCHANGE = "exchange"
    SYNC = "sync"
    HOST = "host"


class Profile(str, Enum):
    """Which figures a report adds up."""

    IDEAL = "ideal"
    CALIBRATED = "calibrated"


class Validity(str, Enum):
    """How far a cost can be trusted.

    Attributes:
        VALIDATED: Inside the range of sizes at which the formula was checked against published measurements.
        EXTRAPOLATED: The formula was checked, but on smaller or larger sizes.
        ESTIMATE: No published measurement of this kind of operation is known.
    """

    VALIDATED = "validated"
    EXTRAPOLATED = "extrapolated"
    ESTIMATE = "estimate"


@dataclass(frozen=True, kw_only=True)
class Superstep:
    """One bulk-synchronous step of an operation.

    Attributes:
        name: What it does, such as `slice rows` or `add partial sums`.
        activity: What the slowest tile spends it on.
        ideal: Cycles of the slowest tile by the formulas alone.
        calibrated: The same with the constants fitted to published measurements.
        mean: Ideal cycles averaged over all tiles; with `ideal` it tells how even the work lies.
        tiles: Tiles at work.
        workers: Workers occupied on a tile at work, on average.
        bytes_in: Most bytes that any tile receives.
        bytes_out: Most bytes that any tile sends.
        bytes_total: Bytes that all tiles receive together.
        fragments: Most separate pieces that any tile receives.
    """

    name: str
    activity: Activity
    ideal: float
    calibrated: float
    mean: float = 0.0
    tiles: int = 0
    workers: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_total: int = 0
    fragments: int = 0

    def cycles(self, profile: Profile) -> float:
        """Cycles of the slowest tile."""
        return self.calibrated if profile == Profile.CALIBRATED else self.ideal


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chosen division of one operation and its cost.

    Attributes:
        family: What kind of work it is, such as `gather` or `matmul`; that of the operation in `FAMILY_OF`.
        split: Into how many parts each dimension of the work is cut, such as `{"rows": 4, "columns": 16}`.
        supersteps: What it costs, in order.
        temporary_bytes: Most bytes of any tile while the operation runs, beyond its arguments and results.
        flops: Floating-point operations of all tiles, a multiply-accumulate counted as two.
        considered: Divisions that were compared.
        validity: How far the cost can be trusted.
        why: The reason for an estimate or an extrapolation, in words.
        parts: The plans that it consists of, in order, where the machine runs an operation as several.
    """

    family: str
    split: Mapping[str, int] = field(default_factory=dict)
    supersteps: tuple[Superstep, ...] = ()
    temporary_bytes: int = 0
    flops: int = 0
    considered: int = 1
    validity: Validity = Validity.ESTIMATE
    why: str = ""
    parts: "tuple[Plan, ...]" = ()

    def cycles(self, profile: Profile) -> float:
        """Cycles of all supersteps."""
        return sum(step.cycles(profile) for step in self.supersteps)


@dataclass(frozen=True, kw_only=True)
class OpCost:
    """An operation of the captured program with its plan.

    Attributes:
        target: Its name in torch.
        phase: `forward`, `backward` or `update`; `accumulate` adds up gradients of several micro-batches; `host` moves
            data in and out.
        module: Dotted name of the submodule that asked for it.
        source: The model's line that asked for it.
        shapes: Shapes of its tensors, arguments first, as a report shows them.
        plan: How it is divided and what it costs.
        known: False where no rule knows the operation and a conservative one stood in.
        count: How often one step runs it: once a micro-batch, or once an update.
        bytes: Bytes that it reads and writes, had each tensor its own memory; those of a broadcast dimension once.
    """

    target: str
    phase: str
    module: str = ""
    source: str = ""
    shapes: str = ""
    plan: Plan
    known: bool = True
    count: int = 1
    bytes: int = 0

    @property
    def family(self) -> str:
        """What kind of work it is."""
        return self.plan.family

    @property
    def flops(self) -> int:
        """Floating-point operations of one run, a multiply-accumulate counted as two."""
        return self.plan.flops


# Every operation that has a cost, by family; `aten.` is left out. A family is named as its file in `cost/` and, where
# there is one, in `tiles/lower/`; views cost nothing and have no steps.
_OPERATIONS = {
    "gather": ("index_select embedding index _unsafe_index gather popgeo.gather popgeo.gather_csr"),
    "scatter": (
        "index_add index_copy index_reduce scatter_add scatter_reduce scatter index_put _index_put_impl "
        "_unsafe_index_put embedding_dense_backward popgeo.scatter_sum popgeo.scatter_mul popgeo.scatter_max "
        "popgeo.scatter_min popgeo.segment_sum"
    ),
    "matmul": ("mm bmm mv dot vdot matmul addmm addmv baddbmm linear"),
    "elementwise": (
        "add sub rsub mul _foreach_add _foreach_mul _foreach_sub neg relu abs square sign sgn positive ceil floor "
        "round trunc frac maximum minimum fmax fmin clamp clamp_min clamp_max hardtanh relu6 leaky_relu threshold "
        "threshold_backward leaky_relu_backward hardtanh_backward hardswish hardswish_backward hardsigmoid "
        "hardsigmoid_backward hardshrink hardshrink_backward softshrink softshrink_backward glu glu_backward xlogy "
        "logaddexp _prelu_kernel _prelu_kernel_backward div true_divide floor_divide _foreach_div remainder "
        "fmod addcmul _foreach_addcmul tanh_backward addcdiv _foreach_addcdiv lerp _foreach_lerp exp exp2 expm1 log "
        "log2 log10 tanh sigmoid logit log1p sqrt _foreach_sqrt rsqrt reciprocal erf erfc gelu gelu_backward softplus "
        "log_sigmoid_forward popgeo.shifted_softplus softplus_backward log_sigmoid_backward "
        "popgeo.shifted_softplus_backward mish silu silu_backward sigmoid_backward elu elu_backward celu selu cos sin "
        "tan acos asin atan atan2 sinh cosh sinc eq ne lt le gt ge where masked_fill isnan isinf isfinite signbit "
        "nan_to_num copysign heaviside logical_and logical_or logical_not logical_xor bitwise_and bitwise_or "
        "bitwise_not bitwise_xor bernoulli uniform normal rand randn rand_like randn_like randint random exponential "
        "normal_functional randint_like native_dropout native_dropout_backward pow _to_copy to "
        "prims.convert_element_type"
    ),
    "reduce": (
        "sum mean prod amax amin max min aminmax argmax argmin any all norm linalg_vector_norm var std var_mean "
        "std_mean logsumexp count_nonzero nansum median mode cumsum cumprod cummax cummin logcumsumexp"
    ),
    "norms": (
        "_softmax _safe_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data native_layer_norm "
        "native_layer_norm_backward native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
        "_batch_norm_with_update cudnn_batch_norm native_batch_norm_backward batch_norm_backward "
        "native_group_norm native_group_norm_backward"
    ),
    "attention": ("_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"),
    "convolution": ("convolution convolution_backward"),
    "pooling": (
        "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d "
        "_adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward upsample_nearest1d "
        "upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d "
        "upsample_bilinear2d_backward"
    ),
    "movement": (
        "clone copy contiguous cat concat stack hstack vstack repeat repeat_interleave tile flip roll rot90 "
        "popgeo.identity_loss popgeo.all_to_all constant_pad_nd index_fill tril triu diag_embed view_copy "
        "_reshape_copy expand_copy slice_copy "
        "im2col _foreach_copy pixel_shuffle pixel_unshuffle channel_shuffle "
        "slice_backward select_backward slice_scatter select_scatter "
        "diagonal_backward as_strided_scatter unfold_backward diagonal_scatter masked_scatter zeros ones full "
        "new_zeros new_ones new_full zeros_like ones_like full_like fill zero arange scalar_tensor linspace eye "
        "tril_indices triu_indices popgeo.print_tensor"
    ),
    "view": (
        "view _unsafe_view reshape _reshape_alias view_as expand expand_as t transpose permute numpy_T mT movedim "
        "select slice narrow unsqueeze squeeze flatten unflatten split split_with_sizes unsafe_split chunk unbind "
        "diagonal as_strided alias detach lift lift_fresh view_as_real view_as_complex unfold empty empty_like "
        "new_empty empty_strided new_empty_strided empty_permuted sym_size _local_scalar_dense resize set"
    ),
    "sorting": ("topk sort argsort msort kthvalue searchsorted bucketize"),
    "distances": ("_cdist_forward _euclidean_dist cdist _cdist_backward"),
    "losses": (
        "binary_cross_entropy binary_cross_entropy_with_logits l1_loss mse_loss smooth_l1_loss huber_loss kl_div "
        "binary_cross_entropy_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward nll_loss_forward "
        "nll_loss2d_forward nll_loss_backward nll_loss2d_backward"
    ),
    "fused": ("popgeo.cfconv popgeo.cfconv_backward _fused_adam _fused_adamw _fused_adagrad _fused_sgd"),
    "control": ("popgeo.for_loop popgeo.cond"),
}
FAMILY_OF: Mapping[str, str] = {
    name if "." in name else f"aten.{name}": family for family, names in _OPERATIONS.items() for name in names.split()
}
"""The family of each operation that has a cost: the one table, by the name that `name_of` gives."""


def name_of(target: str) -> str:
    """A target without its overload and without the underscore that says it works in place.

    Example:
        >>> name_of("aten.index_add_.default")
        'aten.index_add'
    """
    return target.rpartition(".")[0].rstrip("_")


def family_of(target: str) -> str:
    """What kind of work an operation is; `unknown` where no rule knows it.

    Example:
        >>> family_of("aten.addmm.default"), family_of("aten.square.default"), family_of("aten.linalg_inv.default")
        ('matmul', 'elementwise', 'unknown')
    """
    return FAMILY_OF.get(name_of(target), "unknown")
