"""Costs of attention: its products and passes, for all heads at once or for some at a time."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from popgeo import ipu
from popgeo.ipu import IpuTarget, TileExact
from popgeo.ipu.cost.attention import Attention, plan_attention
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import Plan, Profile, Validity

BOW = Machine(target=IpuTarget.bow())
SMALL = IpuTarget(name="small", num_tiles=5, memory_per_tile=2**20, clock=1e9, float32_macs=16, float16_macs=64)
GPT2 = Attention(heads=12, queries=1024, keys=1024, width=64, value_width=64, nbytes=2)


def attend(x: Tensor, **given: Any) -> Tensor:
    query, key, value = x.unbind()
    return functional.scaled_dot_product_attention(query, key, value, **given)


def cycles(plan: Plan) -> float:
    return plan.cycles(Profile.CALIBRATED)


def products(plan: Plan) -> int:
    return sum(part.flops for part in plan.parts if part.family == "matmul")


def test_products_and_scores_by_hand():
    plan = plan_attention(Attention(heads=2, queries=3, keys=5, width=4, value_width=4, nbytes=4), BOW)
    # Two products of 2 heads x 3 rows x 5 columns x 4 features, a multiplication and an addition each.
    assert products(plan) == 2 * (2 * 2 * 3 * 5 * 4)
    # Scaling 2 x 3 x 4 queries; of 30 scores the largest, subtract, exp, sum, multiply; inverse, log, add of 6 sums.
    assert plan.flops - products(plan) == 24 + 5 * 30 + 3 * 6
    # A score takes 2 bytes: 12 x 1024 x 1024 scores on 1472 tiles are 17,097 bytes per tile, and twice that backward.
    forward, backward = plan_attention(GPT2, BOW), plan_attention(GPT2, BOW, is_backward=True)
    for plan, scores in ((forward, 17_097), (backward, 34_193)):
        assert plan.temporary_bytes == scores + max(part.temporary_bytes for part in plan.parts)
    # Backward computes the scores again, then the gradients of values, probabilities, queries and keys: 5 products.
    assert products(backward) == 5 * products(forward) // 2
    assert forward.validity == Validity.ESTIMATE
    assert "published for single products only" in forward.why


@pytest.mark.parametrize("causal", [False, True])
def test_products_are_those_that_torch_counts(causal: bool):
    weight = torch.nn.Parameter(torch.randn(3, 2, 4, 6, 8))
    model = _Weights(weight, is_causal=causal)
    step = ipu.training_model(model, optimizer=torch.optim.SGD([weight], lr=0.1))
    step.compile()
    forward, backward = (c for c in cost(step.graph, BOW.target) if c.family == "attention")
    assert (forward.phase, backward.phase) == ("forward", "backward")
    shape = weight.shape[1:]
    assert products(forward.plan) == sdpa_flop_count(shape, shape, shape)
    assert products(backward.plan) == sdpa_backward_flop_count(shape, shape, shape, shape)


def test_as_dear_as_torchs_own_decomposition():
    x = torch.zeros(3, 2, 4, 256, 64)

    def apart(x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return attend(x)

    (one,) = (c.plan for c in cost(ipu.compile(attend, [x]).graph, BOW.target) if c.family == "attention")
    several = cost(ipu.compile(apart, [x]).graph, BOW.target)
    assert [c.target for c in several if c.family == "norms"] == ["aten._safe_softmax.default"]
    assert cycles(one) == pytest.approx(sum(cycles(c.plan) for c in several), rel=0.1)


@pytest.mark.parametrize("is_backward", [False, True])
def test_more_is_never_cheaper_and_half_costs_no_more(is_backward: bool):
    plain = cycles(plan_attention(GPT2, BOW, is_backward))
    for change in ({"nbytes": 4}, {"heads": 24}, {"queries": 1536}, {"keys": 1536}, {"mask": 1024 * 1024}):
        assert cycles(plan_attention(replace(GPT2, **change), BOW, is_backward)) >= plain, change


@pytest.mark.parametrize("is_backward", [False, True])
def test_scores_that_do_not_fit_are_made_in_turns(is_backward: bool):
    few = Machine(target=replace(BOW.target, num_tiles=128))
    space = 0.6 * few.target.memory_per_tile
    # 8 heads of 2048 x 2048 scores of 2 bytes are 64 MiB, and operations may take 46 of the 78 MiB of 128 tiles.
    plan = plan_attention(replace(GPT2, heads=8, queries=2048, keys=2048), few, is_backward)
    assert plan.split["heads"] * plan.split["serial"] == 8
    assert plan.split["serial"] > 1
    assert plan.temporary_bytes <= space
    assert plan.flops == sum(part.flops for part in plan.parts) * plan.split["serial"]
    # One head of 8192 x 8192 does not fit either, so its rows take turns.
    rows = plan_attention(replace(GPT2, heads=1, queries=8192, keys=8192), few, is_backward)
    assert rows.split["heads"] == 1
    assert rows.split["serial"] > 1
    assert rows.temporary_bytes <= space


class _Weights(torch.nn.Module):
    def __init__(self, weight: torch.nn.Parameter, **given: Any) -> None:
        super().__init__()
        self.weight, self.given = weight, given

    def forward(self) -> Tensor:
        return attend(self.weight, **self.given).sum()


class _Attending(torch.nn.Module):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.linear, self.given = torch.nn.Linear(8, 24), given

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = attend(self.linear(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4), **self.given)
        return made, made.square().sum()


@pytest.mark.parametrize("given", [{"is_causal": True}, {"attn_mask": torch.randn(2, 1, 5, 5)}], ids=["causal", "mask"])
def test_on_tiles_as_in_the_engine(given: dict[str, Any]):
    model, x = _Attending(**given), torch.randn(2, 5, 8)
    step = ipu.training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    step.compile(x)
    exact = TileExact(step, SMALL)
    torch.testing.assert_close(exact(x), step(x))
    assert exact.program.fallbacks == ()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(exact.state_dict()[name], parameter.detach())


def test_heads_that_share_keys_run_on_one_tile_and_still_agree():
    x = torch.randn(2, 4, 5, 8)
    shared = ipu.compile(lambda x: functional.scaled_dot_product_attention(x, x[:, :2], x[:, :2], enable_gqa=True), [x])
    exact = TileExact(shared, SMALL)
    torch.testing.assert_close(exact(x), shared(x))
    assert exact.program.fallbacks == ("aten._scaled_dot_product_flash_attention_for_cpu.default",)
