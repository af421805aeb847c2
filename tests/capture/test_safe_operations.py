"""No operation of a program file leaves its memory: kernels that trust their caller have rules, or are not listed."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from popgeo.capture.safe_operations import needs_forward, require_fitting, safe_operation
from popgeo.deploy.read_torch_program import read_program

ONE, TRUE = torch.ones, [True] * 3


def wild(*shape: int) -> Tensor:
    """Return indices beyond the end of every tensor."""
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
        return  # refused in every program: see below
    with pytest.raises(ValueError, match="sizes do not match"):
        require_fitting(func, OUTSIDE[name], {})


def test_no_program_contains_the_update_of_an_optimizer():
    with pytest.raises(ValueError, match="not one of the operations"):
        safe_operation("aten._fused_sgd_.default")


@pytest.mark.parametrize(
    "name",
    ["_reshape_alias", "set_", "resize_", "_embedding_bag", "max_unpool2d", "segment_reduce", "_ctc_loss", "from_file"],
)
def test_operations_that_are_not_listed_are_refused(name: str):
    for overload in getattr(torch.ops.aten, name).overloads():
        with pytest.raises(ValueError, match="is not one of the operations that a file may contain"):
            safe_operation(f"aten.{name}.{overload}")


@pytest.mark.parametrize("name", [name for name in OUTSIDE if needs_forward(f"aten.{name}")])
def test_a_program_with_indices_that_no_forward_operation_checked_is_refused(name: str):
    assert sum(needs_forward(f"aten.{name}") for name in OUTSIDE) == 4
    graph = {"nodes": [{"target": f"torch.ops.aten.{name}"}]}
    module = {"signature": {"input_specs": [], "output_specs": []}, "graph": graph}
    entries = {f"data/{kind}/x_{kind}_config.json": b'{"config": {}}' for kind in ("weights", "constants")}
    entries["models/x.json"] = json.dumps({"range_constraints": {}, "graph_module": module}).encode()
    with pytest.raises(ValueError, match="takes indices that no operation has checked"):
        read_program(entries, "x", {})
