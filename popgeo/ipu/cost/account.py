"""Counts operations, floating-point operations and bytes of a graph, by family."""

import math

import torch

from popgeo.capture.op_graph import Op, OpGraph, Ref, overload
from popgeo.ipu.report.figures import Family

_FAMILIES = {
    "matmul": "mm addmm bmm baddbmm matmul linear mv dot _cdist_forward _cdist_backward",
    "gather": "index_select gather embedding index take_along_dim",
    "scatter": "index_add scatter_add scatter_reduce scatter index_put index_copy "
    "embedding_dense_backward segment_reduce",
    "reduce": "sum mean amax amin max min var var_mean std prod norm linalg_vector_norm argmax cumsum logsumexp "
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data",
    "norm": "native_batch_norm native_batch_norm_backward native_layer_norm native_layer_norm_backward",
    "sort": "topk sort argsort",
    "random": "bernoulli_ bernoulli native_dropout rand randn uniform_ normal_ rand_like randn_like",
    "copy": "clone copy_ _to_copy cat stack fill_ zero_ zeros ones full empty zeros_like ones_like "
    "full_like empty_like new_zeros new_full new_empty arange scalar_tensor slice_backward "
    "select_backward constant_pad_nd repeat",
}
_FAMILY_OF = {name: family for family, names in _FAMILIES.items() for name in names.split()}


def account(graph: OpGraph) -> dict[str, Family]:
    """Operations, FLOPs and bytes of each family; views cost nothing and are left out."""
    families: dict[str, Family] = {}
    for op in graph.ops:
        if is_view(graph, op):
            continue
        name = family(op)
        families[name] = families.get(name, Family()) + Family(ops=1, flops=flops(graph, op), bytes=_bytes(graph, op))
    return families


def family(op: Op) -> str:
    """What kind of work an operation is.

    Example:
        >>> family(Op(target="aten.addmm.default", args=(), outputs=()))
        'matmul'
        >>> family(Op(target="popgeo.shifted_softplus_backward.default", args=(), outputs=()))
        'elementwise'
    """
    namespace, name, _ = op.target.split(".")
    if namespace == "popgeo":
        named = next((f for f in ("cfconv", "gather", "scatter") if f in name), None)
        return named or ("elementwise" if "softplus" in name else "popgeo")
    known = _FAMILY_OF.get(name) or _FAMILY_OF.get(name.removesuffix("_"))
    if known is None and torch.Tag.pointwise not in overload(op.target).tags:  # type: ignore[attr-defined]
        return "elementwise" if "backward" in name else "other"
    return known or "elementwise"


def is_view(graph: OpGraph, op: Op) -> bool:
    """Whether an operation only looks at memory that another value owns."""
    owned = {graph.values[v].storage for v in op.reads()}
    return not op.writes and bool(op.outputs) and all(v is None or graph.values[v].storage in owned for v in op.outputs)


def flops(graph: OpGraph, op: Op) -> int:
    """Floating-point operations of an operation; a multiply-accumulate counts as two, gathers and copies as none."""
    kind = family(op)
    made = sum(graph.values[v].numel for v in op.outputs if v is not None)
    if kind == "matmul":
        return _matmul_flops(graph, op, made)
    if kind in ("gather", "copy", "random"):
        return 0
    if kind in ("reduce", "norm", "scatter", "sort", "cfconv"):
        per_element = 2 if kind == "cfconv" else 1
        return per_element * max([made, *(graph.values[v].numel for v in op.reads())])
    return made


def _matmul_flops(graph: OpGraph, op: Op, made: int) -> int:
    operands = [arg for arg in op.args if isinstance(arg, Ref)]
    left = graph.values[operands[1 if "add" in op.target.split(".")[1] else 0].value]
    return 2 * made * (left.shape[-1] if left.shape else 1)


def _bytes(graph: OpGraph, op: Op) -> int:
    read = sum(_touched(graph, v) for v in op.reads())
    return read + sum(graph.values[v].nbytes for v in (*op.outputs, *op.writes) if v is not None)


def _touched(graph: OpGraph, number: int) -> int:
    """Bytes of a value, those of a broadcast dimension once."""
    value = graph.values[number]
    sizes = [size for size, step in zip(value.shape, value.stride, strict=True) if step]
    return math.prod(sizes) * value.dtype.itemsize
