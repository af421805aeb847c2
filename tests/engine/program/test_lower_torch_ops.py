"""Native calls run torch's own kernels, with torch's results, bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from popgeo.capture.op_graph import overload
from popgeo.engine.program import lower_torch_ops
from popgeo.engine.program.lower_torch_ops import lower_with_torch
from popgeo.native import library
from tests.support.one_operation import bytes_of, one_operation, places_like, run

pytestmark = pytest.mark.skipif(not library.is_available(), reason="native calls need the compiled library")
ATEN = torch.ops.aten
SHAPES = [(40, 64), (7, 1), (3, 5, 33), (0, 4), (1000, 40)]


@pytest.fixture(autouse=True, params=[1, 2])
def num_threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(0)
    with torch._C._AutoDispatchBelowAutograd():  # as in a step
        yield
    torch.set_num_threads(before)


def in_one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of torch, whose bits may depend on the number of threads, in one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*arguments)
    finally:
        torch.set_num_threads(before)


def check(name: str, *arguments: Any) -> None:
    """Check that two runs of the native call give the bits of one thread and change the same operands."""
    target = f"aten.{name}"
    of_torch, ours = ([one.clone() if isinstance(one, Tensor) else one for one in arguments] for _ in range(2))
    results = in_one_thread(overload(target), *of_torch)
    expected = [results] if isinstance(results, Tensor) else [*results]
    made = places_like(expected)
    call = lower_with_torch(*one_operation(target, ours, made))
    assert call is not None
    for _ in range(2):
        assert run(call) == 0
        assert bytes_of(made) == bytes_of(expected)
        assert [bytes_of([one]) for one in ours if isinstance(one, Tensor)] == [
            bytes_of([one]) for one in of_torch if isinstance(one, Tensor)
        ]
        in_one_thread(overload(target), *of_torch)


@pytest.mark.parametrize("name", ["tanh", "exp", "silu", "sigmoid", "sin", "mean", "erf", "cosh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_by_element_are_torchs(name, dtype):
    for shape in SHAPES:
        check(f"{name}.default", torch.randn(shape, dtype=dtype))
    check("topk.default", torch.randn(5, 9, dtype=dtype), 3, 1, True, True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_softmax_and_its_gradient_are_torchs(shape, dtype):
    x, grad = torch.randn(2, *shape, dtype=dtype)
    check("_softmax.default", x, -1, False)
    check("_log_softmax.default", x, 0, False)
    check("_softmax_backward_data.default", grad, x.softmax(-1), -1, dtype)
    check("_log_softmax_backward_data.default", grad, x.log_softmax(0), 0, dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_layer_normalization_and_its_gradients_are_torchs(shape, dtype):
    x, grad = torch.randn(2, *shape, dtype=dtype)
    weight, bias = torch.randn(2, shape[-1], dtype=dtype)
    size = [shape[-1]]
    for affine in ((weight, bias), (None, None)):
        check("native_layer_norm.default", x, size, *affine, 1e-5)
    _, mean, rstd = ATEN.native_layer_norm(x, size, weight, bias, 1e-5)
    for wanted in ([True, True, True], [True, False, False], [False, True, True]):
        check("native_layer_norm_backward.default", grad, x, size, mean, rstd, weight, bias, wanted)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(40, 64), (7, 1), (300, 33), (5, 4, 9)])
def test_batch_normalization_and_its_gradients_are_torchs(shape, training):
    channels = shape[1]
    x, grad = torch.randn(2, *shape)
    weight, bias, mean, var = torch.rand(4, channels) + 1
    check("native_batch_norm.default", x, weight, bias, mean, var, training, 0.1, 1e-5)
    check("_native_batch_norm_legit.default", x, weight, bias, mean, var, training, 0.1, 1e-5)
    _, of_batch, factor = ATEN.native_batch_norm(x, weight, bias, mean.clone(), var.clone(), training, 0.1, 1e-5)
    saved = mean, var, of_batch, factor
    for wanted in ([True, True, True], [True, False, False]):
        check("native_batch_norm_backward.default", grad, x, weight, *saved, training, 1e-5, wanted)


def test_an_error_of_torch_is_reported():
    x, size = torch.randn(3, 4), [5]
    graph, op, tensors = one_operation("aten.native_layer_norm.default", (x, size, None, None, 1e-5), [x.clone()] * 3)
    call = lower_with_torch(graph, op, tensors)
    assert call is not None
    assert run(call) != 0


@pytest.mark.parametrize(
    "result", [torch.zeros(2, 4, 16, 10).transpose(2, 3), torch.zeros(2, 4, 10, 17), torch.zeros(2, 4, 10, 16).double()]
)
def test_a_result_of_another_form_is_reported_and_changes_nothing(result):
    q = torch.randn(2, 4, 10, 16)
    name, results = "aten._scaled_dot_product_flash_attention_for_cpu.default", [result, q[..., 0].clone()]
    graph, op, tensors = one_operation(name, (q, q, q), results)
    call = lower_with_torch(graph, op, tensors)
    assert call is None or run(call) != 0
    assert not result.any()


def test_operands_with_gaps_and_arguments_of_other_kinds_are_left_to_python():
    x = torch.randn(4, 4)
    assert lower_with_torch(*one_operation("aten._softmax.default", (x.t(), -1, False), [x.clone()])) is None
    assert lower_with_torch(*one_operation("aten.leaky_relu.default", (x, 0.5), [x.clone()])) is None
    assert lower_with_torch(*one_operation("aten.rand_like.default", (x,), [x.clone()])) is None
    narrow = torch.zeros(4, 4, dtype=torch.uint8).view(torch.bits8)  # a type that torch's C functions do not know
    assert lower_with_torch(*one_operation("aten.tanh.default", (narrow,), [narrow.clone()])) is None


def test_without_torchs_functions_nothing_is_lowered(monkeypatch):
    monkeypatch.setattr(lower_torch_ops, "_torch_library", lambda: None)
    x = torch.randn(4, 4)
    assert lower_with_torch(*one_operation("aten._softmax.default", (x, -1, False), [x.clone()])) is None
