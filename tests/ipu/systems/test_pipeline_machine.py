"""The machine's part in a pipeline: memory shares, serialized layers, streaming memory, the host and replicas."""

import pytest
import torch
from torch import nn

from popgeo import ipu
from popgeo.ipu.cost.plan import Profile
from popgeo.ipu.report.timeline import turns_of

WIDTH, ROWS, OUTPUTS = 32, 8, 512


class Layers(nn.Module):
    """Four equal layers, a wide head, and a loss."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, OUTPUTS, bias=False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return self.head(x).square().mean()


def plan(*, width=WIDTH, rows=ROWS, stages=2, options=None, **choices):
    with torch.device("meta"):
        model = Layers(width)
    chosen = options or ipu.Options(gradient_accumulation=8)
    optimizer = torch.optim.Adam(model.parameters())
    return ipu.pipeline(model, [torch.zeros(rows, width)], chosen, optimizer, stages=stages, **choices)


@pytest.fixture(scope="module")
def plain():
    return plan()


def test_without_being_told_a_pipeline_keeps_step(plain):
    assert plain.schedule.value == "lock_step"
    assert list(plain.turns) == turns_of(plain.tasks, 2, 8)
    assert plain.turns[-1].end + max(plain.update) == plain.cycles
    assert plain.replan(schedule="1f1b").turns == ()


def test_each_message_is_told_with_its_ends(plain):
    (forward,), (backward,) = plain.stages[1].transfers, plain.stages[0].transfers
    assert (forward.sender, forward.receiver, forward.backward) == (0, 1, False)
    assert (backward.sender, backward.receiver, backward.backward) == (1, 0, True)
    assert forward.nbytes == backward.nbytes == 4 * ROWS * WIDTH
    assert forward.cycles == plain.stages[1].receive_forward
    target = plain.target
    expected = (target.link_seconds + forward.nbytes / target.link_bytes_per_second) * target.clock
    assert forward.cycles == pytest.approx(expected)


def test_the_first_stage_waits_for_the_host_unless_other_tiles_do(plain):
    target = plain.target
    nbytes = 4 * ROWS * WIDTH
    assert plain.stages[0].host == pytest.approx(
        (target.host_seconds + nbytes / target.host_bytes_per_second) * target.clock
    )
    beside = plain.replan(overlap_host=True)
    assert beside.stages[0].waits_forward < plain.stages[0].waits_forward
    assert plain.host_seconds == target.host_call_seconds
    several = plain.replan(device_iterations=4)
    assert several.host_seconds == target.host_call_seconds / 4
    assert several.micro_batches_per_second > plain.micro_batches_per_second


def test_gradients_are_added_up_where_there_are_several_micro_batches(plain):
    alone = plan(options=ipu.Options())
    assert all(stage.accumulate == stage.stash_copy == 0.0 for stage in alone.stages)
    assert all(stage.accumulate > 0 for stage in plain.stages)
    assert plain.stages[0].stash_copy == plain.stages[0].stash_bytes / plain.target.num_tiles / 8  # bytes per cycle
    assert plain.stages[0].backward_pass > plain.stages[0].backward + plain.stages[0].accumulate


def test_a_share_of_memory_for_each_ipu_slows_down_its_products_alone():
    size = {"width": 512, "rows": 2048}
    options = ipu.Options(gradient_accumulation=8)
    tight = ipu.Options(gradient_accumulation=8, matmul_proportion=[0.6, 0.05])
    wide, narrow = plan(options=options, **size), plan(options=tight, **size)
    assert narrow.stages[0].forward == wide.stages[0].forward
    assert narrow.stages[1].forward > wide.stages[1].forward
    with pytest.raises(ValueError, match="shares for 2 IPUs, but IPU 2 is in use"):
        tight.proportion_of(2)


def test_a_report_of_one_ipu_has_the_same_share():
    with torch.device("meta"):
        model = nn.Linear(2048, 2048)
    x = [torch.zeros(2048, 2048)]
    options = ipu.Options(matmul_proportion=0.05, show_progress=False)
    products = [
        next(cost for cost in ipu.estimate(model, x, chosen).costs if cost.plan.family == "matmul").plan
        for chosen in (ipu.Options(show_progress=False), options)
    ]
    assert products[1].cycles(Profile.CALIBRATED) > products[0].cycles(Profile.CALIBRATED)
    assert products[1].temporary_bytes <= 0.05 * options.target.memory_per_tile < products[0].temporary_bytes


def test_a_head_in_parts_takes_longer_than_as_a_whole(plain):
    cut = plan(serialize={"head": 4})
    assert cut.stages[0].forward == plain.stages[0].forward
    assert cut.stages[1].forward > plain.stages[1].forward
    assert cut.stages[1].backward > plain.stages[1].backward


def test_state_in_streaming_memory_is_read_and_written_once_an_update(plain):
    here = plain.replan(replicas=2)
    away = plan(options=ipu.Options(gradient_accumulation=8, replication_factor=2), optimizer_off_chip=True)
    shared = away.replan(shard_optimizer_state=True)
    assert sum(away.extra_bytes) < sum(here.extra_bytes)
    weights = here.stages[0].weight_bytes
    moved = away.update_parts["streaming memory"][0] / away.target.clock * 5e9  # 4 IPUs share 20 GB/s
    assert moved == pytest.approx(2 * 2 * weights, rel=0.01)  # two moments, read and written
    assert shared.update_parts["streaming memory"][0] == pytest.approx(away.update_parts["streaming memory"][0] / 2)
    assert shared.update_parts["optimizer"][0] == pytest.approx(away.update_parts["optimizer"][0] / 2)
    assert away.update == tuple(map(sum, zip(*away.update_parts.values(), strict=True)))
    assert plain.update_parts["sum over replicas"] == (0.0, 0.0)


def test_phases_share_one_ipu_and_wait_for_their_weights(plain):
    phases = plain.replan(schedule="phased")
    assert phases.num_ipus == 1
    assert sum(phases.extra_bytes) == 0
    weights = phases.stages[0].weight_bytes
    seconds = phases.stages[0].streaming_forward / phases.target.clock
    assert seconds * 20e9 == pytest.approx(weights + phases.stages[0].stash_bytes)
    sharded = plain.replan(schedule="sharded")
    assert phases.cycles > sharded.cycles
    assert phases.memory[0] <= sharded.replan(stages={"layers.0": 0, "layers.2": 0}).memory[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"serialize": {"tail": 2}}, "'tail', which is not a linear layer"),
        ({"serialize": {"head": 0}}, "0 parts for 'head'"),
        ({"serialize": {"head": OUTPUTS + 1}}, "takes 1 to 512"),
        ({"schedule": "round"}, "round"),
    ],
)
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        plan(**given)


@pytest.mark.parametrize("share", [-0.1, 1.5, (0.5, 2.0)])
def test_a_share_of_memory_is_one(share):
    with pytest.raises(ValueError, match="a share of a tile's memory"):
        ipu.Options(matmul_proportion=share)


class Lars(torch.optim.Optimizer):
    """An optimizer with steps of weight times a setting outside of its groups."""

    def __init__(self, params, trust):
        super().__init__(params, {"lr": 0.1})
        self.trust = trust

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * self.trust * p.norm() / p.grad.norm() * p.grad)


def test_an_optimizer_that_looks_at_whole_weights_and_has_settings_of_its_own_has_a_plan():
    model = Layers(WIDTH)
    rates = [
        ipu.pipeline(
            model, [torch.zeros(ROWS, WIDTH)],
            ipu.Options(gradient_accumulation=8, replication_factor=2, shard_optimizer_state=sharded),
            Lars(model.parameters(), trust=0.01), stages=2,
        ).update_parts["optimizer"][0]
        for sharded in (False, True)
    ]  # fmt: skip
    assert rates[0] == pytest.approx(2 * rates[1])
