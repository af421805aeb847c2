"""Plans at their limits: the largest sizes, the tensors that they recognize, and parts that kernels read unchecked."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo.native import library
from popgeo.ops import EdgePlan, ScatterPlan, cfconv, scatter, scatter_plan

INDEX = torch.tensor([1, 0, 1, 2])
SRC = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
SUMS = [[2.0], [5.0], [8.0]]


def made_of(index: Tensor = INDEX, **changed: Tensor | None) -> ScatterPlan:
    plan = ScatterPlan.from_index(index, 3)
    return ScatterPlan(**{"index": index, "rowptr": plan.rowptr, "perm": plan.perm} | changed)


def test_a_regular_plan_holds_as_many_edges_as_32_bits_count():
    meta = torch.device("meta")
    plan = ScatterPlan.regular(1, 2**31 - 1, device=meta)
    assert (plan.num_edges, plan.num_rows, plan.perm) == (2**31 - 1, 1, None)
    assert (plan.rowptr.dtype, plan.index.device) == (torch.int32, meta)
    for num_rows, degree in ((1, 2**31), (2**16, 2**15)):
        with pytest.raises(ValueError, match=f"{num_rows} rows of {degree} edges do not fit the int32 of a plan"):
            ScatterPlan.regular(num_rows, degree, device=meta)


def test_as_many_edges_or_rows_as_the_largest_int32_are_refused(native, monkeypatch):
    monkeypatch.setattr(scatter_plan, "_MAX_INT32", 5)
    assert ScatterPlan.from_index(INDEX, 4).num_rows == 4
    with pytest.raises(ValueError, match="4 edges and 5 rows"):
        ScatterPlan.from_index(INDEX, 5)


def test_an_index_too_long_for_32_bits_is_refused(native):
    many = torch.tensor([0]).expand(2**31)
    with pytest.raises(ValueError, match=r"2147483648 edges and 3 rows do not fit the int32 of a plan"):
        ScatterPlan.from_index(many, 3)
    with pytest.raises(ValueError, match=r"4 edges and 2147483648 rows do not fit the int32 of a plan"):
        ScatterPlan.from_index(INDEX, 2**31)


def test_a_plan_knows_the_tensor_that_it_was_made_from_and_one_found_equal():
    plan, equal = ScatterPlan.from_index(INDEX, 3), INDEX.clone()
    assert plan.is_of(INDEX, 3)
    assert not plan.is_of(INDEX, 4)
    assert not plan.is_of(equal, 3)
    plan.check("index", equal, 3)
    assert plan.is_of(equal, 3)
    assert not plan.is_of(INDEX, 3)  # one is remembered
    plan.check("index", equal, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScatterPlan, "_is_same", None)
        plan.check("index", equal, 3)  # nor is it compared again
        plan.check("index", INDEX, 3)
    equal.zero_()
    assert not plan.is_of(equal, 3)
    for wrong, num_rows in ((equal, 3), (INDEX, 4), (INDEX[:3], 3), (INDEX.flip(0), 3)):
        with pytest.raises(ValueError, match="The plan was made for another index"):
            plan.check("index", wrong, num_rows)
    plan.check("index", INDEX.int(), 3)
    plan.check("index", INDEX.view(4), 3)


def test_of_an_index_changed_in_place_no_plan_is_known_any_more():
    index = INDEX.clone()
    plan = ScatterPlan.from_index(index, 3)
    view = index.view(4)
    index[0] = 2
    assert not plan.is_of(index, 3)
    for changed in (index, view):
        with pytest.raises(ValueError, match="changed in place"):
            plan.check("index", changed, 3)
    with pytest.raises(ValueError, match="changed in place"):
        plan.set_tiles(2)


def test_another_stride_over_the_same_memory_is_another_index():
    memory = torch.tensor([1, 0, 1, 2])
    plan = ScatterPlan.from_index(memory[:2], 3)
    with pytest.raises(ValueError, match="another index"):
        plan.check("index", memory[::2], 3)
    with pytest.raises(ValueError, match="another index"):
        plan.check("index", memory[2:], 3)


def test_under_capture_there_are_no_entries_to_compare():
    fake = FakeTensorMode().from_tensor
    plan = ScatterPlan.from_index(INDEX, 3)
    plan.check("index", fake(torch.tensor([0, 0, 0, 0])), 3)
    made_of(rowptr=fake(plan.rowptr)).check("index", torch.tensor([0, 0, 0, 0]), 3)
    made_of(index=INDEX, rowptr=plan.rowptr).check("index", INDEX.clone(), 3)


def test_in_inference_a_plan_is_known_by_its_values():
    with torch.inference_mode():
        index = INDEX.clone()
        plan = ScatterPlan.from_index(index, 3)
        assert not plan.is_of(index, 3)  # nobody counts how often it was changed
        assert scatter(SRC, index, 0, dim_size=3, plan=plan).tolist() == SUMS
        plan.check("index", index, 3)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("rowptr", lambda t: t.long(), r"torch\.int64 on cpu"),
        ("perm", lambda t: t.long(), r"torch\.int64 on cpu"),
        ("perm", lambda t: t[:3], r"has shape \(3,\); for 4 edges into 3 rows it has \(4,\)"),
        ("perm", lambda t: t[:, None], r"has shape \(4, 1\)"),
        ("rowptr", lambda t: torch.stack([t, t + 9], 1)[:, 0], None),
        ("perm", lambda t: torch.stack([t, t + 9], 1)[:, 0], None),
    ],
)
def test_a_plan_made_by_hand_is_read_with_a_look(name: str, change, message: str | None):
    if not library.is_available():
        pytest.skip(library.reason())
    plan = ScatterPlan.from_index(INDEX, 3)
    by_hand = made_of(**{name: change(getattr(plan, name))})
    assert not by_hand.is_of(INDEX, 3)
    x, w = torch.ones(3, 1), SRC
    edge_plan = EdgePlan(src=plan, dst=by_hand)
    calls = (
        lambda: scatter(SRC.repeat(1, 20), INDEX, 0, dim_size=3, plan=by_hand)[:, :1],
        lambda: cfconv(x, w, INDEX, INDEX, 3, edge_plan),
    )
    for call in calls:
        if message is None:
            assert call().tolist() == SUMS
        else:
            with pytest.raises(ValueError, match=message):
                call()


def test_the_op_of_a_plan_always_gives_an_order(native):
    for index, order in (([0, 1, 1, 2], [0, 1, 2, 3]), ([1, 0, 1, 2], [1, 0, 2, 3]), ([], [])):
        for dtype in (torch.int64, torch.int32):
            rowptr, perm = torch.ops.popgeo.plan(torch.tensor(index, dtype=dtype), 3)
            assert rowptr.tolist() == [sum(i < row for i in index) for row in range(4)]
            assert perm.tolist() == order
            assert rowptr.dtype is perm.dtype is torch.int32
    with FakeTensorMode() as mode:
        plan = ScatterPlan.from_index(mode.from_tensor(INDEX), 5)
        assert (plan.rowptr.shape, plan.perm.shape, plan.rowptr.dtype, plan.perm.dtype) == (
            (6,), (4,), torch.int32, torch.int32,
        )  # fmt: skip


def test_an_index_of_equals_or_in_steps_is_read_as_it_is(native):
    for index in (torch.tensor([2, 2, 2]), torch.tensor([0, 9, 2, 9, 2, 9])[::2]):
        assert ScatterPlan.from_index(index, 3).perm is None
    plan = ScatterPlan.from_index(torch.tensor([2, 9, 0, 9, 2, 9])[::2], 3)
    assert (plan.rowptr.tolist(), plan.perm.tolist()) == ([0, 1, 1, 3], [1, 0, 2])


def test_edges_of_a_row_keep_their_order_in_long_lists_too(native, generator):
    index = torch.randint(3, (3000,), generator=generator)
    expected = sorted(range(3000), key=index.tolist().__getitem__)
    assert ScatterPlan.from_index(index, 3).perm.tolist() == expected
    assert ScatterPlan.from_index(index.int(), 3).perm.tolist() == expected


def test_a_plan_that_leaves_the_tiles_to_the_kernel_is_one_tile():
    plan = ScatterPlan.from_index(INDEX, 3)
    assert (plan.num_tiles, plan.tile_starts().tolist()) == (0, [0, 3])
    assert plan.set_tiles(1).tile_starts().tolist() == [0, 3]
    assert plan.set_tiles(2).tile_starts().tolist() == [0, 2, 3]  # of 7 edges and rows, row 2 begins after 5
    assert plan.set_tiles(4).tile_starts().tolist() == [0, 1, 2, 2, 3]
    assert ScatterPlan.from_index(torch.tensor([], dtype=torch.long), 0).set_tiles(2).tile_starts().tolist() == [
        0,
        0,
        0,
    ]
    with pytest.raises(ValueError, match="num_tiles is -1"):
        plan.set_tiles(-1)


def test_no_memory_is_told_as_such(monkeypatch):
    monkeypatch.setattr(library, "packed", lambda _: lambda _: 7)
    with pytest.raises(MemoryError, match="popgeo_plan failed with 7"):
        ScatterPlan.from_index(INDEX, 3)
