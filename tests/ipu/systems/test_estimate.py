"""Reports from shapes alone equal the reports of models that run, also for models too large for any computer."""

import resource

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo import ipu


class Trained(nn.Module):
    """Two layers and a loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x):
        return (self.scale * self.layers(x)).square().mean()


def costs_of(report):
    return [(cost.target, cost.phase, cost.shapes, cost.plan, cost.count) for cost in report.costs]


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation": 4, "replication_factor": 2, "max_grad_norm": 1.0}])
def test_a_training_step_is_reported_as_where_it_runs(options):
    real = Trained(16)
    chosen = ipu.Options(**options)
    step = ipu.training_model(real, chosen, torch.optim.AdamW(real.parameters(), lr=0.1))
    step(torch.randn(8 * chosen.batch_factor, 16))
    with torch.device("meta"):
        model = Trained(16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    report = ipu.estimate(model, [torch.empty(8, 16, device="meta")], chosen, optimizer)
    assert costs_of(report) == costs_of(step.report)
    assert report.memory.peak.tolist() == step.report.memory.peak.tolist()
    assert report.state_bytes == pytest.approx(step.report.state_bytes, abs=64)  # a step count per parameter
    assert (report.micro_batches, report.replicas) == (chosen.gradient_accumulation, chosen.replication_factor)


@pytest.mark.parametrize("made", ["real", "meta", "fake"])
def test_inference_is_reported_wherever_the_weights_are(made):
    x = torch.randn(8, 16)
    expected = ipu.compile(Trained(16), [x]).report
    if made == "fake":
        with FakeTensorMode():
            model = Trained(16)
    else:
        with torch.device("meta" if made == "meta" else "cpu"):
            model = Trained(16)
    assert costs_of(ipu.estimate(model, [x])) == costs_of(expected)


def test_neither_model_nor_optimizer_changes():
    model = Trained(16)
    optimizer = torch.optim.Adam(model.parameters())
    before = [p.clone() for p in model.parameters()]
    ipu.estimate(model, [torch.randn(8, 16)], optimizer=optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state
    assert [p for group in optimizer.param_groups for p in group["params"]] == list(model.parameters())


def test_a_model_of_a_hundred_gigabytes_takes_no_memory_and_says_how_much_it_would_need():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB
    with torch.device("meta"):
        model = Trained(120_000)  # 2 x 57.6 GB of weights
    report = ipu.estimate(model, [torch.empty(4, 120_000)], optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1e6
    assert report.state_bytes > 2 * 2 * 57.6e9
    assert report.memory.peak.max() > 100 * report.memory.limit
    assert any("Memory is exceeded" in insight.title for insight in report.insights)
    assert max(map(len, str(report).splitlines())) <= 100
    (line,) = (line for line in str(report).splitlines() if line.startswith("  matmul"))
    assert line.split()[1] == "5"  # numbers of twelve digits leave room between columns


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ValueError, match="no parameters to train"):
        ipu.estimate(torch.relu, [torch.ones(2)], optimizer=torch.optim.SGD(Trained(2).parameters()))
    with pytest.raises(ValueError, match="no parameter of the model"):
        ipu.estimate(Trained(2), [torch.ones(2, 2)], optimizer=torch.optim.SGD(Trained(2).parameters()))
    with pytest.raises(ValueError, match="Adafactor's update cannot be planned from shapes alone"):
        ipu.estimate(model := Trained(2), [torch.ones(2, 2)], optimizer=torch.optim.Adafactor(model.parameters()))


def test_a_step_in_stages_is_reported_as_stages_from_shapes_alone_and_where_it_runs():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    options = ipu.Options(stages=2, device_iterations=2)
    planned = ipu.pipeline(model, [torch.ones(2, 4)], options)
    estimated = ipu.estimate(model, [torch.ones(2, 4)], options)
    running = ipu.inference_model(model, options)
    running(torch.ones(4, 4))
    for report in (estimated, running.report):
        assert isinstance(report, ipu.Pipeline)
        for rows in ("stages", "ipus", "spans", "ops", "families"):
            assert report.to_frame(rows).equals(planned.to_frame(rows))
        assert report.state_bytes == sum(p.nbytes for p in model.parameters())
        assert report.captured_ops == planned.captured_ops > 0
    assert "ms each; 2 stages" in str(running.report)
    assert running.report.calls == 1
    assert "this computer" not in str(estimated)
    assert running.report.replan(stages=1).num_ipus == 1
    for number, layer in enumerate(model):
        ipu.BeginBlock(layer, ipu_id=number)
    assert ipu.estimate(model, [torch.ones(2, 4)]).num_ipus == 2


def test_a_tensor_is_no_list_of_arguments():
    for arguments in ((torch.ones(1, 16),), (torch.ones(1, 16), torch.ones(1, 16))):
        with pytest.raises(ValueError, match=r"example is a Tensor; pass one micro-batch's arguments in a list"):
            ipu.estimate(Trained(16), *arguments)


def planned_with_norm(norm, replicas, door="estimate", **choices):
    """Return the cycles of a training step with this norm as its second layer."""
    model = Trained(16)
    model.layers[1] = norm
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = ipu.Options(replication_factor=replicas, show_progress=False)
    return getattr(ipu, door)(model, [torch.ones(8, 16)], options, optimizer, **choices).total.cycles


@pytest.mark.parametrize("choices", [{}, {"door": "pipeline", "stages": 2}], ids=["estimate", "pipeline"])
def test_statistics_over_replicas_are_charged_their_exchange(choices):
    alone, two, all_of_them = (
        planned_with_norm(norm, 8, **choices)
        for norm in (nn.BatchNorm1d(16), nn.SyncBatchNorm(16, process_group=2), nn.SyncBatchNorm(16))
    )
    assert alone < two < all_of_them
    assert planned_with_norm(nn.SyncBatchNorm(16), 1, **choices) == planned_with_norm(nn.BatchNorm1d(16), 1, **choices)


@pytest.mark.parametrize(
    ("norm", "problem"),
    [
        (nn.SyncBatchNorm(16, process_group=3), r"layers\.1 has process_group=3; .* a divisor of replication_factor=8"),
        (nn.SyncBatchNorm(16, process_group="two"), r"process_group='two'"),
        (nn.SyncBatchNorm(16, affine=False), r"layers\.1 has no trained weight"),
    ],
)
def test_statistics_that_replicas_cannot_share_are_refused(norm, problem):
    with pytest.raises(ValueError, match=problem):
        planned_with_norm(norm, 8)


def test_inference_shares_no_statistics():
    model = nn.Sequential(nn.Linear(16, 16), nn.SyncBatchNorm(16)).eval()
    report = ipu.estimate(model, [torch.ones(8, 16)], ipu.Options(replication_factor=2))
    assert not any("all_reduce" in cost.target for cost in report.costs)


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ({"optimizer_off_chip": "no"}, r"pipeline\.optimizer_off_chip is 'no'; it must be True or False"),
        ({"overlap_host": 1.5}, r"pipeline\.overlap_host is 1\.5; it must be True or False"),
        ({"stages": True}, r"Options\.stages is True; give a number of stages"),
        ({"optimizer": torch.optim.SGD}, r"optimizer is the class SGD; pass one over the model's parameters"),
    ],
)
def test_a_pipeline_refuses_what_it_would_take_for_something_else(choices, problem):
    model = Trained(16)
    given = {"stages": 2, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), **choices}
    with pytest.raises(ValueError, match=problem):
        ipu.pipeline(model, [torch.ones(8, 16)], **given)


def test_shares_of_memory_by_name_are_refused():
    with pytest.raises(ValueError, match="it is a share of a tile's memory, 0 to 1, or one for each IPU"):
        ipu.Options(matmul_proportion={"IPU0": 0.2})
