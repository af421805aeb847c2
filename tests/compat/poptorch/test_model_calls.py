"""Functions that PopTorch's models call: loops, blocks, prints, slices, point clouds and custom arguments."""

import copy
import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from popgeo import ipu
from popgeo.capture.farthest_points import fps
from popgeo.capture.static_neighbors import nearest
from popgeo.compat.account import ACCOUNT
from popgeo.compat.poptorch import call_arguments, contexts, strategies, tensor_ops

X = torch.arange(12.0).view(3, 4)


class Serialize:
    """Replacement for a member of `MatMulSerializationMode`."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_errors_of_a_loop_are_worded_as_poptorch_words_them():
    with pytest.raises(ValueError, match=r"Object is not list"):
        contexts.for_loop(1, torch.sin, X)
    with pytest.raises(ValueError, match=r"Object contained in list at index 1 is not torch.tensor"):
        contexts.for_loop(1, lambda x, y: (x, y), [X, 5])
    with pytest.raises(ValueError, match="lists of tensors"):
        contexts.cond(torch.tensor(True), torch.sin, X, torch.sin, [X])


def test_the_same_tensors_come_back():
    same = [
        tensor_ops.nop(X),
        tensor_ops.set_available_memory(X, 0.2),
        tensor_ops.recomputationCheckpoint(X),
        *tensor_ops.recomputationCheckpoint(X, X),
        tensor_ops.recomputationCheckpoint((X, X))[1],
        *tensor_ops.set_overlap_for_input({"a": [X]}, None)["a"],
        tensor_ops.set_overlap_for_output(X, None),
        tensor_ops.CPU(lambda x: x * 1, "once")(X),
    ]
    for tensor in same:
        torch.testing.assert_close(tensor, X)
    for act in (tensor_ops.nop, tensor_ops.ipu_print_tensor, lambda x: tensor_ops.set_overlap_for_input([x], None)):
        with pytest.raises(ValueError, match="not supported"):
            act(3)


def test_a_product_in_parts_is_the_product():
    other = torch.ones(4, 2)
    for name, factor in (("InputChannels", 3), ("ReducingDim", 2), ("OutputChannels", 2), ("Disabled", 0)):
        torch.testing.assert_close(tensor_ops.serializedMatMul(X, other, Serialize(name), factor), X @ other)
    with pytest.raises(ValueError, match="dimension of 4 into 3 parts"):
        tensor_ops.serializedMatMul(X, other, Serialize("ReducingDim"), 3)


def test_slices_start_where_a_tensor_says_at_each_run():
    cut = ipu.compile(lambda x, n: tensor_ops.dynamic_slice(x, 1, n, 3, 2), [X, torch.tensor(0)])
    put = ipu.compile(lambda x, y, n: tensor_ops.dynamic_update(x, y, 1, n, 2), [X, X[:, :2], torch.tensor([0])])
    for start in (0, 1):
        torch.testing.assert_close(cut(X, torch.tensor(start)), X[:, start : start + 3 : 2])
        expected = X.clone()
        expected[:, start : start + 2] = -1
        torch.testing.assert_close(put(X, torch.full((3, 2), -1.0), torch.tensor([start])), expected)
    with pytest.raises(ValueError, match="one whole number"):
        tensor_ops.dynamic_slice(X, 0, 1, 2, 1)


class Printed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (3 * tensor_ops.ipu_print_tensor(self.weight * x, "scaled")).sum()


def test_a_print_happens_in_each_run_and_shows_the_gradient(capsys: pytest.CaptureFixture[str]):
    model = Printed()
    training = ipu.training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    training.compile(torch.tensor([1.0]))
    assert capsys.readouterr().out == ""
    for x in (1.0, 2.0):
        training(torch.tensor([x]))
        assert capsys.readouterr().out == f"scaled: tensor([{x:.4f}])\nscaled_gradient: tensor([3.])\n".replace(
            f"{x:.4f}", f"{x:.0f}."
        )


def test_points_are_picked_one_by_one_each_the_farthest_from_all_before():
    points, ptr = torch.randn(11, 3, generator=torch.Generator().manual_seed(2)), [0, 7, 11]
    expected = []
    for start, end, count in ((0, 7, 4), (7, 11, 2)):
        picked = [start]
        while len(picked) < count:
            gaps = [min(float((points[i] - points[j]).square().sum()) for j in picked) for i in range(start, end)]
            picked.append(start + gaps.index(max(gaps)))
        expected += picked
    compiled = ipu.compile(lambda x: fps(x, ptr), [points])
    assert compiled(points).tolist() == fps(points, ptr).tolist() == expected
    with pytest.raises(ValueError, match="ascend from 0 to the number of points"):
        fps(points, [0, 5])


def test_nearest_points_lie_in_the_same_cloud():
    x, y = torch.tensor([[0.0], [4.0], [5.0]]), torch.tensor([[4.0], [1.0], [9.0]])
    compiled = ipu.compile(nearest, [x, y, torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])])
    assert compiled(x, y, torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])).tolist() == [0, 0, 1]
    assert nearest(x, y, [0, 0, 1], [0, 1, 1]).tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="ascending order"):
        nearest(x, y, [1, 0, 0], [0, 1, 1])
    with pytest.raises(ValueError, match="do not occur in 'batch_y'"):
        nearest(x, y, [0, 1, 2], [0, 1, 1])


def test_blocks_change_no_result_and_can_be_taken_off():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    plain = copy.deepcopy(model)
    strategies.BeginBlock(model[0], "first", ipu_id=0)
    with pytest.raises(ValueError, match="already been assigned to a block"):
        strategies.BeginBlock(model[0])
    torch.testing.assert_close(ipu.inference_model(model)(X), plain(X).detach())
    strategies.removeBlocks(model)
    assert not model[0]._forward_pre_hooks
    assert any("Block('first') on IPU 0" in asked for asked in ACCOUNT)
    with strategies.Block("second"):
        assert strategies.BeginBlock(torch.neg)(torch.ones(1)) == -1


def test_a_name_scope_names_operations_in_the_report():
    def scoped(x: Tensor) -> Tensor:
        with contexts.NameScope("outer"), contexts.NameScope("inner"):
            x = x.sin()
        return x.cos()

    assert [op.module for op in ipu.compile(scoped, [X]).graph.ops] == ["outer.inner", ""]


def test_strategies_hold_stages_by_their_blocks():
    stages = [strategies.Stage("a").ipu(1), strategies.Stage("b", "c")]
    for kind in (strategies.ShardedExecution, strategies.PipelinedExecution):
        assert kind(*stages).stage("c").blocks == kind(stages).stage("b").blocks == ["b", "c"]
        with pytest.raises(ValueError, match="two stages"):
            kind(*stages, strategies.Stage("a"))
        with pytest.raises(ValueError, match="No stage has block 'z'"):
            kind(*stages).stage("z")
    phased = strategies.ParallelPhasedExecution([strategies.Phase(*stages), ["d"]])
    assert phased.phase(0).ipus(0, 2).stage(1).blocks == ["b", "c"]
    assert strategies.SerialPhasedExecution(*stages).phase(0).stage(0).blocks == ["a"]


def test_settings_of_convolutions_are_checked():
    with contexts.MultiConv().partialsTypes([torch.half]).enableConvDithering(True).perConvReservedTiles(5):
        pass
    with pytest.raises(ValueError, match=r"Expecting torch.float or torch.half"):
        contexts.MultiConv().partialsTypes(torch.int32)
    with pytest.raises(ValueError, match="Invalid cycle back off"):
        contexts.MultiConv().cycleBackOff("half")


def test_products_run_in_float16_inside_autocast():
    linear = nn.Linear(4, 2)

    class Cast(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with contexts.autocast():
                return linear(x)

    assert ipu.inference_model(Cast())(X).dtype is torch.float16


class LabelPair:
    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second


class PairParser(call_arguments.ICustomArgParser):
    def yieldTensors(self, struct: LabelPair) -> Iterator[Tensor]:
        yield from (struct.first, struct.second)

    def reconstruct(self, original_structure: LabelPair, tensor_iterator: Iterator[Tensor]) -> LabelPair:
        return type(original_structure)(next(tensor_iterator), next(tensor_iterator))


class Twin(LabelPair):
    pass


@dataclasses.dataclass(frozen=True)
class Record:
    value: Tensor
    label: str = "none"


class Named(dict[str, Any]):
    name = "unset"


Point = namedtuple("Point", ["x", "y"])


class Half(nn.Module):
    """Parser that halves each tensor."""

    def forward(self, given: Any) -> Any:
        if isinstance(given, LabelPair):
            return type(given)(given.first / 2, given.second / 2)
        if isinstance(given, Record):
            return dataclasses.replace(given, value=given.value / 2)
        if isinstance(given, Named):
            made = Named({key: part / 2 for key, part in given.items()})
            made.name = given.name
            return made
        return type(given)(given.x / 2, given.y / 2) if isinstance(given, Point) else OrderedDict(a=given["a"] / 2)


def test_own_classes_are_arguments_and_results():
    call_arguments.registerCustomArgParser(LabelPair, PairParser())
    made = ipu.inference_model(Half())(Twin(X, X + 2))
    assert type(made) is Twin
    torch.testing.assert_close(made.second, X / 2 + 1)
    with pytest.raises(ValueError, match="ICustomArgParser"):
        call_arguments.registerCustomArgParser(LabelPair, object())


def test_records_named_tuples_and_dictionaries_keep_their_kind():
    named = Named(a=X)
    named.name = "mine"
    for given in (Record(X, "mine"), named, Point(X, X), OrderedDict(a=X)):
        made = ipu.inference_model(Half())(given)
        assert type(made) is type(given)
        assert getattr(made, "label", getattr(made, "name", "mine")) == "mine"
        half = made.value if isinstance(made, Record) else made.x if isinstance(made, Point) else made["a"]
        torch.testing.assert_close(half, X / 2)


def test_a_block_may_be_kept_where_modules_are():
    kept = nn.ModuleList([strategies.Block("first", ipu_id=0)])
    with kept[0]:
        assert torch.ones(1) == 1
