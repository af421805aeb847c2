"""What a file may name cannot leave its memory: kernels that trust their caller have rules, or are not listed."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.capture.check_read import require_operations
from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from popgeo.capture.safe_operations import needs_forward, require_fitting, safe_operation
from popgeo.ipu import Options, training_model

ONE, TRUE = torch.ones, [True] * 3


def wild(*shape: int) -> Tensor:
    """Indices that no tensor has."""
    return torch.full(shape, 10**9)


# Each of these reads or writes outside its memory, and some end the process.
OUTSIDE: dict[str, tuple[Any, ...]] = {
    "max_pool2d_with_indices_backward.default": (
        ONE(1, 1, 2, 2), ONE(1, 1, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], False, wild(1, 1, 2, 2),
    ),
    "adaptive_max_pool2d_backward.default": (ONE(1, 1, 2, 2), ONE(1, 1, 4, 4), wild(1, 1, 2, 2)),
    "nll_loss_backward.default": (ONE(3), ONE(3, 4), wild(3), None, 0, -100, ONE(())),
    "nll_loss2d_backward.default": (ONE(1, 2, 2), ONE(1, 4, 2, 2), wild(1, 2, 2), None, 0, -100, ONE(())),
    "embedding_dense_backward.default": (ONE(3, 4), wild(3), 5, -1, True),
    "native_layer_norm_backward.default": (ONE(99, 9), ONE(99, 9), [9], ONE(1), ONE(1), ONE(9), ONE(9), TRUE),
    "native_batch_norm.default": (ONE(2, 9999), None, None, ONE(1), ONE(1), False, 0.1, 1e-5),
    "_native_batch_norm_legit.default": (ONE(2, 9999), ONE(1), ONE(1), ONE(1), ONE(1), True, 0.1, 1e-5),
    "native_batch_norm_backward.default": (
        ONE(2, 9999), ONE(2, 9999), None, None, None, ONE(1), ONE(1), True, 1e-5, TRUE,
    ),
    "_log_softmax_backward_data.default": (ONE(9999, 40), ONE(1, 4), 1, torch.float32),
    "_cdist_backward.default": (ONE(1, 1), ONE(400, 30), ONE(500, 30), 2.0, ONE(1, 1)),
    "_adaptive_avg_pool2d_backward.default": (ONE(1, 640, 40, 40), ONE(1, 1, 1, 1)),
    "_scaled_dot_product_flash_attention_for_cpu.default": (ONE(8, 64, 64, 32), ONE(1, 1, 640, 32), ONE(1, 1, 640, 32)),
    "unfold_backward.default": (ONE(3, 4, 2), [3, 50000], 1, 2, 1),
    "convolution_backward.default": (
        ONE(1, 1, 1), ONE(1, 100, 400), ONE(50, 100, 3), [50], [1], [0], [1], False, [0], 1, TRUE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_kernel_that_would_leave_its_memory_is_refused(name: str):
    func = safe_operation(f"aten.{name}")
    if needs_forward(str(func)):
        return  # see below: nothing but its forward operation makes its indices
    with pytest.raises(ValueError, match="sizes do not belong together"):
        require_fitting(func, OUTSIDE[name], {})


def test_no_file_names_an_update_of_an_optimizer():
    with pytest.raises(ValueError, match="not one of the operations"):
        safe_operation("aten._fused_sgd_.default")


@pytest.mark.parametrize(
    "name",
    ["_reshape_alias", "set_", "resize_", "_embedding_bag", "max_unpool2d", "segment_reduce", "_ctc_loss", "from_file"],
)
def test_operations_that_are_not_listed_are_refused(name: str):
    for overload in getattr(torch.ops.aten, name).overloads():
        with pytest.raises(ValueError, match="is not one of the operations that a file may hold"):
            safe_operation(f"aten.{name}.{overload}")


def graph_of(target: str, args: tuple[Any, ...]) -> OpGraph:
    """One operation on the tensors of these arguments, all of which are given."""
    values: list[Value] = []

    def given(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        values.append(
            Value(shape=tuple(part.shape), stride=part.stride(), offset=0, dtype=part.dtype, storage=len(values),
                  producer=None)
        )  # fmt: skip
        return Ref(len(values) - 1)

    refs = tuple(map(given, args))
    inputs = {Input(Role.ARGUMENT, f"x{v}"): v for v in range(len(values))}
    made = Value(**{**vars(values[1]), "storage": len(values), "producer": 0})
    op = Op(target=target, args=refs, outputs=(len(values),))
    return OpGraph(ops=(op,), values=(*values, made), inputs=inputs, outputs=(len(values),))


@pytest.mark.parametrize("name", [name for name in OUTSIDE if needs_forward(f"aten.{name}")])
def test_indices_that_no_forward_operation_made_or_checked_are_refused(name: str):
    assert sum(needs_forward(f"aten.{name}") for name in OUTSIDE) == 4
    with pytest.raises(ValueError, match="takes indices that its forward operation has not checked"):
        require_operations(graph_of(f"aten.{name}", OUTSIDE[name]))


class Layer(nn.Module):
    def __init__(self, loss: Callable[..., Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.loss, self.inner = loss, nn.ModuleList(modules)
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.inner, x * self.weight, y)


KEPT: dict[str, tuple[Any, ...]] = {
    "cross entropy": (lambda m, x, y: F.cross_entropy(x, y, weight=torch.ones(4)),),
    "classes in a plane": (lambda m, x, y: F.cross_entropy(x.view(2, 4, 4, 1), y.view(2, 4, 1)),),
    "batch norm": (lambda m, x, y: m[0](x).square().sum(), nn.BatchNorm1d(4)),
    "layer norm": (lambda m, x, y: m[0](x).square().sum(), nn.LayerNorm(4)),
    "group norm": (lambda m, x, y: m[0](x).square().sum(), nn.GroupNorm(2, 4)),
    "largest of a window": (lambda m, x, y: F.max_pool2d(x.view(1, 2, 4, 4), 2).sum(),),
    "largest of a part": (lambda m, x, y: F.adaptive_max_pool2d(x.view(1, 2, 4, 4), 2).sum(),),
    "attention": (lambda m, x, y: F.scaled_dot_product_attention(*[x.view(1, 2, 4, 4)] * 3).sum(),),
    "embedding": (lambda m, x, y: (m[0](y) * x).sum(), nn.Embedding(4, 4)),
    "distances": (lambda m, x, y: torch.cdist(x, x).sum(),),
    "convolution": (lambda m, x, y: m[0](x.view(2, 4, 4)).sum(), nn.Conv1d(4, 3, 3, padding=1)),
    "windows": (lambda m, x, y: x.unfold(1, 2, 1).square().sum(),),
    "product of vectors": (lambda m, x, y: torch.linalg.cross(x[:, :3], x[:, 1:]).square().sum(),),
}


@pytest.mark.parametrize("name", KEPT)
def test_steps_of_models_are_kept_and_found_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        model = Layer(*KEPT[name])
        optimizer = torch.optim.SGD(model.parameters(), 0.0, momentum=0.9, fused=True)
        step = training_model(model, Options(cache_dir=tmp_path / "steps"), optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses.append(step(x, y).item())
        monkeypatch.setattr("popgeo.capture.capture_step.capture", None)
    assert losses[0] == losses[1]
