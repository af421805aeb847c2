"""Values that depend on no input are known during a capture; kernels compute results that stand-ins cannot."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from popgeo import compile_step
from popgeo.capture.refused_shapes import DynamicShapeError
from popgeo.ipu import check_static, compile, inference_model

ROWS = torch.linspace(-1, 1, 24).reshape(4, 6).cos()
SIGNAL = torch.linspace(0, 9, 128).sin().reshape(2, 64)
TABLE = torch.tensor([[0, 1, 2, 1], [0, 2, 2, 3]])


def there_and_back(x: Tensor) -> Tensor:
    window = torch.hann_window(16)
    spectrum = torch.stft(x, 16, hop_length=4, return_complex=True, window=window)
    return torch.istft(spectrum, 16, hop_length=4, window=window)


def counted_in_place(x: Tensor) -> Tensor:
    count = torch.zeros(3)
    count += 1
    return x * count.sum().item()


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (torch.cov, ROWS),
        (torch.corrcoef, ROWS),
        (there_and_back, SIGNAL),
        (lambda x: x[TABLE[:, TABLE[0] != TABLE[1]][0]], ROWS),
        (lambda x: x[:, torch.arange(6) % 2 == 0] * 2, ROWS),
        (lambda x: x.masked_select(torch.ones(4, 6).tril().bool()), ROWS),
        (lambda x: x.clone().index_put_((torch.eye(4, 6, dtype=torch.bool),), torch.arange(4.0)), ROWS),
        (lambda x: x[torch.tensor([0, 1, 1, 3]).unique()], ROWS),
        (counted_in_place, ROWS),
        (lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 3]), 0), ROWS),
        (lambda x: x.tensor_split(torch.tensor([1, 3]))[1], ROWS),
    ],
)
def test_counts_masks_and_numbers_of_constants_are_known(function, x):
    compiled = compile(function, [x])
    for given in (x, x.flip(0)):
        assert_close(compiled(given), function(given))


@pytest.mark.parametrize(
    "function", [lambda x: x[x[:, 0] > 0], lambda x: x * torch.rand(3).sum().item(), lambda x: x * x.sum().item()]
)
def test_what_depends_on_an_input_or_is_drawn_is_not_known(function):
    with pytest.raises(DynamicShapeError, match="depends on the data"):
        compile(function, [ROWS])
    assert len(check_static(function, ROWS)) == 1


class Trained(nn.Module):
    """A loss of a layer's result."""

    def __init__(self, layer: nn.Module, function=lambda layer, *x: layer(*x)):
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(self.layer, *x).square().mean()


def trained(make, compiled: bool, *x: Tensor) -> dict[str, Tensor]:
    """Return weights and buffers after three steps."""
    torch.manual_seed(3)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = compile_step(model, optimizer) if compiled else model
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(*x)
        if not compiled:
            loss.backward()
            optimizer.step()
    return dict(model.state_dict())


def over_channels(norm: nn.Module, x: Tensor) -> Tensor:
    return norm(x.transpose(1, 2)).transpose(1, 2).reshape(-1, 16) * torch.arange(16)


class Grouped(nn.Module):
    """Products of groups of rows with weights per group."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 16, 32))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(x, self.weight, ends)


SEQUENCES = torch.randn(6, 25, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: Trained(nn.BatchNorm1d(16), over_channels), (SEQUENCES,)),
        (lambda: Trained(nn.BatchNorm1d(16, momentum=None), over_channels), (SEQUENCES,)),
        (lambda: Trained(Grouped()), (SEQUENCES[0, :8], torch.tensor([3, 8], dtype=torch.int32))),
    ],
)
def test_kernels_that_differ_from_their_stand_ins_train_as_in_eager_code(make, x):
    assert_close(trained(make, True, *x), trained(make, False, *x), rtol=1e-4, atol=1e-5)


class Scalars(nn.Module):
    """Writes to single numbers, by an index without a dimension."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))

    def forward(self, index: Tensor) -> Tensor:
        added, copied = self.one.index_add(0, index, self.other), self.one.index_copy(0, index, self.other)
        return added * copied + self.one.index_reduce(0, index, self.other, "amax")


def test_gradients_of_writes_to_a_single_number_are_torchs():
    import torch_geometric.nn  # noqa: F401  # puts a function of its own in the place of torch.index_select

    index = torch.tensor(0)
    assert_close(trained(lambda: Trained(Scalars()), True, index), trained(lambda: Trained(Scalars()), False, index))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.eye(3).to_sparse(), "`x` is a torch.sparse_coo tensor .*to_dense"),
        (lambda: torch.eye(3).to_mkldnn(), "`x` is a torch._mkldnn tensor .*to_dense"),
        (lambda: torch.quantize_per_tensor(ROWS, 0.1, 0, torch.qint8), "tensor of torch.qint8.*dequantize"),
        (lambda: torch.nested.nested_tensor([ROWS, ROWS[1:]]), "A nested tensor has no shape.*to_padded_tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_arguments_whose_elements_have_no_places_are_refused_at_the_door(make, words):
    with pytest.raises(ValueError, match=words):
        compile(lambda x: x + x, [make()])


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_of_torch_and_a_function_of_torch_are_named_where_there_is_no_line_of_the_users():
    layer = nn.AdaptiveLogSoftmaxWithLoss(6, 10, [3, 5])
    with pytest.raises(DynamicShapeError, match=r"adaptive.py:\d+ in forward: row_indices .*depends on the data"):
        compile(layer, [ROWS, torch.arange(4)])
    with pytest.raises(DynamicShapeError, match=r"^the function itself: allclose depends on the data"):
        compile(torch.allclose, [ROWS, ROWS])


def test_a_write_to_a_part_of_a_tensor_from_outside_is_refused():
    table = torch.zeros(2, 4)
    with pytest.raises(ValueError, match="changes a tensor that is neither parameter, buffer nor result"):
        compile(lambda x: table[0].add_(x[0]), [torch.ones(2, 4)])
    assert not table.any()


class PacksSequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(2, 2, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.recurrent(packed)[1]


def test_packed_sequences_are_refused_with_their_line_and_what_to_do():
    with pytest.raises(DynamicShapeError, match=r"packed = .*_pack_padded_sequence depends on the data.*torch.gather"):
        inference_model(PacksSequences())(torch.ones(2, 3, 2), torch.tensor([3, 1]))


class LossOfNoRows(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.mse_loss(super().forward(x)[:0], x[:0, :2])


def test_the_loss_of_no_rows_is_captured_and_moves_no_weight():
    model = LossOfNoRows(6, 2)
    before = model.weight.detach().clone()
    assert compile_step(model, torch.optim.SGD(model.parameters(), 0.1))(ROWS).isnan()
    assert_close(model.weight.detach(), before, rtol=0, atol=0)
