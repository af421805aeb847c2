"""Inside any mode of torch, a public function has the same results as eager code, or refuses clearly."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch_geometric.data import Data

import popgeo
from popgeo import FixedSizeDataLoader, FixedSizeNeighborLoader, FixedSizeOptions, ipu

SIZES = FixedSizeOptions(num_nodes=24, num_edges=70, num_graphs=4)


class Net(nn.Module):
    """A model with dropout, a no-op that returns its input in inference mode, and a result that is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.drop, self.noisy = nn.Linear(4, 3), nn.Dropout(0.5), nn.RReLU()
        self.maps = nn.Sequential(nn.AlphaDropout(0.5), nn.FeatureAlphaDropout(0.5), nn.Dropout1d(0.5))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.drop(self.line(x).relu())
        h = torch.cat([h, 2 * h, torch.ones(len(h), 1)], 1)
        same = self.maps(h.contiguous().to(h.dtype))
        h = self.noisy(same.reshape(h.shape)) + same.sum_to_size(h.shape)
        return torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])


class Loss(Net):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index).square().mean()


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


LIKE_EAGER: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "device cpu": lambda: torch.device("cpu"),
    "float64": lambda: default_type(torch.float64),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one),
}
REFUSED = {"dual numbers": forward_ad.dual_level, "fake tensors": lambda: FakeTensorMode(allow_non_fake_inputs=True)}


@cache
def graphs() -> list[Data]:
    torch.manual_seed(0)
    return [Data(x=torch.randn(n, 4), edge_index=torch.randint(0, n, (2, 3 * n))) for n in (5, 7, 4)]


@cache
def batch() -> tuple[Tensor, Tensor]:
    made = next(iter(FixedSizeDataLoader(graphs(), 4, fixed_size_options=SIZES)))
    return made.x, made.edge_index


@cache
def model() -> Net:
    torch.manual_seed(1)
    return Net().eval()


@cache
def gin() -> nn.Module:
    torch.manual_seed(1)
    return popgeo.GIN(4, 8, 2, out_channels=3, readout="sum").eval()


@cache
def compiled_before() -> ipu.CompiledStep:
    step = popgeo.compile_forward(model())
    step(*batch())
    return step


def of_gin() -> Tensor:
    rows = [torch.zeros(len(one.x), dtype=torch.long) for one in graphs()]
    parts = zip(graphs(), rows, strict=True)
    return torch.cat([gin()(one.x, one.edge_index, batch=row, num_graphs=1) for one, row in parts])


@cache
def exported() -> Path:
    return popgeo.export(gin(), SIZES, "surroundings.pt2", graphs=graphs())


def trained(compiled: Callable[..., Any] | None) -> list[Tensor]:
    with default_type(torch.float32):
        torch.manual_seed(1)
        net = Loss().eval()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    step = None if compiled is None else compiled(net, optimizer)
    losses = []
    for _ in range(2):
        if step is None:
            optimizer.zero_grad()
            losses.append(net(*batch()))
            losses[-1].backward()
            optimizer.step()
        else:
            losses.append(step(*batch()))
    return [*losses, *net.parameters()]


FORWARD: dict[str, Callable[[], Any]] = {
    "compile_forward": lambda: popgeo.compile_forward(model())(*batch()),
    "compile_forward, compiled before": lambda: compiled_before()(*batch()),
    "inference_model": lambda: popgeo.inference_model(model())(*batch()),
    "ipu.compile": lambda: ipu.compile(lambda x, edges: model()(x, edges), batch())(*batch()),
}
ON_GRAPHS: dict[str, Callable[[], Any]] = {
    "Predictor": lambda: popgeo.Predictor(gin(), SIZES)(graphs())["out"],
    "load": lambda: popgeo.load(exported())(graphs())["out"],
}
TRAINING: dict[str, Callable[[], Any]] = {
    "compile_step": lambda: trained(popgeo.compile_step),
    "training_model": lambda: trained(lambda net, optimizer: popgeo.training_model(net, optimizer=optimizer)),
}
LOADERS: dict[str, Callable[[], Any]] = {
    "FixedSizeDataLoader": lambda: next(iter(FixedSizeDataLoader(graphs(), 4, fixed_size_options=SIZES))),
    "FixedSizeNeighborLoader": lambda: next(
        iter(FixedSizeNeighborLoader(graphs()[1], num_neighbors=[2], batch_size=3, seed=0))
    ),
}


def assert_same(made: Any, expected: Any) -> None:
    torch.testing.assert_close(made, expected, rtol=2e-2 if made.dtype is torch.bfloat16 else 1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("around", LIKE_EAGER)
@pytest.mark.parametrize("door", FORWARD)
def test_a_compiled_forward_pass_gives_the_numbers_of_eager_code(door: str, around: str):
    batch(), compiled_before()
    with LIKE_EAGER[around]():
        made, expected = FORWARD[door](), model()(*batch()).detach()
    assert_same(made, expected)
    assert_same(compiled_before()(*batch()), model()(*batch()).detach())  # the same step also works outside of the mode
    assert made.is_inference() == expected.is_inference()


@pytest.mark.parametrize("around", LIKE_EAGER)
@pytest.mark.parametrize("door", ON_GRAPHS)
def test_predictions_are_those_of_eager_code(door: str, around: str):
    exported()
    with LIKE_EAGER[around]():
        made, expected = ON_GRAPHS[door](), of_gin().detach()
    assert_same(made, expected)


@pytest.mark.parametrize("around", LIKE_EAGER)
@pytest.mark.parametrize("door", TRAINING)
def test_a_training_step_trains_like_eager_code_or_says_that_gradients_are_switched_off(door: str, around: str):
    batch()
    with LIKE_EAGER[around]():
        if not torch.is_grad_enabled():
            with pytest.raises(ValueError, match=r"call the step outside of no_grad\(\) and inference_mode\(\)"):
                TRAINING[door]()
            return
        for made, expected in zip(TRAINING[door](), trained(None), strict=True):
            torch.testing.assert_close(made, expected, rtol=1e-2 if around == "autocast" else 1e-5, atol=1e-4)


@pytest.mark.parametrize("around", [*LIKE_EAGER, "device meta"])
@pytest.mark.parametrize("door", LOADERS)
def test_loaders_make_the_same_batches(door: str, around: str):
    expected = LOADERS[door]()
    with torch.device("meta") if around == "device meta" else LIKE_EAGER[around]():
        made = LOADERS[door]()
    for name, one in expected.to_dict().items():
        assert not isinstance(one, Tensor) or torch.equal(made[name], one)


@pytest.mark.parametrize("door", FORWARD | ON_GRAPHS | TRAINING)
def test_another_default_device_is_no_concern_of_what_is_compiled(door: str):
    exported(), compiled_before()
    torch.manual_seed(1)
    made = Loss().eval() if door in TRAINING else None
    with torch.device("meta"):
        if made is None:
            assert_same((FORWARD | ON_GRAPHS)[door](), outside(door))
            return
        step = popgeo.compile_step(made, torch.optim.SGD(made.parameters(), lr=0.1))
        assert step(*batch()).isfinite()


def outside(door: str) -> Tensor:
    with torch.device("cpu"):
        return (model()(*batch()) if door in FORWARD else of_gin()).detach()


@pytest.mark.parametrize("around", REFUSED)
@pytest.mark.parametrize("door", FORWARD | ON_GRAPHS | TRAINING)
def test_what_has_no_data_or_needs_other_derivatives_is_refused_by_name(door: str, around: str):
    exported(), compiled_before()
    with REFUSED[around](), pytest.raises(ValueError, match=r"A compiled step was called inside|dual_level"):
        (FORWARD | ON_GRAPHS | TRAINING)[door]()


TRANSFORMS: dict[str, Callable[[Callable[..., Any], Tensor], Any]] = {
    "grad": lambda f, x: torch.func.grad(lambda one: f(one).sum())(x),
    "vmap": lambda f, x: torch.func.vmap(f)(x[None]),
    "hessian": lambda f, x: torch.func.hessian(lambda one: f(one).sum())(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "around something else": lambda f, x: torch.func.grad(lambda one: one.sum() + f(x).sum())(x),
    "jit.trace": lambda f, x: torch.jit.trace(lambda one: f(one), (x,)),
    "inside a model": lambda f, x: ipu.compile(lambda one: f(one), (x,))(x),
    "autograd.functional": lambda f, x: torch.autograd.functional.hessian(lambda one: f(one).sum(), x),
    "a backward pass": lambda f, x: f(x.clone().requires_grad_()).sum().backward(),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit's
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("is_new", [False, True])
def test_a_compiled_forward_pass_refuses_to_be_transformed(transform: str, is_new: bool):
    step = popgeo.compile_forward(model()) if is_new else compiled_before()
    with pytest.raises(ValueError, match=r"A compiled (step was called inside|forward pass has no derivative)"):
        TRANSFORMS[transform](lambda x: step(x, batch()[1]), batch()[0])
    assert_same(compiled_before()(*batch()), model()(*batch()).detach())


def test_numbers_do_not_depend_on_where_a_step_was_compiled_and_where_the_model_was_made():
    with torch.inference_mode():
        born, constant = Net().eval(), torch.ones(1, 4)
        inside = popgeo.compile_forward(born)
        held = ipu.compile(lambda x: torch.cat([h := torch.dropout(constant + 0 * x, 0.5, False), 2 * h]), (constant,))
        made = inside(*batch())
    for step in (inside, popgeo.compile_forward(born)):
        assert_same(step(*batch()), born(*batch()))
    assert_same(made.clone(), born(*batch()))
    assert torch.equal(held(torch.ones(1, 4)), torch.tensor([[1.0] * 4, [2.0] * 4]))
    assert ipu.check_static(born, *batch()) == []
