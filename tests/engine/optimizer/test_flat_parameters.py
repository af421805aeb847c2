"""Flat parameters, whole and in parts: their memory, gradients and optimizer state."""

import contextlib

import pytest
import torch
from torch import nn

from popgeo.engine.optimizer.choose_worker import choose_worker
from popgeo.engine.optimizer.flat_parameters import FlatParameters, flatten_groups, is_elementwise
from popgeo.engine.optimizer.worker import OwnWorker
from popgeo.engine.step_options import StepOptions
from popgeo.native import library

WHOLE = (0, 1)
SHAPES = ((3, 2), (5,), (1,), (2, 1, 2))  # 6, 5, 1 and 4 elements


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in SHAPES]


def joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@pytest.mark.parametrize("kernels", [contextlib.nullcontext, library.without_native])
def test_members_stay_where_they_are_and_are_copied_each_way(kernels):
    members = parameters()
    values, before = joined(members), [p.data_ptr() for p in members]
    flat = FlatParameters(7, members, False, None, WHOLE)
    assert (flat.group, flat.members, flat.is_sharded, flat.is_divided) == (7, members, False, False)
    assert torch.equal(flat.flat.detach(), values)
    assert not flat.follow_memory()
    with kernels():
        members[1].data.fill_(3.0)
        flat.take_values()
        assert torch.equal(flat.flat.detach(), joined(members))
        flat.flat.detach()[:6] = 2.0
        assert not (members[0] == 2).any()
        flat.give_values()
    assert (members[0] == 2).all()
    assert (members[1] == 3).all()
    assert [p.data_ptr() for p in members] == before
    assert [p.shape for p in members] == [torch.Size(shape) for shape in SHAPES]


def test_memory_that_is_exchanged_is_followed():
    members = parameters()
    flat = FlatParameters(0, members, False, None, WHOLE)
    flat.follow_memory()
    left = members[2].data
    members[2].data = torch.full((1,), 9.0)
    assert not flat.follow_memory()
    flat.take_values()
    assert flat.flat[11] == 9
    flat.flat.detach()[11] = 8.0
    flat.give_values()
    assert members[2].item() == 8
    assert left.item() not in (8, 9)


@pytest.mark.parametrize("part", [WHOLE, (1, 2)])
def test_one_alone_is_stepped_where_it_lies_unless_its_elements_lie_apart(part):
    whole = torch.arange(12.0).view(4, 3)
    for data, is_in_place in ((whole.clone(), True), (whole.clone().t(), True), (whole.clone()[:, :2], False)):
        only = nn.Parameter(data)
        flat = FlatParameters(0, [only], False, None, part)
        assert not flat.follow_memory()
        assert (flat.flat.data_ptr() == only.data_ptr()) is is_in_place
        assert flat.is_divided is (part != WHOLE and (flat.flat.is_contiguous()))
        for number in range(2):
            flat.take_values()
            flat.own.detach().fill_(-1.0 - number)
            flat.give_values()
            assert (only == -1 - number).sum() == flat.own.numel()
            only.data = torch.empty_strided(only.shape, only.stride()).copy_(only.detach())
            assert flat.follow_memory() is is_in_place


@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize("total_type", [None, torch.float16, torch.float32])
def test_gradients_have_a_sum_of_their_own_where_there_are_several_or_another_type(accumulates, total_type):
    members = parameters(torch.float16)
    flat = FlatParameters(0, members, accumulates, total_type, WHOLE)
    assert flat.gradient.dtype is torch.float16
    assert flat.total.dtype is (total_type or torch.float16)
    assert (flat.total is flat.gradient) is (not accumulates and total_type is not torch.float32)
    assert flat.flat.grad is flat.total
    assert flat.gradient.count_nonzero() == flat.total.count_nonzero() == 0
    for whole, views in ((flat.gradient, flat.gradient_views), (flat.total, flat.total_views)):
        whole.copy_(torch.arange(16))
        assert [view.shape for view in views] == [torch.Size(shape) for shape in SHAPES]
        assert joined(views).tolist() == list(range(16))
        assert all(view.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr() for view in views)


def test_one_alone_keeps_its_shape():
    (only,) = [nn.Parameter(torch.randn(3, 2))]
    flat = FlatParameters(0, [only], True, None, WHOLE)
    assert flat.flat.shape == flat.gradient.shape == flat.total.shape == (3, 2)
    assert flat.gradient_views[0] is flat.gradient
    assert flat.own is flat.flat


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_parts_share_the_elements_and_what_each_has_of_a_state_joins_to_the_whole(parts: int):
    kinds = torch.optim.Adam
    whole, members = kinds(parameters()), parameters()
    for p in whole.param_groups[0]["params"]:
        p.grad = torch.randn_like(p)
    whole.step()
    pieces: dict[int, list[torch.Tensor]] = {number: [] for number in range(len(SHAPES))}
    covered = []
    for number in range(parts):
        flat = FlatParameters(0, members, False, None, part=(number, parts))
        assert flat.is_divided
        first, end = 16 * number // parts, 16 * (number + 1) // parts
        assert torch.equal(flat.own.detach(), flat.flat.detach()[first:end])
        assert flat.own.data_ptr() == flat.flat[first:].data_ptr()
        assert flat.own.grad.data_ptr() == flat.total[first:].data_ptr()
        assert flat.own.grad.shape == (end - first,)
        covered += range(first, end)
        # A part adopts its piece of the state of whole parameters,
        theirs = dict(zip(members, (whole.state[p] for p in whole.param_groups[0]["params"]), strict=True))
        optimizer, state = kinds(members), {}
        optimizer.state.update(theirs)
        flat.adopt(optimizer, state)
        expected = joined([theirs[p]["exp_avg"] for p in members])[first:end]
        assert torch.equal(state[flat.own]["exp_avg"], expected)
        assert state[flat.own]["step"] == 1
        # publishes its piece of each member's state,
        shown = kinds(members)
        flat.publish(shown, state[flat.own])
        for place, p in enumerate(members):
            pieces[place].append(shown.state[p]["exp_avg"])
            assert shown.state[p]["step"] == 1
        # and adopts the published state again if no member's state is missing.
        again = {}
        flat.adopt(shown, again)
        assert torch.equal(again[flat.own]["exp_avg"], expected)
        del shown.state[members[0]]
        flat.adopt(shown, again)
        assert again == {}
    assert covered == list(range(16))
    for place, p in enumerate(whole.param_groups[0]["params"]):
        assert torch.equal(torch.cat(pieces[place]), whole.state[p]["exp_avg"].flatten())


def test_the_state_of_a_part_is_a_copy_of_that_of_whole_parameters():
    (only,) = members = [nn.Parameter(torch.arange(4.0))]
    flat = FlatParameters(0, members, False, None, part=(1, 2))
    optimizer, state = torch.optim.SGD(members, momentum=0.5), {}
    given = optimizer.state[only]["momentum_buffer"] = torch.arange(4.0)
    flat.adopt(optimizer, state)
    state[flat.own]["momentum_buffer"].zero_()
    assert given.tolist() == [0, 1, 2, 3]


def test_state_is_shown_where_it_lies_and_what_counts_steps_as_copies_each_in_a_storage_of_its_own():
    members = parameters()
    flat, optimizer = FlatParameters(0, members, False, None, WHOLE), torch.optim.Adam(members)
    state = {"step": torch.tensor(3.0), "exp_avg": torch.arange(16.0), "note": "kept"}
    flat.publish(optimizer, state)
    for p in members:
        assert optimizer.state[p]["step"] == 3
        assert optimizer.state[p]["note"] == "kept"
        assert optimizer.state[p]["exp_avg"].shape == p.shape
    assert joined([optimizer.state[p]["exp_avg"] for p in members]).tolist() == list(range(16))
    shown = [optimizer.state[p][key] for p in members for key in ("step", "exp_avg")]
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in shown)
    # Changes in place are visible at once. Step counts are copied at each publish.
    counts = [optimizer.state[p]["step"] for p in members]
    assert len({count.data_ptr() for count in counts}) == len(members)
    state["exp_avg"].add_(1)
    state["step"] += 1
    assert counts == [3, 3, 3, 3]
    flat.publish(optimizer, state)
    assert counts == [4, 4, 4, 4]
    assert optimizer.state[members[0]]["exp_avg"].flatten().tolist() == [1, 2, 3, 4, 5, 6]
    # Moved memory and edited counts are noticed.
    assert flat.is_as_shown
    counts[1].zero_()
    assert not flat.is_as_shown
    counts[1].fill_(4)
    assert flat.is_as_shown
    optimizer.state[members[0]]["exp_avg"].data = torch.zeros(SHAPES[0])
    assert not flat.is_as_shown
    # New tensors are published again.
    state["exp_avg"] = torch.zeros(16)
    flat.publish(optimizer, state)
    assert optimizer.state[members[0]]["exp_avg"].count_nonzero() == 0
    # After adopting from another optimizer, everything is published there.
    other = torch.optim.Adam(members)
    flat.adopt(other, {})
    flat.publish(other, state)
    assert other.state[members[3]]["step"] == 4
    assert counts[3] is not other.state[members[3]]["step"]


def test_a_count_of_one_element_parameters_is_no_state_of_elements():
    members = [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))]
    flat, optimizer = FlatParameters(0, members, False, None, WHOLE), torch.optim.Adam(members)
    for p in members:
        optimizer.state[p].update(step=torch.tensor(2.0), exp_avg=torch.tensor([p.numel() * 1.5]), rows=[1, 2])
    state = {}
    flat.adopt(optimizer, state)
    assert state[flat.flat]["step"].shape == ()
    assert state[flat.flat]["exp_avg"].tolist() == [1.5, 1.5]
    assert state[flat.flat]["rows"] == [1, 2]
    assert state[flat.flat]["rows"] is not optimizer.state[members[0]]["rows"]


def test_the_state_of_a_parameter_without_dimensions_can_be_written_to_as_well():
    (only,) = members = [nn.Parameter(torch.tensor(2.0))]
    flat, optimizer = FlatParameters(0, members, False, None, WHOLE), torch.optim.SGD(members)
    state = {"momentum_buffer": torch.tensor(5.0)}
    flat.publish(optimizer, state)
    optimizer.state[only]["momentum_buffer"].zero_()
    assert state["momentum_buffer"] == 0


def test_what_is_alike_is_joined_and_what_is_not_stays_alone():
    torch.manual_seed(0)
    first = [nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(4)), nn.Parameter(torch.tensor(1.0))]
    turned = nn.Parameter(torch.randn(2, 3).t())
    half = nn.Parameter(torch.randn(2).half())
    own = nn.Parameter(torch.randn(6))
    own.is_sharded = True
    left_out, second = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(3))
    groups = [{"params": [*first, turned, half, own, left_out], "lr": 0.5}, {"params": [second], "lr": 0.25}]
    optimizer = torch.optim.SGD(groups, momentum=0.5)
    trained = {*first, turned, half, own, second}

    def flatten(optimizer: torch.optim.Optimizer, part: tuple[int, int] = WHOLE) -> list[FlatParameters]:
        options = StepOptions(gradient_accumulation=2, optimizer_state_dtype=torch.float32)
        return flatten_groups(optimizer, trained, options, part)

    flat = flatten(optimizer)
    assert [[id(p) for p in part.members] for part in flat] == [
        [id(p) for p in members] for members in ([first[0], first[1]], [first[2]], [turned], [half], [own], [second])
    ]
    assert [part.group for part in flat] == [0, 0, 0, 0, 0, 1]
    assert [part.is_sharded for part in flat] == [False, False, False, False, True, False]
    assert [part.total.dtype for part in flat] == [torch.float32] * 6
    assert [len(part.members) for part in flatten(torch.optim.Adafactor(groups))] == [1] * 7
    assert flat[2].flat.shape == (3, 2)
    assert flat[2].flat.stride() == turned.stride()
    # Sharded, scalar and non-contiguous parameters are never divided.
    assert [part.own.numel() for part in flatten(optimizer, (1, 2))] == [5, 1, 6, 1, 6, 2]
    assert [part.is_divided for part in flatten(optimizer, (1, 2))] == [True, False, False, True, False, True]
    worker = choose_worker(OwnWorker(optimizer, flat), flat, StepOptions()).optimizer
    assert type(worker) is torch.optim.SGD
    assert [group["lr"] for group in worker.param_groups] == [0.5] * 5 + [0.25]
    assert [group["params"] for group in worker.param_groups] == [[part.own] for part in flat]
    assert worker.state == {}
    assert [len(group["params"]) for group in optimizer.param_groups] == [7, 1]


def test_optimizers_of_others_say_themselves_whether_elements_are_alike():
    class Own(torch.optim.Optimizer):
        pass

    class Adam(torch.optim.Optimizer):  # not torch's Adam
        pass

    class Alike(torch.optim.Adafactor):
        elementwise = True

    class Whole(torch.optim.SGD):
        elementwise = False

    assert [is_elementwise(kind) for kind in (Own, Adam, Alike, Whole)] == [False, False, True, False]
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD"):
        assert is_elementwise(getattr(torch.optim, name))
    assert not is_elementwise(torch.optim.Adafactor)
