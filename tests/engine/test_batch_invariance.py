"""With `batch_invariant`, bits depend neither on the batch nor on how micro-batches are divided; sums stay sums."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from popgeo import Predictor, StepOptions, compile_forward, compile_step
from popgeo.native import library
from popgeo.nn import GIN
from tests.support.training_on_ranks import train

needs_kernels = pytest.mark.skipif(not library.is_available(), reason="batch_invariant needs the compiled library")
INVARIANT = StepOptions(batch_invariant=True, show_progress=False)


class Computed(nn.Module):
    """A function of two factors and an addend, with weights."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(()))

    def forward(self, *given: Tensor) -> Tensor:
        return self.function(*given)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "gradient of weights": lambda x, y, b: x.t() @ y,
    "product of a row": lambda x, y, b: x[:1] @ y[:7, :5].t(),
    "product with a column": lambda x, y, b: x @ y[:5, :1],
    "product with a vector": lambda x, y, b: x @ b[:5],
    "product of vectors": lambda x, y, b: x[:, 0] @ y[:, 0],
    "product of every other column": lambda x, y, b: x[:, ::2].t() @ y[:, ::2],
    "sum and product": lambda x, y, b: torch.addmm(b[:7], x.t(), y),
    "sum of a column and a product": lambda x, y, b: torch.addmm(b[:5].unsqueeze(1), x.t(), y),
    "products of matrices": lambda x, y, b: x.view(50, 6, 5).transpose(1, 2) @ y.view(50, 6, 7),
    "sum and products": lambda x, y, b: torch.baddbmm(b.view(1, 1, 35)[..., :7], x.view(50, 6, 5).mT, y.view(50, 6, 7)),
    "sum of rows": lambda x, y, b: x.sum(0),
    "sum of rows, kept": lambda x, y, b: x.sum(0, keepdim=True),
    "sum of columns": lambda x, y, b: x.sum(1),
    "sum of a transpose": lambda x, y, b: x.t().sum(1),
    "sum of everything": lambda x, y, b: x.sum(),
    "mean of everything": lambda x, y, b: x.mean(),
    "mean of rows": lambda x, y, b: x.mean(0),
    "sum of outer and inner": lambda x, y, b: x.view(50, 6, 5).sum((0, 2)),
    "mean of outer and inner": lambda x, y, b: x.view(50, 6, 5).mean((0, 2), keepdim=True),
    "sum of permuted rows": lambda x, y, b: x.view(50, 6, 5).permute(2, 0, 1).sum(1),
    "sum of a repeated row": lambda x, y, b: b.expand(300, 35).sum(0),
    "sum of every other column": lambda x, y, b: x[:, ::2].sum(0),
    "sum of one number": lambda x, y, b: x[:1, :1].sum(),
}


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sums_and_products_in_order_are_torchs_up_to_rounding(name: str, dtype: torch.dtype):
    torch.manual_seed(0)
    given = [torch.randn(size, dtype=dtype) for size in ((300, 5), (300, 7), (35,))]
    found = compile_forward(Computed(FUNCTIONS[name]), options=INVARIANT)(*given)
    torch.testing.assert_close(found, FUNCTIONS[name](*given), rtol=1e-5, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("name", ["gradient of weights", "sum of rows", "mean of rows", "sum of everything"])
def test_rows_of_zeros_change_no_bit_of_a_sum(name: str):
    torch.manual_seed(0)
    x, y, b = torch.randn(40, 5), torch.randn(40, 7), torch.randn(35)
    found = set()
    for before, after in ((0, 0), (3, 0), (250, 10), (700, 801)):
        rows = [nn.functional.pad(one, (0, 0, before, after)) for one in (x, y)]
        made = compile_forward(Computed(FUNCTIONS[name]), options=INVARIANT)(*rows, b)
        made = made * len(rows[0]) if "mean" in name else made
        found.add(made.numpy().tobytes() if "mean" not in name else made.round(decimals=3).numpy().tobytes())
    assert len(found) == 1


@needs_kernels
def test_weights_are_the_same_however_micro_batches_are_divided(tmp_path: Path):
    processes = [
        subprocess.Popen([sys.executable, "-m", "tests.support.training_on_ranks", str(tmp_path), str(rank), str(size)])
        for size in (2, 4)
        for rank in range(size)
    ]
    expected = train(1, 4)
    assert torch.equal(train(2, 2), expected)
    assert torch.equal(train(4, 1), expected)
    assert [process.wait(timeout=240) for process in processes] == [0] * 6
    for size in (2, 4):
        assert torch.equal(torch.load(tmp_path / f"{size}.pt"), expected)
    assert not torch.equal(train(2, 2, batch_invariant=False), expected)


@needs_kernels
def test_a_prediction_has_the_same_bits_in_every_batch():
    from popgeo import Molecules

    torch.manual_seed(0)
    graphs = list(Molecules()[:60])
    predictor = Predictor(GIN(11, 32, 2, 1, readout="sum"), batch_size=8, batch_invariant=True)
    together = predictor(graphs)["out"]
    for i in (0, 17, 59):
        assert torch.equal(predictor([graphs[i]])["out"][0], together[i])
    assert torch.equal(predictor(graphs[::-1])["out"].flip(0), together)


@needs_kernels
@pytest.mark.parametrize("options", [{"floating_point_exceptions": True}, {"num_threads": 1}])
def test_the_gradient_is_the_usual_one(options: dict):
    weights = []
    for invariant in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))
        loss = Computed(lambda x, model=model: model(x).square().mean())
        loss.model = model
        step = compile_step(
            loss, torch.optim.SGD(model.parameters(), 0.1), options=StepOptions(batch_invariant=invariant, **options)
        )
        for _ in range(3):
            step(torch.linspace(-1, 1, 3000).view(600, 5))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*weights)
    assert not torch.equal(*weights)


@needs_kernels
@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (nn.Conv1d(2, 2, 3), torch.ones(1, 2, 9), r"aten.convolution.default of float32, in "),
        (nn.Linear(3, 2).bfloat16(), torch.ones(4, 3).bfloat16(), r"aten.addmm.default of bfloat16"),
    ],
)
def test_an_operation_without_a_known_order_is_named(model: nn.Module, given: Tensor, words: str):
    with pytest.raises(ValueError, match=words):
        compile_forward(model, options=INVARIANT)(given)


def test_other_backends_do_not_have_the_option():
    with pytest.raises(ValueError, match="does not support batch_invariant"):
        compile_forward(nn.Linear(3, 2), backend="inductor", options=INVARIANT)
    with pytest.raises(ValueError, match="needs backend='cpu', but the backend is None"):
        Predictor(nn.Linear(3, 2), backend="none", batch_invariant=True)


def test_without_kernels_the_option_raises(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "function", lambda *names: None)
    with pytest.raises(ValueError, match="needs popgeo's compiled matrix products"):
        compile_forward(nn.Linear(3, 2), options=INVARIANT)(torch.ones(4, 3))


class Edges(nn.Module):
    """A layer of edges and a sum over each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 4)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, nodes_mask: Tensor) -> Tensor:
        of_edges = self.lin(x[edge_index[0]] * x[edge_index[1]]).tanh()
        of_nodes = torch.zeros(len(x), 4).index_add(0, edge_index[1], of_edges) * nodes_mask.unsqueeze(1)
        return torch.zeros(5, 4).index_add(0, batch, of_nodes).square().sum()


@needs_kernels
@pytest.mark.parametrize("num_edges", [0, 1, 40])
@pytest.mark.parametrize("batch", [[0, 0, 1, 1, 1, 3, 4, 4], [4] * 8, [0] * 8, [3, 1, 0, 2, 2, 1, 4, 4]])
def test_gradients_are_right_for_any_batch(num_edges: int, batch: list[int]):
    torch.manual_seed(0)
    given = torch.randn(8, 3), torch.randint(8, (2, num_edges)), torch.tensor(batch), torch.tensor(batch) < 4
    weights = []
    for options in (StepOptions(), INVARIANT):
        torch.manual_seed(1)
        model = Edges()
        step = compile_step(model, torch.optim.SGD(model.parameters(), 0.01), options=options)
        step(*given)
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    torch.testing.assert_close(*weights)


@needs_kernels
@pytest.mark.parametrize("softmax", [lambda x: x.softmax(-1), lambda x: x.exp() / x.exp().sum(-1, keepdim=True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_softmax_has_the_same_bits_wherever_hidden_keys_are(dtype: torch.dtype, softmax: Callable[[Tensor], Tensor]):
    torch.manual_seed(0)
    score, weight = torch.randn(3, 25, dtype=dtype), torch.randn(3, 25, dtype=dtype)

    class Softmax(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3, 25, dtype=dtype))

        def forward(self, score: Tensor, weight: Tensor, before: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
            shifted = nn.functional.pad(self.shift, (len(before), len(keys) - 25 - len(before)))
            made = softmax(score + shifted)
            return (made * weight).sum(), made

    found = set()
    for before, after in ((0, 0), (3, 4), (12, 0), (1478, 5)):
        padded = nn.functional.pad(score, (before, after), value=-torch.inf)
        model = Softmax()
        optimizer = torch.optim.Adam(model.parameters(), 0.0, (0.0, 0.0))
        step = compile_step(model, optimizer, options=INVARIANT)
        keys = torch.zeros(padded.shape[1])
        _, made = step(padded, nn.functional.pad(weight, (before, after)), torch.zeros(before), keys)
        own = made[:, before : before + 25].contiguous()
        torch.testing.assert_close(own, score.softmax(-1))
        gradient = optimizer.state[model.shift]["exp_avg"]
        found.add(own.numpy().tobytes() + gradient.numpy().tobytes())
    assert len(found) == 1
