"""Memory of stages that repeat their forward pass, or share an IPU, computed by hand."""

import pytest
import torch
from torch import nn

from popgeo import ipu
from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.engine.pipeline.staging import Recompute
from popgeo.ipu.systems.recomputation import with_recomputation

ROWS, WIDTH, LAYERS, SINES = 4096, 256, 8, 4
VALUE = 4 * ROWS * WIDTH  # bytes


class Waves(nn.Module):
    def forward(self, x):
        for _ in range(SINES):
            x = x.sin()  # its gradient reads its input
        return x


class Sea(nn.Module):
    """Layers of sines, a parameter and a loss."""

    def __init__(self, layers=LAYERS):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.layers = nn.ModuleList(Waves() for _ in range(layers))

    def forward(self, x):
        x = x + self.bias
        for layer in self.layers:
            x = layer(x)
        return x.sum()


EACH = [f"layers.{number}" for number in range(LAYERS - 1)]


@pytest.fixture(scope="module")
def sea():
    model = Sea()
    options = ipu.Options(gradient_accumulation=4, recompute_last_stage=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return ipu.pipeline(model, [torch.zeros(ROWS, WIDTH)], options, optimizer, stages=1)


def working(plan):
    """Return the largest memory between two operations, in activations."""
    return plan.stages[0].memory.categories["values"].sum() / VALUE


def test_a_piece_runs_again_right_before_the_backward_pass_needs_it():
    model = Sea(layers=2)
    step = capture_step(model, bind(model.forward, torch.zeros(ROWS, WIDTH)), trained=["bias"])
    graph, _, again = with_recomputation(step.graph, Recompute(layers=("layers.0",)))
    names = [op.target.split(".")[1] for op in graph.ops if op.target.split(".")[1] in ("add", "sin", "cos")]
    forward = ["add", *["sin"] * 8]
    # The last sine of a layer is kept, or no operation that needs its gradient reads it.
    assert names == [*forward, *["sin"] * 3, *["cos"] * 4, "add", *["sin"] * 3, *["cos"] * 4]
    assert len(again) == 1 + 2 * (SINES - 1)


def test_layers_named_wait_and_one_layer_at_a_time_is_there(sea):
    everything, nothing, layers = sea, sea.replan(recompute=True), sea.replan(recompute=EACH)
    assert everything.stages[0].stash_bytes == LAYERS * SINES * VALUE
    assert nothing.stages[0].stash_bytes == VALUE  # the host's input
    assert layers.stages[0].stash_bytes == LAYERS * VALUE  # the input and seven results
    # Recomputing all at once needs as much memory; pieces need seven results, three of a piece, and a gradient.
    assert working(everything) >= LAYERS * SINES
    assert working(nothing) == pytest.approx(working(everything), rel=0.1)
    assert LAYERS - 1 + SINES - 1 + 1 <= working(layers) <= LAYERS - 1 + SINES - 1 + 3


def test_only_what_gradients_need_is_repeated(sea):
    stage, again = sea.stages[0], sea.replan(recompute=EACH).stages[0]
    sines = LAYERS * (SINES - 1) / (LAYERS * SINES)
    assert again.backward - stage.backward == pytest.approx(sines * stage.forward, rel=0.02)
    assert again.forward == stage.forward


def test_the_last_piece_waits_whole_and_is_not_repeated():
    model = Sea()
    options, optimizer = ipu.Options(gradient_accumulation=4), torch.optim.SGD(model.parameters(), lr=0.1)
    plain = ipu.pipeline(model, [torch.zeros(ROWS, WIDTH)], options, optimizer, stages=1)
    again = plain.replan(recompute=EACH)
    assert again.stages[0].stash_bytes == (LAYERS + SINES - 1) * VALUE  # seven results, and the inputs of four sines
    repeats = (LAYERS - 1) * (SINES - 1) / (LAYERS * SINES)
    assert again.stages[0].backward - plain.stages[0].backward == pytest.approx(
        repeats * plain.stages[0].forward, rel=0.02
    )


def test_a_plan_that_is_read_from_a_file_knows_the_layers(sea):
    plan = sea.replan(recompute=EACH)
    assert ipu.Pipeline.from_json(plan.to_json()).recompute == plan.recompute == tuple(EACH)
    assert "recomputed from the results of 7 layers" in str(plan)


@pytest.mark.parametrize(
    ("recompute", "message"),
    [(["layers.0", "layer.1"], "Options.recompute names 'layer.1'"), ("layers.0", "a list of layers")],
)
def test_what_is_no_layer_is_refused(sea, recompute, message):
    with pytest.raises(ValueError, match=message):
        sea.replan(recompute=recompute)


def test_too_little_memory_is_told_of_pieces():
    model = Sea().to("meta")
    options, optimizer = ipu.Options(gradient_accumulation=4), torch.optim.SGD(model.parameters(), lr=0.1)
    rows = 11 * ROWS  # 46 MB per activation: 32 need more than 900 MB, 11 do not
    plan = ipu.pipeline(model, [torch.empty(rows, WIDTH, device="meta")], options, optimizer, stages=1)
    assert not plan.fits
    assert not plan.replan(recompute=True).fits
    (memory,) = (one for one in plan.insights if one.fatal)
    assert memory.remedy.startswith("recompute=[the names of")
    assert plan.replan(**memory.change).fits


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.middle = nn.Embedding(512, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 512, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return nn.functional.cross_entropy(self.head(self.middle(self.embed(tokens))), tokens)


def test_stages_of_one_ipu_share_weights_and_work_one_after_the_other():
    model = Tied()
    options, optimizer = ipu.Options(gradient_accumulation=8), torch.optim.Adam(model.parameters())
    plan = ipu.pipeline(model, [torch.zeros(16, dtype=torch.long)], options, optimizer, stages={"middle": 1, "head": 0})
    tied, middle = 4 * 512 * WIDTH, 4 * (WIDTH * WIDTH + WIDTH)
    assert [stage.weight_bytes for stage in plan.stages] == [tied, middle, tied]
    assert [stage.held_before for stage in plan.stages] == [0, 0, tied]
    steps = 2 * 4  # Adam also counts them for each of middle's parameters
    assert plan.extra_bytes[0] == pytest.approx(3 * tied, abs=3 * steps)  # a gradient and two moments, once
    first, last = (plan.stages[number].memory.peak for number in (0, 2))
    extra = plan.extra_bytes[0] / plan.target.num_tiles
    apart = float((first + last).max() + extra)
    assert plan.memory[0] * plan.target.memory_per_tile < apart - tied / plan.target.num_tiles
