"""Lowers interactions and their plans to native calls."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph, substitute
from popgeo.engine.fuse.plan_interactions import BACKWARD, FORWARD, PLAN, SECOND
from popgeo.engine.program.native_call import LOWERINGS, NativeCall
from popgeo.ops import interaction_call
from popgeo.ops.interaction_call import InteractionCall
from popgeo.ops.interaction_ops import NUM_ARGUMENTS, pack_backward, pack_forward, pack_second

_NUM_THREADS = 24  # of interaction.h: the word with the number of threads


def lower_plan(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall | None:
    """Return the native call that plans the interactions of some edges; None if no kernel serves them."""
    src, dst, r, cutoff, *sizes = substitute(op.args, tensors.__getitem__)
    plan, weights = (tensors[v] for v in op.makes())
    if not interaction_call.is_served() or not all(map(_is_read_in_place, (src, dst, r))):
        return None
    packed = interaction_call.pack_plan(src, dst, r, cutoff, sizes, plan, weights)
    return NativeCall(function="popgeo_interaction_plan", words=_words(packed))


def _lower(pack: Callable[..., bytes], graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall | None:
    results = [tensors[v] for v in op.makes()]
    if not results or results[-1].dtype is not torch.uint8:  # `plan_interactions` gave it no working memory
        return None
    args = substitute(op.args, tensors.__getitem__)
    packed = pack(InteractionCall(*args[:NUM_ARGUMENTS]), results, 1, *args[NUM_ARGUMENTS:])
    return NativeCall(function="popgeo_interaction", words=_words(packed), num_threads=_NUM_THREADS)


def _is_read_in_place(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.dtype in (torch.int64, torch.float32, torch.float64)


def _words(packed: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(packed), np.int64)


LOWERINGS[PLAN] = lower_plan
LOWERINGS[FORWARD] = partial(_lower, pack_forward)
LOWERINGS[BACKWARD] = partial(_lower, pack_backward)
LOWERINGS[SECOND] = partial(_lower, pack_second)
