"""PopTorch's blocks and execution strategies reach the stages that run, and no result changes."""

import copy

import pytest
import torch
from torch import nn

from popgeo.compat import poptorch
from popgeo.compat.account import ACCOUNT, Treatment

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """Model of two blocks and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        with poptorch.Block("encoder", ipu_id=0):
            x = self.dropout(self.encoder(x).relu())
        poptorch.Block.start("decoder", ipu_id=1)
        y = self.decoder(x)
        return y, poptorch.identity_loss(y.square().mean(), reduction="none")


MODEL = Model()


def trained(strategy=None, accumulation=4):
    model, options = copy.deepcopy(MODEL), poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    options.randomSeed(1)
    if strategy is not None:
        options.setExecutionStrategy(strategy)
    step = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    return [*step(X), *(p.detach() for p in model.parameters())]


@pytest.fixture(scope="module")
def expected():
    return trained()


@pytest.mark.parametrize(
    "strategy",
    [
        lambda: poptorch.PipelinedExecution("encoder", "decoder"),
        lambda: poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
        lambda: poptorch.ShardedExecution(poptorch.Stage("encoder"), poptorch.Stage("decoder").ipu(1)),
        lambda: poptorch.SerialPhasedExecution(poptorch.Phase("encoder"), poptorch.Phase("decoder").ipus(2)),
        lambda: poptorch.PipelinedExecution(poptorch.Stage("encoder", "decoder")),
    ],
)
def test_every_strategy_gives_the_same_results(expected, strategy):
    for one, other in zip(trained(strategy()), expected, strict=True):
        assert torch.equal(one, other)


def test_a_pipeline_needs_a_micro_batch_for_each_stage_and_a_sharded_model_does_not():
    needs = r"gradientAccumulation must be .* pipeline stages \(3\) when using poptorch.PipelinedExecution\."
    with pytest.raises(poptorch.Error, match=needs + r".* additional 1 stages when training"):
        trained(accumulation=1)
    with pytest.raises(poptorch.Error, match=r"deviceIterations must be .* number of pipeline stages \(2\)"):
        poptorch.inferenceModel(copy.deepcopy(MODEL))(X)
    assert len(trained(poptorch.ShardedExecution(), accumulation=1)) == 6


def test_a_block_that_stands_in_no_stage_is_an_error():
    with pytest.raises(poptorch.Error, match="has no block 'decoder'"):
        trained(poptorch.PipelinedExecution("encoder"))


def test_the_account_says_that_blocks_and_strategies_have_effect():
    trained(poptorch.ShardedExecution())
    became = {asked: treatment for asked, (treatment, _) in ACCOUNT.items()}
    assert became["Block('encoder') on IPU 0"] is Treatment.HONOURED
    assert became["ShardedExecution"] is Treatment.HONOURED


class FourOnOne(nn.Module):
    """Model of four blocks on IPU 0, as in published configurations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        for number, layer in enumerate(self.layers):
            poptorch.BeginBlock(layer, f"layer{number}", ipu_id=0)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def test_stages_on_one_ipu_run_one_after_the_other_and_need_no_more_micro_batches():
    options = poptorch.Options()
    stages = [poptorch.Stage(f"layer{number}").ipu(0) for number in range(4)]
    options.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
    step = poptorch.trainingModel(FourOnOne(), options)
    assert step(X).item() > 0
    assert (step.compiled.pipeline.num_ipus, step.compiled.pipeline.schedule.value) == (1, "sharded")


class FourBlocks(nn.Module):
    """Model with two phases of two numbered blocks. Phase 1 runs its blocks twice."""

    def forward(self, x, y):
        poptorch.Block.useAutoId()
        for factor in (2, 3, 5, 7, 11, 13):
            with poptorch.Block():
                x, y = y * factor, x
        return x, y


@pytest.mark.parametrize("phases", [[["0", "1"], ["2", "3", "4", "5"]], [[("0",), ("1",)], [("2", "4"), ("3", "5")]]])
def test_the_stages_of_a_phase_run_by_turns(phases):
    stages = [[poptorch.Stage(*((part,) if isinstance(part, str) else part)) for part in phase] for phase in phases]
    strategy = poptorch.ParallelPhasedExecution(*stages)
    options = poptorch.Options()
    options.setExecutionStrategy(strategy)
    step = poptorch.inferenceModel(FourBlocks(), options)
    assert [part.item() for part in step(torch.ones(1), torch.ones(1))] == [3 * 7 * 13, 2 * 5 * 11]
    assert len(step.compiled.pipeline.stages) == 2


def test_each_block_as_a_stage_needs_everything_to_be_in_a_block():
    class Model(nn.Module):
        def forward(self, x):
            with poptorch.Block(ipu_id=0):
                x = x * 4
            return x * 4

    options = poptorch.Options().deviceIterations(2)
    assert poptorch.inferenceModel(Model(), options)(torch.ones(2, 1)).tolist() == [[16], [16]]
    options = options.clone()
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    with pytest.raises(poptorch.Error, match=r"No active Block: .*return x \* 4 runs outside"):
        poptorch.inferenceModel(Model(), options).compile(torch.ones(2, 1))


def test_a_module_is_printed_with_the_blocks_that_begin_in_it():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    assert poptorch.module_repr(model) == repr(model)
    poptorch.BeginBlock(model[1], ipu_id=1)
    begins = "(1): BeginBlock(user_id=None, ipu_id=1) Sequential("
    assert begins in poptorch.module_repr(model)
    assert begins in repr(poptorch.inferenceModel(model))
