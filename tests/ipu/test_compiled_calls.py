"""The contract of PopTorch's executor, one claim per test."""

import copy
from collections import namedtuple

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from popgeo.ipu import Options, identity_loss, inference_model, training_model


class Line(nn.Module):
    """y = slope x + bias, with the mean squared error."""

    def __init__(self, slope: float = 0.0) -> None:
        super().__init__()
        self.slope, self.bias = nn.Parameter(torch.tensor([slope])), nn.Parameter(torch.zeros(1))

    def forward(self, x, y):
        prediction = self.slope * x + self.bias
        return prediction, (prediction - y).square().mean()


def make_data(count: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, generator=generator)
    return x, 3 * x + 1


def train(model: nn.Module, options: Options, *tensors, lr: float = 0.1):
    step = training_model(model, options, torch.optim.SGD(model.parameters(), lr=lr))
    return step(*tensors), step


def eager_update(model: nn.Module, optimizer, micro_batches, divisor: float):
    optimizer.zero_grad()
    results = [model(x, y) for x, y in micro_batches]
    (sum(loss for _, loss in results) / divisor).backward()
    optimizer.step()
    return results


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_updates_come_once_per_accumulation_and_replicas(iterations, accumulation, replicas, reduction):
    options = Options(
        device_iterations=iterations, gradient_accumulation=accumulation, replication_factor=replicas,
        reduction=reduction, output_mode="all",
    )  # fmt: skip
    micro, joined = 4, accumulation * replicas
    x, y = make_data(micro * options.batch_factor)
    model, reference = Line(), Line()
    (prediction, losses), _ = train(model, options, x, y, lr=0.02)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.02)
    pairs = list(zip(x.split(micro), y.split(micro), strict=True))
    expected = []
    for start in range(0, len(pairs), joined):
        expected += eager_update(
            reference, optimizer, pairs[start : start + joined], joined if reduction == "mean" else 1
        )
    torch.testing.assert_close(prediction, torch.cat([p for p, _ in expected]))
    torch.testing.assert_close(losses.reshape(-1), torch.stack([loss for _, loss in expected]))
    torch.testing.assert_close(list(model.parameters()), list(reference.parameters()))


@pytest.mark.parametrize(
    ("mode", "period", "shapes"),
    [("all", 1, (48, 12)), ("final", 1, (8, 2)), ("every_n", 3, (16, 4)), ("sum", 1, (8, 2)), (None, 1, (8, 2))],
)
def test_sizes_of_results_for_each_output_mode(mode, period, shapes):
    options = Options(
        device_iterations=3, gradient_accumulation=2, replication_factor=2, output_mode=mode, output_period=period
    )
    (prediction, loss), _ = train(Line(), options, *make_data(4 * 12))
    assert (len(prediction), len(loss)) == shapes


def test_output_modes_pick_the_steps_they_name():
    x = torch.arange(12.0)
    double = inference_model(Double(), Options(device_iterations=4, replication_factor=1))
    assert torch.equal(double(x), 2 * x)
    final = inference_model(Double(), Options(device_iterations=4, output_mode="final"))
    assert torch.equal(final(x), 2 * x[9:])
    every = inference_model(Double(), Options(device_iterations=4, output_mode="every_n", output_period=2))
    assert torch.equal(every(x), 2 * torch.cat([x[3:6], x[9:]]))
    total = inference_model(Double(), Options(device_iterations=4, output_mode="sum"))
    assert torch.equal(total(x), 2 * x.view(4, 3).sum(0))


class Double(nn.Module):
    def forward(self, x):
        return 2 * x


def test_scalars_become_vectors_only_where_there_are_several():
    assert train(Line(), Options(), *make_data(4))[0][1].shape == ()
    options = Options(device_iterations=2, output_mode="all")
    assert train(Line(), options, *make_data(8))[0][1].shape == (2,)


def test_later_device_iterations_see_updated_weights():
    x, y = torch.ones(4), torch.full((4,), 2.0)
    (_, losses), _ = train(Line(), Options(device_iterations=4, output_mode="all"), x, y)
    assert (losses[1:] < losses[:-1]).all()


def test_a_batch_that_cannot_be_divided_is_refused_by_name():
    with pytest.raises(ValueError, match=r"Invalid batch dimension: argument `x` has shape \[7\].*multiple of 2"):
        train(Line(), Options(device_iterations=2), *make_data(7))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda x, y: (x[:2], y), r"`x` is float32\[2\].*compiled for float32\[4\]"),
        (lambda x, y: (x, y.double()), r"`y` is float64\[4\]"),
        (lambda x, y: (x, [y]), r"`y` is list of 1"),
    ],
)
def test_another_signature_is_refused_by_name(changed, message):
    x, y = make_data(4)
    _, step = train(Line(), Options(), x, y)
    for ask in (step, step.compile):
        with pytest.raises(ValueError, match=message):
            ask(*changed(x, y))


class Scaled(nn.Module):
    def forward(self, x, factor):
        return factor * x


def test_a_number_is_part_of_the_program():
    model = inference_model(Scaled())
    assert torch.equal(model(torch.ones(2), 3), torch.full((2,), 3.0))
    with pytest.raises(ValueError, match="`factor` is 4, but the model was compiled for 3"):
        model(torch.ones(2), 4)
    model.reset()
    assert torch.equal(model(torch.ones(2), 4), torch.full((2,), 4.0))


def test_weights_are_in_step_on_both_sides():
    model = Line()
    _, step = train(model, Options(), *make_data(4))
    assert model.slope.item() != 0
    assert torch.equal(step.state_dict()["slope"], model.slope)
    with torch.no_grad():
        model.slope.fill_(3.0)
        model.bias.fill_(1.0)
    assert step(*make_data(4))[1] < 1e-12
    assert model.slope.item() == pytest.approx(3.0)


def test_loaded_weights_are_used_at_once():
    model, other = Line(), Line(slope=3.0)
    _, step = train(model, Options(), *make_data(4))
    step.load_state_dict(other.state_dict())
    assert torch.equal(model.slope, other.slope)
    model.slope.data = torch.tensor([7.0])  # new memory
    prediction, _ = step(torch.ones(4), torch.full((4,), 7.0))
    assert torch.equal(prediction, torch.full((4,), 7.0))


def test_inference_rejects_accumulation_and_optimizers():
    with pytest.raises(ValueError, match="no gradients to accumulate"):
        inference_model(Line(), Options(gradient_accumulation=2))
    with pytest.raises(ValueError, match="has no optimizer"):
        inference_model(Line()).set_optimizer(torch.optim.SGD(Line().parameters(), lr=1))


def test_a_wrapped_model_is_not_wrapped_again():
    with pytest.raises(ValueError, match="wrapped already"):
        training_model(training_model(Line()))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(3), nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(self.norm(x)).square().mean()


def test_running_statistics_update_and_inference_uses_them():
    torch.manual_seed(0)
    model = Normed()
    reference = copy.deepcopy(model)
    x = torch.randn(12, 3)
    step = training_model(model, Options(device_iterations=3), torch.optim.SGD(model.parameters(), lr=0.1))
    step(x)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for part in x.split(4):
        optimizer.zero_grad()
        reference(part).backward()
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), reference.state_dict())
    assert int(model.norm.num_batches_tracked) == 3


def test_replicas_keep_their_own_statistics():
    torch.manual_seed(0)
    model = Normed()
    alone = copy.deepcopy(model)
    x = torch.cat([torch.randn(4, 3), 5 + torch.randn(4, 3)])
    training_model(model, Options(replication_factor=2))(x)
    alone(x[:4])
    torch.testing.assert_close(model.norm.running_mean, alone.norm.running_mean)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x):
        kept = nn.functional.dropout(self.weight * x, 0.5)
        return kept, kept.sum()


def run_dropout(seed: int | None, **options):
    model = Dropped()
    options = Options(random_seed=seed, output_mode="all", **options)
    step = training_model(model, options, torch.optim.SGD(model.parameters(), lr=0.0))
    return step(torch.ones(64 * options.batch_factor))[0].view(-1, 64)


def test_dropout_comes_from_the_seed_and_differs_each_step_and_replica():
    masks = run_dropout(3, device_iterations=2, replication_factor=2)
    assert torch.equal(masks, run_dropout(3, device_iterations=2, replication_factor=2))
    assert not torch.equal(masks, run_dropout(4, device_iterations=2, replication_factor=2))
    assert len({tuple(mask.tolist()) for mask in masks}) == 4


def test_dropout_equals_eager_pytorch_and_leaves_its_generator_alone():
    torch.manual_seed(3)
    expected = torch.stack([Dropped()(torch.ones(64))[0] for _ in range(3)])
    before = torch.get_rng_state()
    assert torch.equal(run_dropout(3, device_iterations=3), expected.detach())
    assert torch.equal(torch.get_rng_state(), before)


class OfGraphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, data, extra):
        sums = torch.zeros(data.num_graphs, 1).index_add(0, data.batch, self.linear(data.x) * extra["scale"][0])
        return {"data": data, "sums": LabelPair(sums, [data.x])}


LabelPair = namedtuple("LabelPair", ["sums", "parts"])


def test_graph_batches_and_nests_are_arguments_and_results():
    torch.manual_seed(0)
    graphs = [Data(x=torch.randn(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]])) for _ in range(2)]
    batch, model = Batch.from_data_list(graphs), OfGraphs()
    result = inference_model(model)(batch, {"scale": (torch.tensor(2.0),)})
    expected = model(batch, {"scale": (torch.tensor(2.0),)})
    assert type(result["sums"]) is LabelPair
    torch.testing.assert_close(result["sums"].sums, expected["sums"].sums.detach())
    torch.testing.assert_close(result["sums"].parts[0], batch.x)
    assert type(result["data"]) is type(batch)
    assert torch.equal(result["data"].edge_index, batch.edge_index)
    assert result["data"].num_graphs == 2
    compiled = inference_model(model)
    compiled(batch, {"scale": (torch.tensor(2.0),)})
    with pytest.raises(ValueError, match=r"`data.x` is float32\[3, 2\]"):
        compiled(Batch.from_data_list(graphs[:1]), {"scale": (torch.tensor(2.0),)})


class Doubles(nn.Module):
    def forward(self, batch):
        return batch.update({"x": 2 * batch.x})


def test_graph_data_that_comes_back_holds_what_is_no_tensor_of_its_own_call():
    def load(name: str, sizes: list[int]) -> Batch:
        return Batch.from_data_list([Data(x=torch.ones(n, 2), name=f"{name}{n}") for n in sizes])

    model = inference_model(Doubles())
    for batch in (load("a", [1, 3]), load("b", [2, 2])):
        result = model(batch)
        assert result.name == batch.name
        assert [len(graph.x) for graph in result.to_data_list()] == batch.ptr.diff().tolist()
        assert torch.equal(result.x, 2 * batch.x)


class Replaces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count = self.count + 1
        return x + self.count


def test_a_replaced_buffer_is_written_in_each_micro_batch():
    model = Replaces()
    result = inference_model(model, Options(device_iterations=3))(torch.zeros(3))
    assert result.tolist() == [1, 2, 3]
    assert model.count.tolist() == [3]


class Losses(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.ones(3))

    def forward(self, x):
        scaled = self.weight * x
        first, second = scaled.sum(), scaled.square().sum()
        if self.kind == "none":
            return scaled
        return first, second if self.kind == "several" else identity_loss(second, "none")


def test_the_loss_is_found_or_asked_for():
    for kind, message in [("none", "returns no scalar"), ("several", "2 scalars that could be the loss")]:
        with pytest.raises(ValueError, match=message + ".*identity_loss"):
            training_model(Losses(kind))(torch.ones(3))
    model = Losses("marked")
    training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))(torch.ones(3))
    torch.testing.assert_close(model.weight.detach(), torch.full((3,), 0.8))


def test_calling_backward_on_a_result_is_an_error():
    (_, loss), _ = train(Line(), Options(), *make_data(4))
    with pytest.raises(RuntimeError, match="has run the backward pass"):
        loss.backward()


def test_nan_names_operation_and_line():
    model = inference_model(Logarithm(), Options(floating_point_exceptions=True))
    assert torch.equal(model(torch.ones(2)), torch.zeros(2))
    message = r"aten.log.default in the forward pass gave NaN.*test_compiled_calls.py:\d+ in forward"
    with pytest.raises(FloatingPointError, match=message):
        model(torch.tensor([1.0, -1.0]))
    assert inference_model(Logarithm())(torch.tensor([1.0, -1.0])).isnan().any()


class Logarithm(nn.Module):
    def forward(self, x):
        return torch.log(x)


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return (self.weight * x).abs().sqrt().sum()


def test_infinity_in_the_backward_pass_names_the_forward_line():
    model = training_model(Root(), Options(floating_point_exceptions=True))
    with pytest.raises(FloatingPointError, match=r"in the backward pass gave infinity.*in forward: return .*sqrt\(\)"):
        model(torch.ones(3))


def test_an_update_that_breaks_weights_names_them():
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = training_model(model, Options(floating_point_exceptions=True), optimizer)
    step(*make_data(4))
    optimizer.param_groups[0]["lr"] = 3e38
    with pytest.raises(FloatingPointError, match=r"SGD's update of step 1 gave .* from finite gradients: bias, slope"):
        step(*make_data(4))


def test_each_replica_returns_its_own_buffer():
    class Total(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(1))

        def forward(self, x):
            self.total.add_(x)
            return self.total

    total = Total()
    model = inference_model(total, Options(replication_factor=2))
    assert [model(torch.tensor([1.0, 2.0])).tolist() for _ in range(2)] == [[1.0, 2.0], [2.0, 4.0]]
    assert total.total.item() == 2.0  # the module shows the first replica's
