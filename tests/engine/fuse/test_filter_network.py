"""Which operations are taken for Gaussians of distances, pattern by pattern."""

import math

import pytest
import torch

from popgeo.capture.capture import bind, capture
from popgeo.engine.fuse.def_use import DefUse
from popgeo.engine.fuse.filter_network import match_gaussians

DISTANCES, CENTRES = torch.ones(5), torch.linspace(0, 3, 4)


def found(function, *inputs):
    """The match of a function's result, and the numbers of its inputs."""
    graph = capture(function, bind(function, *(inputs or (DISTANCES, CENTRES)))).graph
    return match_gaussians(DefUse(graph), graph.outputs[0]), graph


def gaussians(distances, centres):
    return torch.exp(-1.5 * (distances.unsqueeze(1) - centres).pow(2))


@pytest.mark.parametrize(
    "function",
    [
        gaussians,
        lambda d, c: torch.exp(-1.5 * (d[:, None] - c).square()),
        lambda d, c: torch.exp((-1.5 * (d[:, None] - c).pow(2)).clamp(-60.0)),
        lambda d, c: torch.threshold(gaussians(d, c), math.exp(-60), 0.0),
        lambda d, c: torch.threshold(gaussians(d, c), math.exp(-59), 0.0),
        lambda d, c: torch.exp((d[:, None] - c.view(1, 4)).pow(2.0) * -1.5),
    ],
)
def test_gaussians_are_known_however_they_are_written(function):
    match, graph = found(function)
    assert match is not None
    assert match.width == -1.5
    assert graph.values[match.distances].shape == (5, 1)
    assert graph.values[match.centres].shape in ((4,), (1, 4))


def test_squares_have_a_name_of_their_own_in_inference_mode():
    with torch.inference_mode():
        match, graph = found(lambda d, c: torch.exp(-1.5 * (d[:, None] - c).square()), DISTANCES, CENTRES)
    assert "aten.square.default" in [op.target for op in graph.ops]
    assert match is not None


def test_distances_and_centres_are_the_values_that_are_subtracted():
    match, graph = found(lambda d, c: torch.exp(-1.5 * (d - c).pow(2)), DISTANCES.view(5, 1), CENTRES)
    assert match is not None
    assert (match.distances, match.centres) == tuple(graph.inputs.values()) == (0, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda d, c: torch.exp(1.5 * (d[:, None] - c).pow(2)),  # they grow
        lambda d, c: torch.exp(0.0 * (d[:, None] - c).pow(2)),
        lambda d, c: torch.exp(-2 * (d[:, None] - c).pow(2)),  # as a whole number, which no model has
        lambda d, c: torch.exp(-1.5 * (d[:, None] - 0.5).pow(2)),
        lambda d, c: torch.exp(-1.5 * (d[:, None] - c)),
        lambda d, c: torch.exp((d[:, None] - c).pow(2)),
        lambda d, c: torch.exp(-1.5 * (d[:, None].expand(5, 4).contiguous() - c).pow(2)),
        lambda d, c: torch.exp(-1.5 * (d[:, None] - c).pow(3)),
        lambda d, c: torch.exp(-1.5 * torch.sub(d[:, None], c, alpha=2).pow(2)),
        lambda d, c: torch.exp(-1.5 * (d[:, None] + c).pow(2)),
        lambda d, c: torch.exp(-1.5 * (d[:, None] - c).abs()),
        lambda d, c: torch.exp(-1.5 * (c - d[:, None]).pow(2)),  # centres and distances have changed places
        lambda d, c: torch.exp(-1.5 * (d[:4] - c).pow(2).expand(5, 4)),
        lambda d, c: torch.exp(-1.5 * (d[:, None] - c[:1]).pow(2).expand(5, 4)),
        lambda d, c: torch.exp((-1.5 * (d[:, None] - c).pow(2)).clamp(-20.0)),  # a tail that the kernel would not have
        lambda d, c: torch.exp((-1.5 * (d[:, None] - c).pow(2)).clamp(-60.0, -1.0)),
        lambda d, c: torch.threshold(gaussians(d, c), math.exp(-20), 0.0),
        lambda d, c: torch.threshold(gaussians(d, c), math.exp(-58.5), 0.0),  # just beyond rounding
        lambda d, c: torch.threshold(gaussians(d, c), math.exp(-60), 1.0),
        lambda d, c: torch.sin(-1.5 * (d[:, None] - c).pow(2)),
        lambda d, c: torch.exp((d[:, None] - c).pow(2) * d[:, None]),
    ],
)
def test_what_only_looks_like_gaussians_is_left_alone(function):
    assert found(function)[0] is None


def test_centres_in_another_type_or_order_of_memory_are_left_alone():
    assert found(gaussians, DISTANCES.double(), CENTRES.double())[0] is None
    assert found(lambda d, c: gaussians(d, c[::2]), DISTANCES, torch.linspace(0, 3, 8))[0] is None
    assert found(lambda d, c: gaussians(d[::2], c), torch.ones(10), CENTRES)[0] is None
