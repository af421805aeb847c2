"""Helpers for tests of joined operations: graphs of functions, their chains, and a comparison with plain torch."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import popgeo.ops.shifted_softplus  # noqa: F401  registers its operations with torch
from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import OpGraph
from popgeo.engine.fuse.chain import CHAIN, EXACT
from popgeo.engine.fuse.join_chains import join_chains
from popgeo.engine.graph_runner import GraphRunner
from popgeo.native import library

native = pytest.mark.skipif(not library.is_available(), reason="joined operations need the compiled library")
SEED = torch.Generator().manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=SEED)


def graph_of(function: Callable[..., Any], *inputs: Tensor) -> OpGraph:
    return capture(function, bind(function, *inputs)).graph


def chains(graph: OpGraph) -> list[int]:
    """Return the number of operations of each chain, in order, without single operations of exact results."""
    found = [op.args[0] for op in join_chains(graph).ops if op.target == CHAIN]
    return [c.num_ops for c in found if c.num_ops > 1 or any(step.code not in EXACT for step in c.steps)]


def assert_runs(function: Callable[..., Any], *inputs: Tensor, joined: Sequence[int]) -> None:
    """Check the chains of a function, and that its results and its changes equal plain torch's."""
    graph = graph_of(function, *(x.clone() for x in inputs))
    assert chains(graph) == list(joined)
    expected = function(*(own := [x.clone() for x in inputs]))
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    given = [x.clone() for x in inputs]
    results = GraphRunner(graph, {}).run(given)
    for result, want in zip(results[: len(expected)], expected, strict=True):
        assert_close(result, want, rtol=1e-5, atol=1e-5)
    for result, want in zip(
        results[len(expected) :], [y for y, x in zip(own, inputs, strict=True) if not torch.equal(y, x)], strict=True
    ):
        assert_close(result, want, rtol=1e-5, atol=1e-5)


X, Y, Z, SQUARE, OTHER = draw(4, 6), draw(4, 6), draw(4, 6), draw(5, 5), draw(5, 5)
DEEP, DEEPER = draw(3, 4, 5), draw(3, 4, 5)
