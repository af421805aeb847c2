"""Pipelines of whole models: computation and messages of stages, computed by hand, and the errors."""

import functools

import pytest
import torch
from torch import nn

from popgeo import ipu
from popgeo.ipu.cost.plan import Profile
from popgeo.ipu.systems.stage_cut import LayerOps, cut_by_layers, cut_evenly

WIDTH, ROWS = 64, 16


class Chain(nn.Module):
    """An embedding, equal layers, a head that may share the embedding's weights, and a loss."""

    def __init__(self, layers: int, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers))
        self.head = nn.Linear(WIDTH, 32, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x), tokens)


TOKENS = torch.zeros(ROWS, dtype=torch.long)


@functools.cache
def chain():
    """Return a plan for four layers, captured once; another test shows that planning again changes nothing."""
    return plan(Chain(4), stages=1)


def plan(model=None, *, stages, count=8, **choices):
    if model is None:
        return chain().replan(stages=stages, micro_batches=count, **choices)
    optimizer, options = torch.optim.Adam(model.parameters()), ipu.Options(gradient_accumulation=count)
    return ipu.pipeline(model, [TOKENS], options, optimizer, stages=stages, **choices)


def test_stages_together_compute_what_one_ipu_does():
    whole = ipu.estimate(
        model := Chain(4), [TOKENS], ipu.Options(gradient_accumulation=8), torch.optim.Adam(model.parameters())
    )
    cycles = {
        phase: sum(c.plan.cycles(Profile.CALIBRATED) for c in whole.costs if c.phase == phase)
        for phase in ("forward", "backward", "update")
    }
    for stages in (1, 2, 4, [0, 1, 1, 2], {"layers.1": 1, "layers.3": 2, "head": 0}):
        cut = plan(stages=stages)
        assert sum(stage.forward for stage in cut.stages) == pytest.approx(cycles["forward"]), stages
        assert sum(stage.backward for stage in cut.stages) == pytest.approx(cycles["backward"]), stages
        assert sum(stage.weight_bytes for stage in cut.stages) == sum(p.nbytes for p in model.parameters()), stages
        assert sum(cut.update) == pytest.approx(cycles["update"]), stages


def test_each_layer_of_the_backward_pass_is_where_its_weights_are():
    cut = plan(stages=[0, 2, 2])
    assert [stage.layers for stage in cut.stages] == ["embed", "layers.0 to layers.1", "layers.2 to head"]
    layer = 4 * (WIDTH * WIDTH + WIDTH)
    assert [stage.weight_bytes for stage in cut.stages] == [4 * 32 * WIDTH, 2 * layer, 2 * layer + 4 * 32 * WIDTH]
    message = 4 * ROWS * WIDTH  # activations to the right, their gradients to the left
    assert [stage.received_bytes for stage in cut.stages] == [message, 2 * message, message]
    # Tanh keeps its result, a linear layer its input: the results of the layers before, and their own.
    assert cut.stages[1].stash_bytes == 3 * message
    assert plan(stages=[0, 2, 2], recompute=True).stages[1].stash_bytes == message


def test_recomputation_repeats_the_forward_pass_and_keeps_less():
    model, plain = Chain(4), plan(stages=2)
    options = ipu.Options(gradient_accumulation=8, recompute=True, recompute_last_stage=True)
    again = ipu.pipeline(model, [TOKENS], options, torch.optim.Adam(model.parameters()), stages=2)
    for a, b in zip(plain.stages, again.stages, strict=True):
        assert b.backward == pytest.approx(a.backward + a.forward)
        assert b.stash_bytes < a.stash_bytes


def test_what_lies_between_the_last_result_kept_and_the_loss_is_not_repeated():
    plain, again = plan(stages=2), plan(stages=2, recompute=True)
    assert again.stages[0].backward == pytest.approx(plain.stages[0].backward + plain.stages[0].forward)
    assert again.stages[1].backward == plain.stages[1].backward
    assert again.stages[1].stash_bytes == plain.stages[1].stash_bytes
    assert plan(stages=1, recompute=True).cycles == plan(stages=1).cycles


def test_one_stage_waits_for_nobody_and_sends_nothing():
    cut = plan(stages=1)
    assert cut.bubble == pytest.approx(0.0)
    assert cut.stages[0].received_bytes == 0
    assert cut.stages[0].transfers == ()
    assert cut.cycles == pytest.approx(8 * (cut.stages[0].forward_pass + cut.stages[0].backward_pass) + cut.update[0])


def test_more_micro_batches_fill_the_pipeline():
    few, many = plan(stages=4, count=4), plan(stages=4, count=64)
    assert many.bubble < few.bubble
    assert plan(stages=4, count=4, schedule="sharded").cycles > few.cycles


def test_a_layer_may_come_back_to_an_earlier_ipu():
    cut = plan(stages={"layers.0": 1, "head": 0})
    assert [stage.ipu for stage in cut.stages] == [0, 1, 0]
    assert cut.num_ipus == 2
    assert cut.memory[0] > max(0.0, cut.stages[0].memory.peak.max() / cut.target.memory_per_tile)


def test_tied_weights_are_named_and_their_gradient_is_sent_once_an_update():
    apart, together = plan(Chain(4, tied=True), stages=2), plan(Chain(4, tied=True), stages={"layers.0": 1, "head": 0})
    assert apart.shared == ("embed.weight",)
    assert any("embed.weight is on several IPUs" in insight.title for insight in apart.insights)
    assert apart.stages[0].shared_bytes == 4 * 32 * WIDTH
    assert apart.stages[0].received_bytes == 4 * ROWS * WIDTH  # only the activations' gradient of each micro-batch
    assert together.shared == ()


def test_the_gradient_of_weights_tied_on_one_ipu_takes_no_link():
    together, untied = (plan(Chain(4, tied=tied), stages={"layers.0": 1, "head": 0}) for tied in (True, False))
    assert [stage.shared_bytes for stage in together.stages] == [0, 0, 0]
    assert together.update_parts["shared weights"] == untied.update_parts["shared weights"] == (0.0, 0.0)


def test_replicas_add_the_time_of_summing_gradients():
    model = Chain(4)
    optimizer = torch.optim.Adam(model.parameters())
    options = ipu.Options(gradient_accumulation=8, replication_factor=2)
    two = ipu.pipeline(model, [TOKENS], options, optimizer, stages=2)
    one = plan(model, stages=2)
    assert max(two.update) > max(one.update)
    assert two.micro_batches_per_second == pytest.approx(2 * one.micro_batches_per_second, rel=0.2)


def test_what_does_not_fit_says_how_many_ipus_would_do():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(20_000, 20_000) for _ in range(4)))
    cut = ipu.pipeline(model, [torch.empty(8, 20_000)], stages=2)
    assert not cut.fits
    (memory,) = (insight for insight in cut.insights if "times its memory" in insight.title)
    assert "at least 7 IPUs, and there are 4 layers" in memory.remedy  # 6.4 GB of 897 MiB each
    assert memory.fatal
    assert not memory.change
    assert "recompute" not in memory.remedy  # inference keeps nothing


def test_even_cuts_are_the_best_there_are():
    blocks = [LayerOps(name=f"{n}", ops=(n,), numbered=True) for n in range(6)]
    assert cut_evenly(blocks, [5, 1, 1, 1, 1, 5], [0] * 6, 3) == [0, 1, 5]
    assert cut_evenly(blocks, [1] * 6, [0] * 6, 2) == [0, 3]
    assert cut_evenly(blocks, [1] * 6, [0, 0, 0, 0, 9, 9], 2) == [0, 4]  # memory counts as well


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (0, "at least one"),
        (9, "cut into 9 stages"),
        (2.5, "give a number of stages"),
        ({}, "give a number of stages"),
        ({"layers.2": "1"}, "give a number of stages"),
        ("layers", "give a number of stages"),
        ([2, 1], "add up to 3, but the model runs 4"),
        ([4, 0], "without operations"),
        ({"layers.9": 1}, "names 'layers.9', but no layer"),
        ({"layers.2": 2}, "without gaps"),
    ],
)
def test_stages_that_do_not_cover_the_model_are_refused(stages, message):
    with pytest.raises(ValueError, match=message):
        plan(stages=stages)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"schedule": "gpipe"}, "one of 'lock_step'"),
        ({"micro_batches": 0}, "at least 1"),
        ({"replicas": 0}, "at least 1"),
    ],
)
def test_choices_that_there_are_not_are_refused_by_another_plan(choice, message):
    with pytest.raises(ValueError, match=message):
        plan(stages=2).replan(**choice)


@pytest.mark.parametrize(
    ("model", "example", "choices", "message"),
    [
        (torch.relu, [TOKENS], {}, "torch.nn.Module"),
        (Chain(1), TOKENS, {}, "in a list"),
        (Chain(1), [TOKENS], {"options": {}}, "ipu.Options"),
        (Chain(1), [TOKENS], {"serialize": ["head"]}, "parts by name"),
    ],
)
def test_what_is_no_model_or_no_call_of_it_is_refused(model, example, choices, message):
    with pytest.raises(ValueError, match=message):
        ipu.pipeline(model, example, stages=1, **choices)


def test_layers_before_the_first_are_needed_where_the_first_ipu_has_none():
    blocks = [LayerOps(name=f"h.{n}", ops=(), numbered=True) for n in range(2)]
    with pytest.raises(ValueError, match="without operations"):
        cut_by_layers(blocks, [0, 2])


def test_options_say_the_stages_where_the_call_does_not():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    options = ipu.Options(device_iterations=4, stages=[1, 3], schedule="grouped", recompute=True)
    asked = ipu.pipeline(model, [torch.ones(2, 8)], options)
    assert asked.layers == (("0",), ("1", "2", "3"))
    assert (asked.schedule, asked.recompute) == (ipu.Schedule.GROUPED, True)
    assert len(ipu.pipeline(model, [torch.ones(2, 8)], options, stages=4).stages) == 4
    with pytest.raises(ValueError, match="The stages are missing"):
        ipu.pipeline(model, [torch.ones(2, 8)])
    for number, layer in enumerate(model):
        ipu.BeginBlock(layer, ipu_id=number // 2)
    assert ipu.pipeline(model, [torch.ones(2, 8)]).num_ipus == 2
