"""Blocks that a model names: their stages, and the errors."""

import copy
import pickle

import pytest
import torch
from torch import nn

from popgeo import ipu
from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.serialize import from_bytes, to_bytes

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))


class Named(nn.Module):
    """Three layers: the second is in a block, and the third begins one if it is marked."""

    def __init__(self, second: ipu.Block) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
        self.block = second

    def forward(self, x):
        x = self.first(x).relu()
        with self.block:
            x = self.second(x).relu()
        return self.third(x).square().mean()


def model_of(second=None, third=None):
    torch.manual_seed(0)
    model = Named(ipu.Block("second", ipu_id=second))
    if third is not None:
        ipu.BeginBlock(model.third, "third", ipu_id=third)
    return model


def trained(model, **options):
    model = copy.deepcopy(model)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    step = ipu.training_model(model, ipu.Options(gradient_accumulation=3, schedule="1f1b", **options), rule)
    return step, [step(X), *model.parameters()]


def test_a_model_that_names_several_ipus_runs_on_them():
    model = model_of(second=1, third=0)
    step, results = trained(model)
    assert [(stage.layers, stage.ipu) for stage in step.pipeline.stages] == [
        ("(start)", 0), ("second", 1), ("third", 0)
    ]  # fmt: skip
    whole, expected = trained(model, stages=1)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    assert len(whole.pipeline.stages) == 1
    with pytest.raises(ValueError, match=r"set Options\.stages"):
        trained(model_of(second=0, third=0))[0].pipeline  # noqa: B018


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([ipu.Stage("second"), ipu.Stage("third")], [(0, "(start) to second"), (1, "third")]),
        ([ipu.Stage("second", "third")], [(0, "(start) to third")]),
        ([ipu.Stage("second").ipu(1), ipu.Stage("third").ipu(0)], [(1, "(start) to second"), (0, "third")]),
        ("each block", [(0, "(start)"), (1, "second"), (2, "third")]),
    ],
)
def test_stages_take_their_blocks(stages, expected):
    step, _ = trained(model_of(third=None) if stages is None else _marked(), stages=stages)
    assert [(stage.ipu, stage.layers) for stage in step.pipeline.stages] == expected


def _marked():
    model = model_of()
    ipu.BeginBlock(model.third, "third")
    return model


def test_a_gradient_is_worked_out_in_the_block_of_its_layer():
    graph = capture_step(_marked(), bind(_marked().forward, X), trained=["second.weight", "third.weight"]).graph
    names = {op.block.name for op in graph.ops if op.block is not None and op.phase == "backward"}
    assert names == {"second", "third"}


def test_a_kept_step_knows_its_blocks():
    model = model_of(second=1, third=0)
    step = capture_step(model, bind(model.forward, X))
    assert [op.block for op in from_bytes(to_bytes(step)).graph.ops] == [op.block for op in step.graph.ops]


def test_marks_do_nothing_outside_of_a_capture():
    model = _marked()
    assert torch.equal(model(X), Named.forward(model, X))
    assert ipu.BeginBlock(torch.neg, "negative")(torch.ones(1)) == -1
    assert ipu.Stage("a").ipu(1) == pickle.loads(pickle.dumps(ipu.Stage("a").ipu(1)))


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([ipu.Stage("third"), ipu.Stage("second")], "feed back: block 'third' of stage 0 runs after block 'second'"),
        ([ipu.Stage("second")], "has no block 'third'"),
        ([ipu.Stage("second"), ipu.Stage("third", "fourth")], "block 'fourth', which the model does not run"),
        ([ipu.Stage("second"), ipu.Stage("second", "third")], "in stages 0 and 1"),
        ([ipu.Stage("second").ipu(2), ipu.Stage("third")], "without gaps"),
    ],
)
def test_stages_that_do_not_fit_the_blocks_are_refused(stages, words):
    with pytest.raises(ValueError, match=words):
        trained(_marked(), stages=stages)


def test_a_layer_outside_of_every_block_is_named():
    with pytest.raises(ValueError, match=r"do not cover the model: module third uses its weights .*test_blocks.py"):
        trained(model_of(second=1))


def test_what_is_no_block_is_refused():
    with pytest.raises(ValueError, match="already been assigned to a block"):
        ipu.BeginBlock(_marked().third)
    with pytest.raises(ValueError, match="function, found 3"):
        ipu.BeginBlock(3)
    with pytest.raises(ValueError, match="at least 0, found -1"):
        ipu.Block(ipu_id=-1)
    with pytest.raises(ValueError, match="at least one name of a block"):
        ipu.Stage()
