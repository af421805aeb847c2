"""Model, arguments and choices in; a compiled step out."""

import builtins
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from tqdm import tqdm

from popgeo.capture import fingerprint, step_cache
from popgeo.capture.capture import capture
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.join_gathers import join_gathers
from popgeo.capture.op_graph import Input, OpGraph
from popgeo.capture.passes import drop_unused, merge_equal_values
from popgeo.capture.pytree import liken
from popgeo.capture.row_indexing import use_row_indexing


def capture_step(
    function: Callable[..., Any],
    arguments: Sequence[tuple[str, Tensor]],
    call: Callable[[Sequence[Tensor]], Any],
    *,
    trained: Sequence[str] = (),
    loss_scaling: float = 1.0,
    cache_dir: Any = None,
    choices: Sequence[object] = (),
    graph_data: Sequence[Any] = (),
    check: Callable[[CapturedStep], object] | None = None,
    show_progress: bool = False,
) -> CapturedStep:
    """Captures a function and runs the passes over it, or takes both from the cache.

    Args:
        function: A module or any function of tensors.
        arguments: The tensors it takes, by name.
        call: Calls it with such tensors.
        trained: Parameters to differentiate the loss by.
        loss_scaling: Gradient of the loss to start from.
        cache_dir: Folder that keeps steps of modules; None for none.
        choices: What else the step depends on.
        graph_data: The graph data among the arguments, which results may be like.
        check: Is called with a new step and may refuse it by raising; what the cache holds has passed it.
        show_progress: Show a bar, at a terminal or in a notebook, when it takes longer than a second.
    """
    key = _key(function, arguments, trained, loss_scaling, choices) if cache_dir is not None else None
    known = step_cache.load(cache_dir, key, graph_data) if key is not None else None
    if known is not None:
        return known
    seen = show_progress and (sys.stderr.isatty() or hasattr(builtins, "__IPYTHON__"))
    with tqdm(desc="compiling", unit=" operations", delay=1, disable=not seen) as bar:
        captured = capture(
            function, arguments, call, trained=trained, loss_scaling=loss_scaling, on_operation=bar.update
        )
    graph, relied_on = optimize(captured.graph)
    step = CapturedStep(
        graph=graph,
        result=liken(captured.result, graph_data),
        trained=captured.trained,
        row_indices=relied_on,
        captured_ops=len(captured.graph.ops),
        files=captured.files,
    )
    if check is not None:
        check(step)
    if key is not None:
        step_cache.save(cache_dir, key, step)
    return step


def optimize(graph: OpGraph) -> tuple[OpGraph, frozenset[Input]]:
    """A graph that gives the same values with fewer operations, and the inputs that must not be negative for it."""
    graph = drop_unused(merge_equal_values(graph))
    graph, relied_on = use_row_indexing(graph)
    return drop_unused(join_gathers(merge_equal_values(graph))), relied_on


def _key(
    function: Callable[..., Any],
    arguments: Sequence[tuple[str, Tensor]],
    trained: Sequence[str],
    loss_scaling: float,
    choices: Sequence[object],
) -> str | None:
    if not isinstance(function, nn.Module):
        return None
    signature = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in arguments]
    try:
        return fingerprint.fingerprint(function, signature, list(trained), loss_scaling, *choices)
    except fingerprint.Unknown:
        return None
