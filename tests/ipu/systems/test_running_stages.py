"""Steps in stages give bitwise the results of the whole step, for any schedule and recomputation."""

import copy
import dataclasses
import re

import pytest
import torch
from torch import nn

from popgeo import ipu
from tests.support.small_models import ContinuousFilters, make_batch


class Layer(nn.Module):
    """A transformer layer, or its second half."""

    def __init__(self, width: int, dropout: float, attends: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True) if attends else None
        self.forward_part = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout))
        self.out = nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(x)
        if self.attention is not None:
            x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.out(self.forward_part(x))


class Transformer(nn.Module):
    """A model from tokens to loss and scores; without attention, the head shares the embedding's weights."""

    def __init__(self, layers: int = 3, dropout: float = 0.3, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(Layer(8, dropout, not tied) for _ in range(layers))
        self.head = nn.Linear(8, 16, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(x)
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()), scores


class Normed(nn.Module):
    """A model with batch norms, in-place operations, and buffers that it replaces or changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True)) for _ in range(3)
        )
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        self.count.add_(x.detach().sum())
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return (x - self.mean).square().mean() + x.sigmoid().mean(), x.t()


TOKENS = torch.randint(0, 16, (64, 4), generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
GRAPHS = [make_batch(seed) for seed in range(6)]
MODELS = {
    "transformer": (Transformer(), lambda micro: (TOKENS[4 * micro : 4 * micro + 4],)),
    "tied": (Transformer(tied=True), lambda micro: (TOKENS[4 * micro : 4 * micro + 4],)),
    "norms": (Normed(), lambda micro: (ROWS[4 * micro : 4 * micro + 4],)),
    "schnet": (ContinuousFilters().double(), lambda micro: tuple(GRAPHS[micro].values())),
}


TWO = dataclasses.replace(ipu.IpuTarget.bow(), num_ipus=2)


def trained(name, calls=2, optimizer=torch.optim.Adam, **options):
    """Return a compiled model after some calls, and its results, weights, buffers and optimizer state."""
    model, micro_batch = copy.deepcopy(MODELS[name][0]), MODELS[name][1]
    rule = optimizer(model.parameters(), lr=0.01)
    step = ipu.training_model(
        model, ipu.Options(**{"random_seed": 1, "gradient_accumulation": 3, "schedule": "1f1b", **options}), rule
    )
    count, results = step.options.batch_factor, []
    for call in range(calls):
        given = [micro_batch(number) for number in range(call * count, (call + 1) * count)]
        results += step(*map(torch.cat, zip(*given, strict=True)))
    state = [t for of in rule.state.values() for t in of.values()]
    return step, [*results, *model.state_dict().values(), *state]


def assert_same(these, those):
    assert len(these) == len(those)
    for one, other in zip(these, those, strict=True):
        assert torch.equal(one, other)


@pytest.fixture(scope="module")
def whole():
    return {name: trained(name)[1] for name in MODELS}


@pytest.mark.parametrize(
    ("name", "schedule", "recompute"),
    [
        ("transformer", "1f1b", True),
        ("tied", "grouped", False),
        ("tied", "phased", True),
        ("norms", "1f1b", True),
        ("norms", "grouped", False),
        ("norms", "phased", True),
        ("schnet", "1f1b", True),
    ],
)
def test_stages_give_what_the_whole_step_gives(whole, name, schedule, recompute):
    step, results = trained(name, stages=3, schedule=schedule, recompute=recompute)
    assert_same(results, whole[name])
    assert len(step.pipeline.stages) == 3
    assert "3 stages" in repr(step)


@pytest.mark.parametrize("stages", [[1, 1, 1], {"layers.1": 1, "head": 0}])
def test_however_it_is_cut_the_results_stay(whole, stages):
    step, results = trained("tied", stages=stages)
    assert_same(results, whole["tied"])
    assert [stage.ipu for stage in step.pipeline.stages] == [0, 1, 2 if isinstance(stages, list) else 0]


def test_choices_of_a_call_mean_the_same_in_stages():
    choices = {
        "gradient_accumulation": 2, "device_iterations": 2, "replication_factor": 2, "output_mode": "all",
        "loss_scaling": 8.0, "max_grad_norm": 0.1, "reduction": "sum",
    }  # fmt: skip
    for name in ("tied", "norms"):
        assert_same(trained(name, 1, **choices, stages=2)[1], trained(name, 1, **choices)[1])


def test_no_more_is_kept_than_the_schedule_and_recomputation_need():
    def held(schedule, recompute):
        options = {"stages": [1, 2], "schedule": schedule, "recompute": recompute, "recompute_last_stage": True}
        step, _ = trained("norms", 1, **options)
        runner, values = step.bound.runner.usual, step.graph.values
        sent = 3 * sum(values[v].nbytes for part in runner.parts for v in part.sends)
        assert runner.most_held < sent  # values without further readers are deleted
        return runner.most_held

    assert held("grouped", False) > held("1f1b", False) > held("sharded", False)
    assert held("1f1b", False) > held("1f1b", ["layers.1"]) > held("1f1b", True)


def test_what_comes_right_before_the_loss_runs_once_unless_asked_for():
    def forward_again(**options):
        step, _ = trained("norms", 1, stages=[1, 2], recompute=True, **options)
        parts = step.bound.runner.usual.parts
        return [any(op.phase == "forward" for op in part.graph.ops) for part in parts[2:]]  # last stage, first stage

    assert forward_again() == [False, True]
    assert forward_again(recompute_last_stage=True) == [True, True]


def test_inference_runs_in_stages():
    model = MODELS["tied"][0]
    was, given = model.training, TOKENS[:16]
    model.eval()
    several = ipu.inference_model(model, ipu.Options(device_iterations=4, stages=2))
    whole = ipu.inference_model(model, ipu.Options(device_iterations=4))
    assert_same(several(given), whole(given))
    assert several.pipeline.micro_batches == 4
    model.train(was)


def test_the_account_is_that_of_pipeline():
    step, _ = trained("norms", 1, stages=3, optimizer=torch.optim.SGD)
    model, micro_batch = MODELS["norms"]
    rule = torch.optim.SGD(model.parameters(), lr=0.01)
    plan = ipu.pipeline(model, micro_batch(0), step.options, rule, stages=3, schedule="1f1b")
    assert step.pipeline.to_frame().equals(plan.to_frame())
    assert [vars(task) for task in step.pipeline.tasks] == [vars(task) for task in plan.tasks]
    assert step.report.buffer_bytes >= step.bound.runner.usual.most_held > 0


class Printing(nn.Module):
    """A layer that prints a value which its gradient needs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return ipu.print_tensor(self.linear(x), "x", print_gradient=False).tanh().exp()


class Changing(nn.Module):
    """A model that changes an argument in place, reads rows by negative indices, and prints."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Printing() for _ in range(2))

    def forward(self, table, rows):
        x = self.layers[0](table[rows])
        table.add_(1)
        return (self.layers[1](x) * table[0]).square().mean()


@pytest.mark.parametrize("recompute", [False, True])
def test_arguments_change_and_prints_appear_once(recompute, capsys):
    seen = []
    for options in ({}, {"stages": 2, "recompute": recompute}):
        torch.manual_seed(0)
        model, table = Changing(), torch.ones(8, 3)
        options = ipu.Options(**{"gradient_accumulation": 2, "output_mode": "all", "schedule": "1f1b", **options})
        step = ipu.training_model(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
        losses = [step(table, torch.tensor(rows)) for rows in ([0, 1, 2, 3], [0, -1, 2, -3])]
        seen.append((losses, table, [*model.parameters()], capsys.readouterr().out))
    (losses, table, weights, out), (these, that, those, printed) = seen
    assert_same([*losses, table, *weights], [*these, that, *those])
    assert sorted(out.splitlines()) == sorted(printed.splitlines())


class FeedsBack(nn.Module):
    """A model with a first layer that reads the last layer's result of the previous micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        x = self.layers[1](self.layers[0](x - self.mean))
        self.mean.mul_(0.5).add_(x.detach().mean(0))
        return x.square().mean()


def test_what_feeds_back_needs_one_micro_batch_at_a_time():
    results = []
    for options in ({}, {"stages": 2, "schedule": "sharded"}):
        torch.manual_seed(0)
        model = FeedsBack()
        options = ipu.Options(**{"gradient_accumulation": 2, "output_mode": "all", "schedule": "1f1b", **options})
        step = ipu.training_model(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
        results.append([step(ROWS[:8, :3].clone()), model.mean])
    assert_same(*results)
    several = ipu.training_model(FeedsBack(), ipu.Options(gradient_accumulation=2, stages=2, schedule="grouped"))
    with pytest.raises(ValueError, match=r"feed back: .* in stage 0 .* reads mean, which .* in stage 1 .*sharded"):
        several(ROWS[:8, :3].clone())


class Drawing(nn.Module):
    """A model that draws a number of random values that depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x):
        return self.layers[1](torch.poisson(self.layers[0](x).exp().detach()) + self.layers[0](x)).square().mean()


def test_draws_that_depend_on_data_need_one_micro_batch_at_a_time():
    step = ipu.training_model(Drawing(), ipu.Options(gradient_accumulation=2, stages=2, schedule="grouped"))
    with pytest.raises(ValueError, match=r"How many random numbers aten.poisson.*sharded"):
        step(ROWS[:8, :3].clone())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stages": 0}, "at least one"),
        ({"stages": "layers"}, "blocks"),
        ({"stages": True}, "a number of stages"),
        ({"recompute": "layers.1"}, "list of layers"),
    ],
)
def test_stages_that_mean_nothing_are_refused_at_once(options, words):
    with pytest.raises(ValueError, match=words):
        ipu.Options(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stages": 3, "gradient_accumulation": 2}, r"is 2, but to train 3 stages .* at least 3 .*sharded"),
        ({"stages": 9}, "cannot be cut into 9 stages"),
        ({"stages": [1, 1]}, "put every layer on one IPU"),
        ({"stages": {"layers.7": 1}}, "names 'layers.7', but no layer"),
        ({"schedule": "round"}, "must be one of '"),
        ({"stages": "blocks"}, "the model names none"),
        ({"recompute": True}, "a step without stages recomputes nothing"),
        ({"stages": 3, "target": TWO}, r"num_ipus is 2, .* each stage is on one IPU"),
    ],
)
def test_stages_that_cannot_be_are_refused_before_anything_runs(options, words):
    with pytest.raises(ValueError, match=words):
        trained("norms", 1, **options)


def test_what_fits_no_ipu_names_the_layer_or_how_many_would_do():
    small = dataclasses.replace(ipu.IpuTarget.bow(), num_tiles=8, memory_per_tile=200_000)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    x = torch.ones(4, 256)
    fits = ipu.inference_model(model, ipu.Options(target=dataclasses.replace(small, memory_per_tile=100_000), stages=4))
    assert fits(x).shape == (4, 256)
    for stages, place in ((None, "Tile 0 needs"), (2, r"IPU 0 \(0 to 1\) needs")):
        target = dataclasses.replace(small, memory_per_tile=100_000)
        step = ipu.inference_model(model, ipu.Options(target=target, stages=stages))
        with pytest.raises(ipu.OutOfTileMemory, match=place) as refused:
            step(x)
        assert re.search(r"Options\(stages=[34]\) would fit, on [34] IPUs", str(refused.value))
    two = dataclasses.replace(small, memory_per_tile=50_000, num_ipus=2)
    with pytest.raises(ipu.OutOfTileMemory, match="Tile 0 needs"):
        ipu.inference_model(model, ipu.Options(target=two))(x)
    tiny = dataclasses.replace(small, memory_per_tile=20_000)
    with pytest.raises(ipu.OutOfTileMemory, match=r"[0-3] alone needs .* so the model fits no number of IPUs up to 4"):
        ipu.inference_model(model, ipu.Options(target=tiny, stages=2))(x)
    loose = ipu.inference_model(model, ipu.Options(target=tiny, stages=2, strict=False))
    assert loose(x).shape == (4, 256)
    assert not loose.pipeline.fits


def test_kept_steps_and_checkpoints_go_on_in_stages(tmp_path):
    options = {"stages": 3, "cache_dir": tmp_path}
    first, results = trained("norms", **options)
    again, same = trained("norms", **options)
    assert_same(results, same)
    assert list(tmp_path.iterdir())
    first.save(tmp_path / "now.pt")
    again.load(tmp_path / "now.pt")
    assert_same([*first.model.parameters()], [*again.model.parameters()])
