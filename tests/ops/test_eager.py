"""The checks for plain eager code: each way in which torch captures, transforms or observes a call is recognized."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from popgeo.ops import eager, scatter
from popgeo.ops.eager import is_direct, is_eager, is_plain

ONES = torch.ones(2)


class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def in_a_mode(look: Callable[[], None]) -> None:
    with Watch():
        look()


def in_a_transform(look: Callable[[], None]) -> None:
    torch.func.vmap(lambda x: (look(), x)[1])(ONES)


def in_a_trace(look: Callable[[], None]) -> None:
    torch.jit.trace(lambda x: (look(), x + 1)[1], ONES, check_trace=False)


def in_forward_mode(look: Callable[[], None]) -> None:
    with forward_ad.dual_level():
        look()


def in_a_compilation(look: Callable[[], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager, "is_compiling", lambda: True)
        look()


def in_a_cuda_graph(look: Callable[[], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager, "is_capturing", lambda: True)
        look()


SITUATIONS = [in_a_mode, in_a_transform, in_a_trace, in_forward_mode, in_a_compilation, in_a_cuda_graph]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_situation_in_which_torch_sees_the_calls_is_told(situation: Callable[[Callable[[], None]], None]):
    seen = []
    situation(lambda: seen.append((is_plain(), is_eager((ONES,)), is_direct(ONES), is_direct())))
    assert seen == [(False, False, False, False)]
    assert is_plain()
    assert is_eager((ONES, Parameter(ONES), None, 3))
    assert is_direct(ONES)
    assert is_direct()


def test_only_where_gradients_are_wanted_of_one_of_the_tensors_is_autograd_needed():
    leaf = ONES.clone().requires_grad_()
    assert is_eager((ONES, leaf))
    assert not is_direct(leaf)
    assert not is_direct(ONES, leaf)
    with torch.no_grad():
        assert is_direct(ONES, leaf)


def test_gradients_of_many_results_at_once_go_through_the_dispatcher():
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        @once_differentiable
        def backward(ctx, grad: Tensor) -> Tensor:
            seen.append((is_plain(), is_eager((ONES, grad)), is_direct(grad)))
            return grad

    leaf = ONES.clone().requires_grad_()
    torch.autograd.grad(Look.apply(leaf), leaf, torch.eye(2), is_grads_batched=True)
    assert seen == [(True, False, False)]


@pytest.mark.parametrize("arguments", [[ONES], [ONES, 3, None], [3]])
def test_in_forward_mode_tensors_without_a_tangent_are_computed_with(arguments: Sequence[object]):
    with forward_ad.dual_level():
        assert not is_eager(arguments)
        assert scatter(ONES, torch.tensor([1, 1]), dim_size=2).tolist() == [0, 2]


def test_only_in_forward_mode_are_tangents_looked_for(monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(eager, "_refuse_forward_mode", asked.append)
    with Watch():
        assert not is_eager((ONES,))
    assert not asked
    with forward_ad.dual_level():
        assert not is_eager((ONES,))
        assert asked == [(ONES,)]
        monkeypatch.setattr(eager, "is_compiling", lambda: True)
        assert not is_eager((ONES,))
    assert len(asked) == 1


def test_a_tensor_of_another_class_is_not_plain():
    class Own(torch.Tensor):
        pass

    assert not is_eager((ONES, ONES.as_subclass(Own)))
    assert not is_direct(ONES.as_subclass(Own))


def test_a_tangent_is_refused_but_not_looked_for_while_torch_compiles(monkeypatch: pytest.MonkeyPatch):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(ONES, ONES)
        for look in (lambda: is_eager((ONES, 3, dual)), lambda: is_direct(dual)):
            with pytest.raises(ValueError, match="no forward-mode derivative"):
                look()
        monkeypatch.setattr(eager, "is_compiling", lambda: True)
        assert not is_eager((dual,))


def test_a_torch_for_cuda_is_asked_nothing_on_a_computer_without_a_driver(monkeypatch):
    def raises() -> bool:
        raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", raises)
    assert eager.is_plain()
