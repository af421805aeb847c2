"""Models that cannot be compiled, or give other results when compiled, are reported; other models pass."""

import itertools
import random
from typing import Any, NamedTuple

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch_geometric.data import Batch, Data

from popgeo import FixedSizeCollater, FixedSizeOptions, ops
from popgeo.nn import GIN, mse_loss
from popgeo.testing import check_static_capture
from tests.support.small_models import Stray

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
BATCH = torch.tensor([0, 0, 0, 1, 1, 2])


class Pooled(nn.Module):
    """A model with dropout, running statistics and random numbers, which a compiled step supports."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.norm, self.dropout = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout()

    def forward(self, x: Tensor, batch: Tensor, *, scale: float = 1.0) -> Tensor:
        x = self.dropout(self.norm(self.lin(x))) * torch.rand(8)
        return scale * ops.global_add_pool(x, batch, 4)


class OfBatches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gin = GIN(4, 8, 2, out_channels=1, readout="add")

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        masks = {"nodes_mask": batch.nodes_mask, "edges_mask": batch.edges_mask}
        out = self.gin(batch.x, batch.edge_index, batch=batch.batch, num_graphs=batch.num_graphs, **masks)
        return out, mse_loss(out.flatten(), batch.y, batch.graphs_mask)


def padded_batch() -> Batch:
    graphs = [Data(x=X[:n], edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.ones(1)) for n in (2, 4)]
    return FixedSizeCollater(FixedSizeOptions(9, 6, 4), add_masks_to_batch=True)(graphs)


class StructureParts(NamedTuple):
    scaled: Tensor
    numbers: list[Any]


def parts(x: Tensor, factors: dict[str, Tensor]) -> StructureParts:
    return StructureParts(x * factors["a"], [(x > 0).sum(), 3, x.new_empty(0)])


def frozen() -> nn.Module:
    return Pooled().requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [Pooled, frozen, lambda: Pooled().eval()], ids=["training", "frozen", "evaluation"])
def test_a_static_model_passes(make: Any, dtype: torch.dtype):
    check_static_capture(make().to(dtype), X.to(dtype), BATCH, scale=2.0)


def test_a_model_of_batches_and_a_function_of_nests_pass():
    check_static_capture(OfBatches(), padded_batch())
    check_static_capture(parts, X, factors={"a": torch.ones(4)})
    check_static_capture(lambda x: x.square().sum(), X.clone().requires_grad_())


def test_small_slopes_of_large_weights_are_not_lost():
    model = nn.Linear(4, 4)
    model.weight.data.mul_(1e6)
    check_static_capture(model, 1e-3 * X)


class Dynamic(nn.Module):
    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        largest = x.max().item()
        return pyg.global_add_pool(x / largest, batch)


def test_every_line_that_depends_on_data_is_listed_with_a_remedy():
    with pytest.raises(AssertionError) as caught:
        check_static_capture(Dynamic(), X, BATCH)
    message = str(caught.value)
    assert "depends on data in 2 places" in message
    assert "largest = x.max().item()" in message
    assert "return pyg.global_add_pool(x / largest, batch)" in message
    assert "size=" in message


def test_a_boolean_index_is_caught():
    with pytest.raises(AssertionError, match=r"depends on data in 1 place(.|\n)*torch\.where"):
        check_static_capture(lambda x: x[x > 0], X)


def test_a_number_that_python_worked_out_changes_the_program():
    numbers = itertools.count(1)
    with pytest.raises(AssertionError, match=r"(?s)captured program depends on the data.*mul"):
        check_static_capture(lambda x: x * next(numbers), X)
    with pytest.raises(AssertionError, match="draws from Python's random"):
        check_static_capture(lambda x: x * random.random(), X)


def test_other_inputs_may_be_given():
    check_static_capture(lambda x, n: x * n, X, 3)
    check_static_capture(lambda x, n: x * n, X, 3, other_inputs=(2 * X, 3))
    with pytest.raises(AssertionError, match="captured program depends on the data"):
        check_static_capture(lambda x, n: x * n, X, 3, other_inputs=(X, 4))


def test_state_that_is_no_buffer_is_caught():
    with pytest.raises(AssertionError, match=r"cannot be captured: .*register_buffer"):
        check_static_capture(Stray(), X)


def is_captured(x: Tensor) -> bool:
    return isinstance(x, FakeTensor)


class OtherResult(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"same": x + 1, "other": x * 2 if is_captured(x) else x * 3}


class OtherSlope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.right, self.wrong = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wrong(x)
        return (self.right(x) * y + (y.detach() if is_captured(x) else y)).sum()


class OtherBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(2.0 if is_captured(x) else 1.0)
        return x + 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OtherResult, r"result\['other'\] differs between the compiled step and eager PyTorch: "),
        (OtherSlope, r"the gradient of wrong\.\w+ differs"),
        (OtherBuffer, r"buffer count differs between .*: 2 compiled, 1 eager"),
    ],
)
def test_what_computes_something_else_when_compiled_is_caught(kind: type[nn.Module], words: str):
    with pytest.raises(AssertionError, match=words):
        check_static_capture(kind(), X)


def test_a_model_without_a_tensor_is_refused():
    with pytest.raises(ValueError, match="returned NoneType without a tensor"):
        check_static_capture(lambda x: None, X)


def test_the_model_its_inputs_and_the_random_numbers_stay_as_they_are():
    class InPlace(Pooled):
        def forward(self, x: Tensor, batch: Tensor, *, scale: float = 1.0) -> Tensor:
            return super().forward(x.mul_(2), batch)

    model, x = InPlace(), X.clone()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    numbers = torch.get_rng_state()
    check_static_capture(model, x, BATCH)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(x, X)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(parameter.grad is None for parameter in model.parameters())
