"""Program files from untrusted sources run no code, stay within their size, and errors name the file and the reason."""

import contextlib
import copy
import io
import json
import os
import random
import subprocess
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from popgeo import FixedSizeOptions, export, load
from popgeo.__main__ import main
from popgeo.nn import GIN
from popgeo.sealed_file import sealed
from popgeo.torch_archive import entries_of
from tests.support import quick_python

GRAPHS = [Data(x=torch.ones(n, 4), edge_index=torch.tensor([[0], [1]])) for n in (2, 9, 5)]
SIZES = FixedSizeOptions(num_nodes=16, num_edges=60, num_graphs=4)
MODEL, NOTES = "archive/models/model.json", "archive/extra/popgeo.json"

Entries = list[tuple[str, bytes | str]]


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> Entries:
    torch.manual_seed(0)
    model = GIN(4, 8, 2, out_channels=1, readout="sum")
    path = export(model, SIZES, tmp_path_factory.mktemp("files") / "gin.pt2", graphs=GRAPHS)
    return [*entries_of(path.read_bytes()).items()]


def written(path: Path, entries: Entries, compression: int = zipfile.ZIP_STORED) -> Path:
    """Return a file of these entries with a correct seal."""
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", compression) as archive:
        warnings.simplefilter("ignore")
        for one in entries:
            archive.writestr(*one)
    path.write_bytes(sealed(file.getvalue(), "program", 1, is_archive=True))
    return path


def changed(entries: Entries, name: str, change: Callable[[Any], Any]) -> Entries:
    """Return the entries with changed JSON in one of them; `change` returns new JSON, or edits it in place."""
    content = json.loads(dict(entries)[name])
    new = change(content)
    return [(one, json.dumps(content if new is None else new) if one == name else part) for one, part in entries]


class TouchesAFile:
    def __reduce__(self):
        return os.system, ("touch executed",)


CODE = "__import__('os').system('touch executed')"
EXPRESSION = {"as_expr": {"expr_str": CODE, "hint": None}}


def in_size(model: Any) -> None:
    values = model["graph_module"]["graph"]["tensor_values"]
    next(iter(values.values()))["sizes"][0] = EXPRESSION


def node(model: Any, number: int = 0) -> Any:
    return model["graph_module"]["graph"]["nodes"][number]


X = {"as_tensor": {"name": "arg0_1"}}
XS, YES = {"as_tensors": [{"name": "arg0_1"}] * 3}, {"as_bool": True}


def one(number: float) -> Any:
    return {"as_int" if isinstance(number, int) else "as_float": number}


def ints(*numbers: int) -> Any:
    return {"as_ints": list(numbers)}


def plant(target: str, makes: Any = ({},), **given: Any) -> Callable[[Any], None]:
    """Insert an operation before the others of a program."""
    outputs = [] if makes is None else [makes] if isinstance(makes, dict) else list(makes)
    outputs = [{"as_tensors": [{"name": "e"}]}] if outputs == [XS] else outputs

    def change(model: Any) -> None:
        named = [{"name": name, "arg": arg, "kind": 2} for name, arg in given.items()]
        extra = {"target": f"torch.ops.aten.{target}", "inputs": named, "outputs": outputs, "metadata": {}}
        model["graph_module"]["graph"]["nodes"].insert(0, extra)

    return change


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "size": (in_size, "expression"),
    "argument": (lambda m: node(m)["inputs"][1].update(arg={"as_sym_int": EXPRESSION}), "expression"),
    "range": (lambda m: m["range_constraints"].update({CODE: {"min_val": 0, "max_val": 2}}), "sizes that vary"),
    "operator": (lambda m: node(m).update(target=f"_operator.{CODE}"), "is not one of the operations"),
    "python": (lambda m: node(m).update(target="builtins.eval"), "is not one of the operations"),
    "higher order": (lambda m: node(m).update(target="torch.ops.higher_order.cond"), "is not one of the operations"),
    "resize": (lambda m: node(m).update(target="torch.ops.aten.resize_.default"), "is not one of the operations"),
    "raw view": (lambda m: node(m).update(target="torch.ops.aten._reshape_alias.default"), "is not one of the oper"),
    "custom object": (
        lambda m: node(m)["inputs"][1].update(arg={"as_custom_obj": {"name": "x", "class_fqn": "y"}}), "an argument is",
    ),
    "device": (
        lambda m: node(m)["inputs"][1].update(arg={"as_device": {"type": "cuda", "index": 0}}), "on a processor",
    ),
    "number as a dtype": (plant("full.default", size=ints(2), fill_value=one(1.0), dtype=one(1000)), "dtype"),
    "number as a layout": (plant("zeros.default", size=ints(2), layout=one(99)), "layout"),
    "number as a memory format": (plant("clone.default", self=X, memory_format=one(77)), "memory_format"),
    "number as a device": (plant("ones.default", size=ints(2), device=one(5)), "device"),
    "dtype as a number": (plant("sum.dim_IntList", self=X, dim={"as_scalar_type": 7}), "dim"),
    "dtype by number": (plant("to.prim_dtype", self=X, dtype=one(7)), "is not one of the operations"),
    "division by zero": (plant("remainder.int", a=one(3), b=one(0)), "is not one of the operations"),
    "lists": (plant("_foreach_copy.default", self={"as_tensors": []}, src=XS, makes=XS), "sizes do not match"),
    "lists in place": (plant("_foreach_add_.List", self=XS, other={"as_tensors": []}, makes=None), "do not match"),
    "a dimension": (plant("_fft_r2c.default", self=X, dim=ints(2**40), normalization=one(0), onesided=YES), "match"),
    "missing": (plant("add.Tensor", self=X), "lacks the argument other"),
    "several results": (plant("relu.default", self=X, makes=[{}, {}]), "makes 1 tensors, and the file names 2"),
    "wrong name": (lambda m: node(m)["inputs"][1].update(name="no_such"), "no such arguments"),
    "unknown tensor": (lambda m: node(m)["inputs"][0].update(arg={"as_tensor": {"name": "no_such"}}), "no_such"),
    "no nodes": (lambda m: m["graph_module"]["graph"].update(nodes=7), "of a wrong type"),
    "a number": (lambda m: 7, "of a wrong type"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_program_that_asks_for_more_than_operations_is_refused_and_nothing_runs(
    entries: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.chdir(tmp_path)
    change, why = CHANGES[name]
    path = written(tmp_path / "crafted.pt2", changed(entries, MODEL, change))
    with pytest.raises(ValueError, match=rf"crafted\.pt2 cannot be loaded: .*{why}"):
        load(path)
    assert not Path("executed").exists()


def test_torch_reads_no_other_bytes_than_those_that_were_checked(
    entries: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    file = io.BytesIO()
    torch.save((TouchesAFile(),), file)
    code = file.getvalue()
    inputs = "archive/data/sample_inputs/model.pt"
    twice = [one for name, part in entries for one in [(name, code)] * 3 * (name == inputs) + [(name, part)]]
    with pytest.raises(ValueError, match="two entries have the same name"):
        load(written(tmp_path / "twice.pt2", twice))
    other = [(name.upper(), code) for name, _ in entries if name == inputs]
    with pytest.raises(ValueError, match="two entries have the same name"):
        load(written(tmp_path / "case.pt2", [*other, *entries]))
    # Nobody reads the example inputs, so that what is in them does not matter.
    unread = [(name, code if name == inputs else part) for name, part in entries]
    assert load(written(tmp_path / "unread.pt2", unread), "none")(GRAPHS).num_graphs == 3
    # A second archive within an entry has a central directory of its own.
    inner = written(tmp_path / "inner.pt2", unread).read_bytes()
    assert load(written(tmp_path / "outer.pt2", [*entries, ("archive/x", inner)]), "none")(GRAPHS).num_graphs == 3
    assert not Path("executed").exists()


def test_machine_code_runs_only_if_the_caller_asks_for_it(entries: Entries, tmp_path: Path, capsys):
    path = written(tmp_path / "code.pt2", changed(entries, NOTES, lambda notes: notes.update(format="aotinductor")))
    with pytest.raises(ValueError, match=r"it is machine code.*pass run_machine_code=True"):
        load(path)
    with pytest.raises(ValueError, match="cannot be loaded") as asked:  # which then fails for lack of machine code
        load(path, run_machine_code=True)
    assert "it is machine code" not in str(asked.value)
    (tmp_path / "a.xyz").write_text("1\n\nH 0 0 0\n")
    command = [str(path), str(tmp_path / "a.xyz"), "--out", str(tmp_path / "out.csv")]
    assert main(["predict", *command]) == 2
    assert "--run-machine-code" in capsys.readouterr().err
    assert main(["predict", *command, "--run-machine-code"]) == 2
    assert "it is machine code" not in capsys.readouterr().err


def weights_config(change: Callable[[Any], object]) -> Callable[[Entries], Entries]:
    name = "archive/data/weights/model_weights_config.json"
    return lambda entries: changed(entries, name, lambda c: change(next(iter(c["config"].values()))) and None)


WEIGHTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "pickled": (lambda one: one.update(use_pickle=True), "could execute code"),
    "larger": (lambda one: one["tensor_meta"].update(sizes=[{"as_int": 10**12}]), "out of bounds"),
    "beyond": (lambda one: one["tensor_meta"].update(storage_offset={"as_int": 5}), "out of bounds"),
    "expression": (lambda one: one["tensor_meta"].update(sizes=[EXPRESSION]), "an argument is"),
    "elsewhere": (lambda one: one.update(path_name="../../../secret"), "secret"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_lie_within_their_entry(entries: Entries, tmp_path: Path, name: str):
    change, why = WEIGHTS[name]
    with pytest.raises(ValueError, match=rf"w\.pt2 cannot be loaded: .*{why}"):
        load(written(tmp_path / "w.pt2", weights_config(change)(entries)))


def test_files_that_would_grow_when_they_are_read_are_refused(entries: Entries, tmp_path: Path):
    bomb = written(tmp_path / "bomb.pt2", [*entries, ("archive/x", bytes(10**7))], zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"bomb\.pt2 cannot be loaded: an entry is compressed"):
        load(bomb)


TEXTS: list[bytes | str] = [
    "[" * 10**5 + "]" * 10**5, '{"a":' * 10**5 + "1" + "}" * 10**5, b"\xff\xfe", "", "null", "[]", "7", '"x"',
    '{"version": 1, "format": "torch", "programs": []}', '{"version": 1, "format": "x", "programs": [{}]}',
    '{"version": 1}', '{"version": [[]]}', '{"version": true}', '{"version": 1, "format": [], "programs": 7}',
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_notes_that_are_none_are_an_error_that_names_the_file(entries: Entries, tmp_path: Path, number: int):
    parts = [(name, TEXTS[number] if name == NOTES else part) for name, part in entries]
    with pytest.raises(ValueError, match=r"notes\.pt2 cannot be loaded: ") as found:
        load(written(tmp_path / "notes.pt2", parts))
    assert len(str(found.value)) < 500


def places(part: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
        yield part, key
        yield from places(part[key])


STRANGE = [
    None, [], {}, [[]], 0, -1, 1, 2**31, 2**63, 10**30, 0.5, float("nan"), True, "x", "float32", "save",
    {"pairs": []}, {"pairs": [[1, 2]]}, {"AttrNamePadding": {"pairs": []}, "default": 0}, [None] * 3, "é" * 200,
]  # fmt: skip


def test_changed_notes_are_read_or_refused_by_name(entries: Entries, tmp_path: Path):
    draw, refused = random.Random(0), list[str]()
    for _ in range(150):

        def change(notes: Any) -> None:
            holder, key = draw.choice([*places(notes)])
            how = draw.randrange(4)
            if how == 0:
                del holder[key]
            elif how == 1 and isinstance(holder, dict):
                holder["other"] = holder.pop(key)
            else:
                holder[key] = copy.deepcopy(draw.choice(STRANGE))

        path = written(tmp_path / "notes.pt2", changed(entries, NOTES, change))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                predictor = load(path, "none")
        except ValueError as error:
            refused.append(str(error))
            continue
        with contextlib.suppress(ValueError):  # of graphs that do not fit what the notes say; any other kind fails
            predictor(GRAPHS)
    assert 80 < len(refused) < 150
    assert all(str(tmp_path / "notes.pt2") in said for said in refused)


def test_one_flipped_bit_is_found_wherever_it_is(entries: Entries, tmp_path: Path):
    whole, draw = written(tmp_path / "whole.pt2", entries).read_bytes(), random.Random(0)
    path = tmp_path / "flipped.pt2"
    for bit in draw.sample(range(8 * len(whole)), 120):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"flipped\.pt2 is truncated, damaged or not a program of popgeo"):
            load(path)


LIMITED = """
import resource, sys
from popgeo import load
used = resource.getpagesize() * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30,) * 2)
for path in sys.argv[1:]:
    try:
        load(path)
    except ValueError as error:
        print(str(error)[:200].replace("\\n", " "))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say how much memory is in use")
def test_loading_needs_no_more_memory_and_time_than_the_file_is_large(entries: Entries, tmp_path: Path):
    parts = dict(entries)
    huge = weights_config(lambda one: one["tensor_meta"].update(sizes=[{"as_int": 2**40}], strides=[{"as_int": 1}]))
    paths = [
        written(tmp_path / "bomb.pt2", [*parts.items(), ("archive/x", bytes(10**8))], zipfile.ZIP_DEFLATED),
        written(tmp_path / "huge.pt2", huge(entries)),
    ]
    ended = subprocess.run(
        [*quick_python.command(), "-c", LIMITED, *paths], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.count("cannot be loaded") == 2, ended.stdout
