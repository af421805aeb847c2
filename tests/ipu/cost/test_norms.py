"""Costs of softmax, norms, gelu, one-hot losses and the gradient of an embedding."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from popgeo import ipu
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.loops import LOOPS, elementwise_vertex
from popgeo.ipu.cost.norms import SOFTMAX, plan_groups
from popgeo.ipu.cost.plan import OpCost, Plan, Profile
from popgeo.ipu.cost.scatter import plan_embedding_gradient

BOW = Machine(target=IpuTarget.bow())


def cycles(plan: Plan) -> float:
    return plan.cycles(Profile.CALIBRATED)


def compute_steps(plan: Plan) -> list[str]:
    return [step.name for step in plan.supersteps if step.activity == "compute"]


def backward_of(module: nn.Module, *shape: int) -> OpCost:
    step = ipu.training_model(_Loss(module), optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    step.compile(torch.randn(shape))
    (found,) = (c for c in cost(step.graph, BOW.target) if c.family == "norms" and c.phase == "backward")
    return found


class _Loss(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x).square().sum()


@pytest.mark.parametrize(
    ("loop", "width", "expected"),
    [
        # 600 elements are 100 for each worker: 25 vectors of 4 float16 or 50 of 2 float32, of 12 and 20 cycles, and
        # 21 and 29 for the gradient.
        ("gelu", 2, 6 * (26 + 25 * 12) + 9),
        ("gelu", 4, 6 * (26 + 50 * 20) + 9),
        ("gelu gradient", 2, 6 * (29 + 25 * 21) + 9),
        ("gelu gradient", 4, 6 * (29 + 50 * 29) + 9),
    ],
)
def test_gelu_takes_the_instructions_of_its_vertex(loop: str, width: int, expected: int):
    assert elementwise_vertex(600, LOOPS[loop], width, BOW.target) == expected


def test_gelu_has_its_own_loop_forward_and_backward():
    step = ipu.compile(lambda x: torch.ops.aten.gelu_backward(nn.functional.gelu(x), x), [torch.ones(64, 64)])
    forward, backward = cost(step.graph, BOW.target)
    # 32 float32 a tile, 6 for each worker: 3 vectors.
    assert forward.plan.supersteps[-1].ideal == 82 + 6 * (26 + 3 * 20) + 9
    assert backward.plan.supersteps[-1].ideal == 82 + 6 * (29 + 3 * 29) + 9
    assert (forward.flops, backward.flops) == (8 * 4096, 15 * 4096)


def test_softmax_inverts_sums_rather_than_dividing_elements():
    plan = plan_groups(SOFTMAX, 10, 640, 4, BOW)
    passes = ["reduce on each tile", "subtract", "exp", "reduce on each tile", "inverse of sums", "multiply"]
    assert [name for name in compute_steps(plan) if name != "combine partial results"] == passes
    assert plan.flops == 5 * 640 + 10
    (logarithm,) = cost(ipu.compile(lambda x: x.log_softmax(1), [torch.ones(10, 64)]).graph, BOW.target)
    assert logarithm.flops == 5 * 640 + 10
    assert "log of sums" in compute_steps(logarithm.plan)


def test_more_is_never_cheaper_and_half_costs_no_more():
    plain = cycles(plan_groups(SOFTMAX, 4096, 4096 * 128, 2, BOW))
    for groups, elements, width in ((8192, 8192 * 128, 2), (4096, 4096 * 256, 2), (4096, 4096 * 128, 4)):
        assert cycles(plan_groups(SOFTMAX, groups, elements, width, BOW)) >= plain


def test_a_layer_norm_without_weights_does_less():
    (plain,) = cost(ipu.compile(nn.LayerNorm(64, elementwise_affine=False), [torch.ones(32, 64)]).graph, BOW.target)
    (whole,) = cost(ipu.compile(nn.LayerNorm(64), [torch.ones(32, 64)]).graph, BOW.target)
    # Sum, sum of squares, subtract and multiply on all elements, inverse deviations of 32 rows; then weight and bias.
    assert plain.flops == 4 * 2048 + 32
    assert whole.flops == plain.flops + 2 * 2048


def test_norms_whiten_anew_backward():
    layer = backward_of(nn.LayerNorm(64), 32, 64)
    # Whitening 2, weight 1, then of rows 7, then for weight and bias a product and two sums: 13 passes of 2,048.
    assert layer.flops == 13 * 2048
    batch = backward_of(nn.BatchNorm1d(64), 32, 64)
    assert batch.flops == 10 * 2048
    group = backward_of(nn.GroupNorm(4, 64), 32, 64)
    assert group.flops == layer.flops


def test_a_loss_of_labels_marks_them_row_by_row():
    log_probabilities, labels = torch.zeros(1000, 50), torch.zeros(1000, dtype=torch.long)
    (loss,) = cost(ipu.compile(nn.functional.nll_loss, [log_probabilities, labels]).graph, BOW.target)
    (marked,) = (step for step in loss.plan.supersteps if step.name == "mark targets")
    # A tile has 34 of 50,000 numbers, so parts of two rows at most: 100 cycles each.
    assert marked.ideal == 82 + 2 * 100
    assert compute_steps(loss.plan)[:3] == ["fill", "mark targets", "multiply"]
    assert loss.known


def test_the_gradient_of_a_large_embedding_takes_turns_over_columns():
    fits = plan_embedding_gradient(5000, 256, 128, 4, BOW)
    assert fits.supersteps[-1].name != "loop over columns"
    small = replace(BOW, target=replace(BOW.target, memory_per_tile=10_000))
    plan = plan_embedding_gradient(5000, 256, 128, 4, small)
    # The table takes 3,479 bytes of each tile, and an operation may use 85 % of its memory less that, at most 60 %.
    assert plan.temporary_bytes <= 8_500 - 3_479 < fits.temporary_bytes
    assert plan.supersteps[-1].name == "loop over columns"
    assert plan.flops == fits.flops == 128 * 256
    assert cycles(plan) > cycles(fits)
