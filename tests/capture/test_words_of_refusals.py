"""A model that cannot be compiled is refused with its line and a remedy."""

import logging

import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData

from popgeo import Predictor, compile_forward, compile_step, ipu
from popgeo.nn import convert_norms

BATCH = Data(x=torch.ones(5, 16), edge_index=torch.zeros(2, 3, dtype=torch.long), nodes_mask=torch.ones(5).bool())


class Net(nn.Module):
    def __init__(self, broken) -> None:
        super().__init__()
        self.linear, self.broken = nn.Linear(16, 4), broken

    def forward(self, x, edge_index, nodes_mask=None):
        return self.linear(x), self.broken(x)


SHAPES = {
    "product": (lambda x: x @ torch.ones(17, 4), r"5x16 and 17x4\), in .*test_words_of_refusals.py:\d+ in <lambda>: "),
    "sum": (lambda x: x + torch.ones(3), "must match the size of tensor b .*, in .*in <lambda>: "),
    "index": (lambda x: x.select(1, 99), "out of range .*, in .*in <lambda>: "),
    "cat": (lambda x: torch.cat([x, x[:, :2]], 0), ", in .*in <lambda>: "),
}


@pytest.mark.parametrize(("broken", "says"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("run", [compile_forward, lambda m: lambda b: ipu.check_static(m, b), ipu.inference_model])
def test_shapes_that_do_not_fit_end_with_the_models_line_and_without_torchs_log(broken, says, run, caplog):
    with caplog.at_level(logging.ERROR), pytest.raises((RuntimeError, IndexError), match=says):
        run(Net(broken))(BATCH)
    assert not caplog.records


class Differentiates(nn.Module):
    def __init__(self, by) -> None:
        super().__init__()
        self.weight, self.other, self.by = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2)), by

    def forward(self, x):
        energy = (x * x * self.weight * self.other).sum()
        return energy + torch.autograd.grad(energy, self.by(self, x), create_graph=True)[0].square().sum()


BY = {"argument": lambda model, x: x, "weight": lambda model, x: model.other}


@pytest.mark.parametrize("name", BY)
def test_a_derivative_by_an_input_without_a_gradient_is_refused_with_the_remedy(name):
    model, x = Differentiates(BY[name]), torch.ones(2, requires_grad=True)
    assert model(x).isfinite()
    for step in (compile_forward(model), compile_step(model, torch.optim.SGD([model.weight], lr=0.1))):
        with pytest.raises(ValueError, match=r"requires no gradient.*\b(x|other)\b.*detach\(\).requires_grad_\(\)"):
            step(x)


def test_a_derivative_by_a_trained_weight_is_part_of_the_step():
    model, x = Differentiates(BY["weight"]), torch.ones(2)
    expected = model(x).detach()
    torch.testing.assert_close(compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1))(x), expected)


def test_a_static_check_takes_a_batch_by_names_as_a_step_does():
    (problem,) = ipu.check_static(Net(lambda x: x[x > 0]), BATCH)
    assert problem.operation == "index"
    assert ipu.check_static(Net(torch.sum), BATCH) == ipu.check_static(Net(torch.sum), BATCH.x, BATCH.edge_index) == []
    assert ipu.check_static(lambda batch: batch.x + 1, BATCH) == []
    hetero = HeteroData(a={"x": torch.ones(2, 16)})
    assert ipu.check_static(lambda x_dict: x_dict["a"].sum(), hetero) == []


@pytest.mark.parametrize("show", [lambda x: print(float(x.mean())), lambda x: print(x.sum().item(), x.shape)])
def test_a_print_in_a_model_is_answered_with_the_function_that_prints_at_each_run(show):
    with pytest.raises(ValueError, match=r"Remedy: print a tensor at each run with popgeo.ipu.print_tensor\(x\)"):
        compile_forward(Net(show))(BATCH)


@pytest.mark.parametrize(
    "wrap",
    [compile_forward, ipu.inference_model, lambda m: lambda b: Predictor(m)([Data(x=b.x, edge_index=b.edge_index)])],
)
def test_a_model_of_torch_compile_is_refused_with_the_remedy(wrap):
    with pytest.raises(ValueError, match=r"compiled by torch.compile already.* Pass the original model"):
        wrap(torch.compile(Net(torch.sum)))(BATCH)


def test_a_training_step_of_torch_compile_is_refused_too():
    model = Net(torch.sum)
    with pytest.raises(ValueError, match=r"compiled by torch.compile already"):
        compile_step(torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.1))


def test_weights_that_are_all_frozen_are_not_taken_for_those_of_another_model():
    model = nn.Linear(16, 1).requires_grad_(False)
    with pytest.raises(ValueError, match="No parameter in the optimizer requires a gradient"):
        compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1))(BATCH.x)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="holds no parameter of the model"):
        compile_step(model.requires_grad_(True), other)(BATCH.x)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.norm(x)


def test_a_converted_norm_needs_no_mask_to_evaluate():
    plain = Normed()
    plain.norm.running_mean.normal_(generator=torch.Generator().manual_seed(0))
    converted = convert_norms(plain)
    for run in (converted.eval(), compile_forward(converted.eval())):
        torch.testing.assert_close(run(BATCH.x), plain.eval()(BATCH.x))
    with pytest.raises(ValueError, match="the call has no mask"):
        converted.train()(BATCH.x)
