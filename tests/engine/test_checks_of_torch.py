"""Errors of torch's own checks also come from a compiled program, a cached step and a file."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

import popgeo
from popgeo import FixedSizeOptions, StepOptions, compile_forward, compile_step
from popgeo.nn import SchNet
from tests.contracts.test_checks_hold_when_captured import Function

EYE, ZEROS = torch.eye(3), torch.zeros(3, 3)
CLASSES = torch.tensor([0, 1, 2])


def positive(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all(), "x must be positive.")
    return x * 2


CASES = {
    "one_hot of a class too many": (lambda z: F.one_hot(z, 3), CLASSES, torch.tensor([0, 3, 1])),
    "one_hot of a negative class": (lambda z: F.one_hot(z, 3), CLASSES, torch.tensor([0, -1, 1])),
    "cholesky": (torch.linalg.cholesky, EYE, -EYE),
    "inv": (torch.linalg.inv, EYE, ZEROS),
    "inverse": (torch.inverse, EYE, ZEROS),
    "solve": (lambda a: torch.linalg.solve(a, torch.ones(3)), EYE, ZEROS),
    "lu_factor": (lambda a: torch.linalg.lu_factor(a)[0], EYE, ZEROS),
    "eigh": (lambda a: torch.linalg.eigh(a)[0], EYE, ZEROS * torch.nan),
    "svd": (lambda a: torch.linalg.svd(a)[1], EYE, ZEROS * torch.nan),
    "an assertion": (positive, torch.ones(3), -torch.ones(3)),
    "embedding": (lambda i: F.embedding(i, EYE), CLASSES, torch.tensor([5, 1, 1])),
    "nll_loss": (lambda t: F.nll_loss(EYE, t), CLASSES, torch.tensor([0, 1, 7])),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x, EYE), EYE / 2, EYE * 2),
    "multinomial": (lambda p: torch.multinomial(p, 1).float(), torch.ones(3), -torch.ones(3)),
    "scatter": (lambda i: torch.zeros(3).scatter(0, i, 1.0), CLASSES, CLASSES + 1),
}


@pytest.mark.parametrize("name", CASES)
def test_what_torch_refuses_is_refused_when_compiled(name):
    function, right, wrong = CASES[name]
    model = Function(function)
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        model(wrong)
    compiled = compile_forward(model)
    compiled(right)
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        compiled(wrong)


class OfItsOwn(nn.Module):
    """A model that checks its own tensors: a buffer, or a constant of its `forward`."""

    def __init__(self, classes: Tensor, is_buffer: bool) -> None:
        super().__init__()
        self.classes = nn.Buffer(classes.clone()) if is_buffer else None
        self.numbers = classes.tolist()

    def forward(self, x: Tensor) -> Tensor:
        return x * F.one_hot(torch.tensor(self.numbers) if self.classes is None else self.classes, 3)


@pytest.mark.parametrize("is_buffer", [True, False])
def test_checks_of_what_a_model_holds_run_as_eager_code_does(is_buffer):
    model = OfItsOwn(CLASSES, is_buffer)
    compiled = compile_forward(model)
    assert torch.equal(compiled(EYE), model(EYE))
    with pytest.raises(RuntimeError, match="one_hot: a class is negative"):
        compile_forward(OfItsOwn(CLASSES + 1, is_buffer))(EYE)
    if is_buffer:
        model.classes[0] = 3
        with pytest.raises(RuntimeError, match="one_hot: a class is negative"):
            compiled(EYE)


@pytest.mark.parametrize("name", ["one_hot of a class too many", "an assertion"])
def test_checks_stay_in_a_training_step_and_in_one_that_is_kept(name, tmp_path):
    function, right, wrong = CASES[name]
    for _ in range(2):  # the second time the step is read from the folder
        model = Function(lambda x: function(x).float().sum())
        step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.0), options=StepOptions(cache_dir=tmp_path))
        step(right)
        with pytest.raises(RuntimeError):
            step(wrong)


class Elements(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 2)

    def forward(self, z: Tensor) -> Tensor:
        return self.lin(F.one_hot(z, 3).float())


def test_a_file_checks_what_its_model_checked(tmp_path):
    known, unknown = (Data(z=torch.tensor(z), pos=torch.zeros(3, 3)) for z in ([0, 1, 2], [0, 1, 5]))
    path = popgeo.export(Elements(), FixedSizeOptions(8, 0, 3), tmp_path / "model.pt2", graphs=[known])
    program = popgeo.load(path)
    assert program([known])["out"].shape == (3, 2)
    with pytest.raises(ValueError, match="Graph 0: one_hot: a class is negative or not below num_classes, 3"):
        program([unknown])


def test_a_program_of_crystals_with_forces_is_written_and_read(tmp_path):
    atoms = {
        "z": torch.tensor([29, 29]),
        "pos": torch.tensor([[0.0, 0, 0], [0, 0, 2]]),
        "edge_index": torch.tensor([[0, 1], [1, 0]]),
    }
    crystal = Data(**atoms, edge_shift=torch.zeros(2, 3), cell=torch.eye(3)[None] * 4)
    model = SchNet(8, 8, 1, cutoff=3.0)
    path = popgeo.export(model, FixedSizeOptions(8, 12, 3), tmp_path / "model.pt2", graphs=[crystal], forces=True)
    found = popgeo.load(path)([crystal, crystal])
    expected = popgeo.Predictor(model, forces=True)([crystal])
    for name in ("energy", "forces", "stress"):
        torch.testing.assert_close(found[name][: len(expected[name])], expected[name])
