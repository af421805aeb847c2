"""A kept step from a stranger computes and does nothing else, in its own memory, for the model that it is kept for."""

import io
import json
import os
import random
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from popgeo import StepOptions, compile_forward
from popgeo.capture import step_cache
from popgeo.capture.arguments import Arguments
from popgeo.capture.capture import signature_of
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.check_read import require_operations
from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from popgeo.engine.codegen import emit
from popgeo.ipu import Options, training_model
from popgeo.sealed_file import sealed
from tests.support.kept_steps import add_op, parts_of, plant

X = torch.tensor([[1.0, 4.0], [-2.0, 0.5]])


class Scaled(nn.Module):
    """Holds a weight and a constant, and calls an operation whose result torch allocates anew at each run."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 3.0))
        self.offsets = torch.arange(2.0 * size).reshape(2, size).t()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = (self.weight * x).flip(0) + self.offsets.t()
        return out, out.square().mean()


def trained(folder: Path, model: nn.Module | None = None) -> list[float]:
    """The losses of two steps."""
    model = model or Scaled()
    step = training_model(model, Options(cache_dir=folder), torch.optim.SGD(model.parameters(), 0.1))
    return [step(X)[1].item() for _ in range(2)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a kept step, as it was written."""
    folder = tmp_path_factory.mktemp("whole") / "steps"
    trained(folder)
    (path,) = folder.iterdir()
    return path


@pytest.fixture
def kept(whole: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    shutil.copytree(whole.parent, tmp_path / "steps")
    return tmp_path / "steps" / whole.name


def load(path: Path) -> CapturedStep | None:
    """What a start of the model finds there."""
    model = Scaled()
    return step_cache.load(path.parent, path.stem, model, Arguments.of(signature_of(model), (X,), {}), ["weight"])


def refused(path: Path, match: str = "") -> None:
    """A start does not take this file, and says so."""
    with pytest.warns(UserWarning, match=f"is not a compiled step .*{match}.*compiling again"):
        assert load(path) is None


def test_what_is_whole_is_read_and_what_is_damaged_is_made_anew(kept: Path, monkeypatch):
    expected = trained(kept.parent.parent / "fresh")
    plant(kept, lambda document: document["outputs"].reverse())
    before = kept.read_bytes()
    with pytest.warns(UserWarning, match="compiling again and replacing it"):
        assert trained(kept.parent) == expected
    assert kept.read_bytes() != before
    monkeypatch.setattr("popgeo.capture.capture_step.capture", None)
    assert trained(kept.parent) == expected


def test_a_step_with_a_scale_that_follows_the_gradients_is_found_again(tmp_path: Path, monkeypatch):
    def losses() -> list[float]:
        model = Scaled()
        options = Options(cache_dir=tmp_path, loss_scaling="dynamic")
        step = training_model(model, options, torch.optim.SGD(model.parameters(), 0.1))
        return [step(X)[1].item() for _ in range(2)]

    expected = losses()
    monkeypatch.setattr("popgeo.capture.capture_step.capture", None)
    assert losses() == expected


def first_op(document: dict, target: str) -> list:
    return next(op for op in document["ops"] if op[0] == target)


def test_the_name_of_an_argument_is_no_code(kept: Path, tmp_path: Path):
    code = f"**(__import__('os').mkdir({str(tmp_path / 'sprung')!r}) or {{}})); _ = dict(x"

    def change(document):
        for _ in range(2):  # without a fixed place, so that their arguments are written down
            first_op(document, "aten.flip.default")[2][code] = 1

    plant(kept, change)
    refused(kept)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("where", ["ref", "output", "written", "result"])
def test_the_number_of_a_value_is_no_code(kept: Path, tmp_path: Path, where: str):
    code = f"0 and __import__('os').mkdir({str(tmp_path / 'sprung')!r})"

    def change(document):
        op = first_op(document, "aten.flip.default")
        if where == "ref":
            op[1][0] = {"ref": code}
        elif where == "result":
            document["outputs"][0] = code
        else:
            op[3 if where == "output" else 4] = [code]

    plant(kept, change)
    refused(kept, "not whole numbers")
    assert not (tmp_path / "sprung").exists()


def test_no_text_of_a_graph_becomes_source(tmp_path: Path):
    value = Value(shape=(2,), stride=(1,), offset=0, dtype=torch.float32, storage=0, producer=None)
    made = Value(shape=(2,), stride=(1,), offset=0, dtype=torch.float32, storage=1, producer=0)
    ops = [Op(target="aten.flip.default", args=(Ref(0),), kwargs={"dims=[0]) or print(": [0]}, outputs=(1,))]
    ops.append(Op(target="aten.flip.default", args=(Ref(1), [0]), outputs=(2,)))
    graph = OpGraph(
        ops=tuple(ops),
        values=(value, made, Value(**{**vars(made), "storage": 2, "producer": 1})),
        inputs={Input(Role.ARGUMENT, "x"): 0},
        outputs=(2,),
    )
    with pytest.raises(ValueError, match="is not a name of an argument"):
        emit(graph, {})


def test_no_operation_writes_a_file(kept: Path, tmp_path: Path):
    bystander = tmp_path / "bystander"
    bystander.write_bytes(b"1234")

    def change(document):
        mapped = add_op(document, "aten.from_file.default", [str(bystander), True, 1], {})
        first = {"shape": [], "stride": [], "storage": document["values"][mapped][4]}
        add_op(document, "aten.fill_.Scalar", [{"ref": mapped}, 7.0], {}, **first)

    plant(kept, change)
    refused(kept, "from_file.default. is not one of the operations")
    assert bystander.read_bytes() == b"1234"


@pytest.mark.parametrize(
    "target",
    [
        "aten.set_.source_Tensor", "aten.resize_.default", "aten._print.default",
        "inductor.resize_storage_bytes_.default", "aten.add.overloads", "aten.add.__class__", "aten.add",
        "prim.device.default", "aten.record_stream.default",
        "profiler._record_function_exit.default", "nothing.such.default", "", "aten.add.Tensor.x",
    ],
)  # fmt: skip
def test_only_operations_that_compute_are_taken(kept: Path, target: str):
    plant(kept, lambda document: first_op(document, "aten.flip.default").__setitem__(0, target))
    refused(kept)


def in_the_place_of_constants(document, device: str) -> bytes:
    """Constants of the right shapes that lie otherwise."""
    forms = [document["values"][v] for v in document["constants"]]
    own = [torch.zeros(1, dtype=getattr(torch, form[3]), device=device).expand(form[0]) for form in forms]
    assert any(tensor.numel() > 1 for tensor in own)
    file = io.BytesIO()
    torch.save(own, file)
    return file.getvalue()


def wrong_forms():
    """Changes of what a graph says about itself, each of which would have a kernel look beside its memory."""

    def of_value(field: int, new):
        def change(document):
            value = document["values"][first_op(document, "aten.flip.default")[3][0]]
            value[field] = new

        return change

    yield "a larger result", of_value(0, [2000, 2])
    yield "other strides", of_value(1, [4000, 1])
    yield "an offset", of_value(2, 1000)
    yield "another type", of_value(3, "float64")
    yield "a type that is none", of_value(3, "onnx")
    yield "a negative size", of_value(0, [-2, 2])
    yield "a size beyond all memory", of_value(0, [2**62, 2**62])
    yield "a text for a size", of_value(0, ["2", 2])
    yield "a float for a size", of_value(0, [2.0, 2])
    yield "a larger argument", lambda d: d["values"][dict(d["inputs"])["input:x"]].__setitem__(0, [2000, 2])
    yield "a larger weight", lambda d: d["values"][dict(d["inputs"])["parameter:weight"]].__setitem__(0, [2000])
    yield (
        "another weight",
        lambda d: d["inputs"][0].__setitem__(0, "parameter:w"),
    )
    yield "a weight more", lambda d: d["inputs"].append(["parameter:w", d["constants"].pop()])
    yield "a negative dimension", lambda d: first_op(d, "aten.flip.default")[1].__setitem__(1, [-9])
    yield "a text for a dimension", lambda d: first_op(d, "aten.flip.default")[1].__setitem__(1, "0")
    yield "an argument that is none", lambda d: first_op(d, "aten.flip.default")[2].__setitem__("dim", 0)
    yield (
        "a change in place that is none",
        lambda d: first_op(d, "aten.flip.default")[4].append(first_op(d, "aten.flip.default")[1][0]["ref"]),
    )
    yield "another operation", lambda d: first_op(d, "aten.flip.default").__setitem__(0, "aten.select.int")
    yield "a phase that is none", lambda d: first_op(d, "aten.flip.default").__setitem__(5, "<b>")
    yield "another device", lambda d: first_op(d, "aten.flip.default")[1].append({"device": "cuda"})
    yield "no results", lambda d: d["outputs"].clear()
    yield "results in another order", lambda d: d["outputs"].reverse()
    yield "no gradients", lambda d: d["trained"].clear()
    yield "gradients of other weights", lambda d: d.__setitem__("trained", ["bias"])
    yield "rows of what is not an argument", lambda d: d["row_indices"].append("parameter:weight")
    yield "an argument for a parameter", lambda d: d.__setitem__("written", ["parameter:weight"])
    yield "a result more", lambda d: d["result"][2].append(["slot", [], "float32"])
    yield "a class that this process does not have", lambda d: d["result"].__setitem__(0, ["os", "stat_result_"])
    yield "a number that is none", lambda d: d.__setitem__("captured_ops", "<b>")
    yield "constants beyond what is there", lambda d: b""
    yield "more constants than the graph needs", lambda d: b"0" * 10**6
    for name, device in (("one number for all of a constant's", "cpu"), ("constants without memory", "meta")):
        yield name, lambda d, device=device: in_the_place_of_constants(d, device)
    yield "no values", lambda d: d.pop("values")


WRONG = dict(wrong_forms())


@pytest.mark.parametrize("name", WRONG)
def test_a_graph_that_says_what_is_not_so_is_made_anew(kept: Path, name: str):
    def change(document):
        given = WRONG[name](document)
        return given if isinstance(given, bytes) else None

    plant(kept, change)
    refused(kept)


def test_a_graph_of_a_hundred_thousand_brackets_is_made_anew(kept: Path):
    head, _, _ = parts_of(kept)
    body = b"[" * 10**5 + b"]" * 10**5
    kept.write_bytes(sealed(json.dumps(head).encode() + b"\n" + body, step_cache.KIND, step_cache.VERSION))
    refused(kept)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720])
def test_a_folder_that_others_can_write_to_is_refused_with_a_remedy(kept: Path, mode: int):
    kept.parent.chmod(mode)
    with pytest.raises(ValueError, match=r"can be written to by other users.*chmod go-w .*steps$"):
        load(kept)


def test_a_folder_of_somebody_else_is_refused_with_a_remedy(kept: Path, monkeypatch):
    owner = kept.parent.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:  # whom everybody has to trust
        assert load(kept) is not None
        os.chown(kept.parent, 4321, -1)
        owner = 4321
    with pytest.raises(ValueError, match=f"belongs to user {owner}, who could choose what runs here"):
        load(kept)


def test_a_link_to_a_folder_counts_as_what_it_leads_to(kept: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(kept.parent)
    assert load(tmp_path / "link" / kept.name) is not None
    kept.parent.chmod(0o777)
    with pytest.raises(ValueError, match="can be written to by other users"):
        load(tmp_path / "link" / kept.name)


def test_files_that_others_can_write_to_links_and_pipes_are_not_read(kept: Path, tmp_path: Path):
    kept.chmod(0o666)
    refused(kept, "can be written to by other users")
    kept.chmod(0o600)
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    refused(kept)
    kept.unlink()
    os.mkfifo(kept, 0o600)
    refused(kept, "it is not a file")
    kept.unlink()
    kept.mkdir()
    refused(kept)


def test_folders_and_files_are_made_for_their_owner_alone(tmp_path: Path):
    before = os.umask(0)
    try:
        trained(tmp_path / "new" / "steps")
    finally:
        os.umask(before)
    made = [tmp_path / "new", tmp_path / "new" / "steps", *(tmp_path / "new" / "steps").iterdir()]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700, 0o700, 0o600]


def test_the_step_of_another_model_is_not_run_under_a_name_that_it_does_not_have(kept: Path):
    class Shifted(Scaled):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            out = (self.weight + x).flip(0) + self.offsets.t()
            return out, out.square().mean()

    trained(kept.parent.parent / "other", Shifted())
    (other,) = (kept.parent.parent / "other").iterdir()
    kept.write_bytes(other.read_bytes())
    refused(kept, "that of a different model")


def test_a_flipped_bit_is_noticed_wherever_it_is(kept: Path):
    whole = kept.read_bytes()
    end = 8 * whole.index(b"\n")
    bits = [*range(0, end, 53), *random.Random(0).sample(range(end, 8 * len(whole)), 50)]
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        kept.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = load(kept)
        assert found is None, bit


def test_constants_lie_in_memory_as_they_did(tmp_path: Path):
    base = torch.arange(24.0).reshape(4, 6)
    views = [
        base.t(),
        base[1:3],
        base[2:4],
        base[0].expand(3, 6),
        base[:0],
        base.bool(),
        base[2, 3],
        base.bfloat16()[1],
    ]

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.views = list(views)

        def forward(self, x: Tensor) -> list[Tensor]:
            return [view + x for view in self.views]

    expected = Held()(torch.ones(()))
    for _ in range(2):
        step = compile_forward(Held(), options=StepOptions(cache_dir=tmp_path / "steps"))
        for mine, theirs in zip(step(torch.ones(())), expected, strict=True):
            assert torch.equal(mine, theirs)
        for v, tensor in step.graph.constants.items():
            assert tensor.stride() == step.graph.values[v].stride


def test_an_operation_that_popgeo_does_not_know_is_not_kept_and_a_warning_says_so(tmp_path: Path):
    class Inverse(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.inv(x)

    step = compile_forward(Inverse(), options=StepOptions(cache_dir=tmp_path / "steps"))
    with pytest.warns(UserWarning, match="not kept .*linalg_inv_ex.default. is not one of the operations"):
        torch.testing.assert_close(step(X) @ X, torch.eye(2))


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "why"),
    [
        ("aten.index_put.default", (Ref(0), [], Ref(1), True), {}, "cannot be broadcast|must match|expanded size"),
        (
            "aten.zeros.default",
            ([2, 4],),
            {"device": ".."},
            "takes Optional.Device. as device|where else a result lies",
        ),
        (
            "aten.zeros.default",
            ([2, 4],),
            {"device": torch.device("cuda")},
            "takes Optional.Device. as device|where else a result lies",
        ),
    ],
)
def test_what_torch_would_refuse_when_the_step_runs_is_refused_when_it_is_read(target, args, kwargs, why):
    values = [
        Value(shape=(rows, 4), stride=(4, 1), offset=0, dtype=torch.float32, storage=number, producer=producer)
        for number, (rows, producer) in enumerate([(2, None), (3, None), (2, 0)])
    ]
    graph = OpGraph(
        ops=(Op(target=target, args=args, kwargs=kwargs, outputs=(2,)),),
        values=tuple(values),
        inputs={Input(Role.ARGUMENT, "x"): 0, Input(Role.ARGUMENT, "rows"): 1},
        outputs=(2,),
    )
    with pytest.raises(ValueError, match=why):
        require_operations(graph)
