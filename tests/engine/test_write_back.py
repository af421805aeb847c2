"""Arguments that a model changes in place change for the caller, as in eager PyTorch."""

import pytest
import torch
from torch import Tensor, nn

from popgeo.engine.gradient_accumulation import check_apart
from popgeo.ipu import Options, TileExact, compile, inference_model, training_model


def adds_one(x: Tensor) -> Tensor:
    x += 1
    return x * 2


def test_an_argument_that_is_added_to_is_more_afterwards():
    x = torch.tensor([1.0, 2.0])
    assert compile(adds_one, [torch.zeros(2)])(x).tolist() == [4, 6]
    assert x.tolist() == [2, 3]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.mul(x, y, out=x),
        lambda x, y: x[1:].mul_(y[1:]),
        lambda x, y: x.t().add_(y.t()).sum(),
        lambda x, y: x.view(-1)[::2].copy_(y.view(-1)[::2]),
        lambda x, y: torch.relu_(x) + y,
        lambda x, y: x.index_add_(0, torch.tensor([0, 0]), y[:2]),
        lambda x, y: x.masked_fill_(y > 0, 5.0),
        lambda x, y: (x.zero_(), y.neg_())[0],
        lambda x, y: x.t().copy_(y.t()).exp_(),
    ],
)
def test_whatever_changes_an_argument_changes_it_as_in_eager_pytorch(function):
    torch.manual_seed(0)
    mine = [torch.randn(3, 2), torch.randn(3, 2)]
    theirs = [tensor.clone() for tensor in mine]
    example = [torch.zeros(3, 2), torch.zeros(3, 2)]
    assert torch.equal(compile(function, example)(*mine), function(*theirs))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert torch.equal(example[0], torch.zeros(3, 2))


def test_a_view_of_the_callers_and_its_version_change():
    whole = torch.zeros(3, 4)
    version = whole._version
    compile(adds_one, [torch.zeros(3)])(whole[:, 1])
    assert whole.sum(0).tolist() == [0, 3, 0, 0]
    assert whole._version > version


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return y * 3, (self.weight * x).sum()


@pytest.mark.parametrize("mode", ["final", "all", "sum", "every_n"])
def test_each_micro_batch_of_each_replica_changes_its_own_slice(mode):
    options = Options(
        device_iterations=2, gradient_accumulation=2, replication_factor=2, output_mode=mode, output_period=2
    )
    x, y = torch.arange(16.0), torch.arange(16.0)
    training_model(Doubles(), options)(x, y)
    assert torch.equal(x, 2 * y)
    assert torch.equal(y, torch.arange(16.0))


def test_a_kept_step_changes_its_arguments_too(tmp_path):
    for _ in range(2):
        x, y = torch.ones(2), torch.ones(2)
        inference_model(Doubles(), Options(cache_dir=tmp_path))(x, y)
        assert x.tolist() == [2, 2]
    assert len(list(tmp_path.iterdir())) == 1


def test_the_tiles_send_back_what_changes():
    model = inference_model(Doubles(), Options(device_iterations=2, replication_factor=2))
    x, y = torch.arange(8.0), torch.arange(8.0)
    expected = model(x, y)
    exact = TileExact(model)
    x = torch.arange(8.0)
    torch.testing.assert_close(exact(x, y), expected)
    assert torch.equal(x, 2 * y)


def test_memory_that_is_seen_twice_is_refused_where_one_of_both_changes():
    def function(x: Tensor, y: Tensor) -> Tensor:
        x += 1
        return x + y

    step, x = compile(function, [torch.zeros(2, 2), torch.zeros(2, 2)]), torch.zeros(2, 4)
    for other in (x[:, :2], x[:, 1:3]):
        with pytest.raises(ValueError, match=r"shares memory.*clone"):
            step(x[:, :2], other)
    assert x.sum() == 0
    assert step(x[:, :2], x[:, 2:]).tolist() == [[1, 1], [1, 1]]
    assert compile(lambda x, y: x + y, [x, x])(x, x).sum() == 8  # nothing changes


def test_a_weight_that_is_an_argument_too_is_refused_where_it_changes():
    model = Doubles()
    step = training_model(model).compile(torch.ones(1), torch.ones(1))
    with pytest.raises(ValueError, match="of the model"):
        step(model.weight.detach(), torch.ones(1))


def test_neighbors_in_one_storage_are_apart_and_empty_tensors_share_nothing():
    x = torch.zeros(6, dtype=torch.float64)
    check_apart([x[:3], x[3:], x[:0], x[1:2][:0]], written=[0, 2])
    check_apart([x.view(2, 3)[:, 0], x.view(2, 3)[:, 1:]], written=[0])
    with pytest.raises(ValueError, match="argument 1"):
        check_apart([x.view(3, 2)[:, 0], x[2:3]], written=[1])


def elements(tensor: Tensor) -> set[int]:
    """Return the bytes of each element."""
    places = torch.arange(tensor.untyped_storage().nbytes() // tensor.itemsize).as_strided(
        tensor.shape, tensor.stride(), tensor.storage_offset()
    )
    return {int(place) * tensor.itemsize + byte for place in places.flatten() for byte in range(tensor.itemsize)}


def test_views_of_any_layout_share_what_they_have_in_common():
    generator, both = torch.Generator().manual_seed(0), [0, 0]
    storage = torch.zeros(64, dtype=torch.float32)
    kinds = [storage, storage.view(torch.float64), storage.view(torch.int16), storage.view(torch.uint8)]
    for _ in range(300):
        views = []
        for _ in range(2):
            one = kinds[int(torch.randint(4, (), generator=generator))]
            rows, columns, offset = (int(n) for n in torch.randint(0, 4, (3,), generator=generator))
            step, stride = (int(n) for n in torch.randint(1, 5, (2,), generator=generator))
            views.append(one.as_strided((rows, columns), (step, stride), offset))
        overlaps = [len(elements(view)) < view.nbytes for view in views]
        shares = bool(elements(views[0]) & elements(views[1])) or overlaps[0]
        both[shares] += 1
        if shares:
            with pytest.raises(ValueError, match="The model changes argument 1 in place"):
                check_apart([torch.zeros(3), *views], written=[1])
        else:
            check_apart([torch.zeros(3), *views], written=[1])
        if not shares and not overlaps[1]:
            check_apart([*views, views[0]], written=[1])
    assert min(both) > 30


@pytest.mark.parametrize("write", ["x[0] = 0", "x.zero_()", "x.masked_fill_(x > 0, 2)", "x.mul_(2)"])
def test_a_change_of_elements_that_are_one_in_memory_is_refused(write):
    def function(x: Tensor) -> Tensor:
        exec(write, {"x": x})
        return x.sum(0)

    step, row = compile(function, [torch.zeros(3, 4)]), torch.ones(1, 4)
    with pytest.raises(ValueError, match=r"argument 0 in place.*share their place in memory.*clone"):
        step(row.expand(3, 4))
    assert row.sum() == 4
    assert step(row.expand(3, 4).clone()).shape == (4,)


def test_what_is_given_twice_is_refused_and_one_alone_is_not_compared_with_itself():
    x, y = torch.zeros(3), torch.zeros(3)
    check_apart([x, y], written=[0, 1])
    for written in ([0], [2], [0, 2]):
        with pytest.raises(ValueError, match=f"argument {written[0]} "):
            check_apart([x, y, x], written=written)
    check_apart([x, y, x], written=[1])
