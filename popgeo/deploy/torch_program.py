"""Programs as files of torch: what `torch.export` saves, or what its compiler makes of that, with notes beside them."""

import io
import json
import re
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from popgeo.capture.check_read import allowed_operation
from popgeo.deploy.fixed_program import Tensors

CHECKSUM_DIGITS = 64
_NOTES = "extra/popgeo.json"
# What torch.export writes, and reads without executing any of it once `_require_harmless` has looked.
_HARMLESS = re.compile(
    r"data/(weights|constants)/(weight_\d+|tensor_\d+|\w+_config\.json)|models/\w+\.json|data/sample_inputs/\w+\.pt|"
    r"archive_format|archive_version|byteorder|\.data/\w+|" + re.escape(_NOTES)
)
# What torch.export writes beside the operations of a step, and what computes no less harmlessly.
_ALSO = {"_operator.getitem", "_operator.add", "_operator.mul", "_operator.sub"}
_ALSO |= {f"torch.ops.aten.{name}.default" for name in ("lift_fresh", "lift_fresh_copy", "_assert_tensor_metadata")}

Modules = Sequence[fx.GraphModule]
Examples = Sequence[Tensors]
Opened = Sequence[Callable[..., Sequence[Tensor]]]


def write_torch(modules: Modules, examples: Examples, notes: str) -> bytes:
    """A file of programs that `torch.export.load` reads; the first is the one that it returns.

    Args:
        modules: Take tensors in order, and return several.
        examples: Tensors like the inputs of each, in order.
        notes: What is to be known of them besides.

    Returns:
        The file, which ends where its checksum is to stand.
    """
    from torch.export.pt2_archive._package import package_pt2  # a second to import, and needed by few

    programs = {_name(i): _exported(*both) for i, both in enumerate(zip(modules, examples, strict=True))}
    file = io.BytesIO()
    package_pt2(file, exported_programs=programs)
    return _with_notes(file, notes)


def write_compiled(modules: Modules, examples: Examples, notes: str) -> bytes:
    """The same, as torch's compiler makes them: machine code for this kind of processor, weights included.

    Raises:
        ValueError: there is no C++ compiler.
    """
    from torch._inductor import aot_compile
    from torch.export.pt2_archive._package import package_pt2

    files: dict[str, Any] = {}
    for i, (module, given) in enumerate(zip(modules, examples, strict=True)):
        program = _exported(module, given).module()
        try:
            with torch.no_grad():
                files[_name(i)] = aot_compile(program, tuple(given.values()), options={"aot_inductor.package": True})
        except Exception as error:
            if "InvalidCxxCompiler" not in f"{type(error).__name__} {error}":
                raise
            raise ValueError(
                "AOTInductor finds no C++ compiler. Install g++ or clang, or use format='torch'."
            ) from error
    file = io.BytesIO()
    package_pt2(file, aoti_files=files)
    return _with_notes(file, notes)


def read_notes_of_archive(data: bytes) -> str:
    """What stands beside the programs of a file; nothing where there is none."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = [name for name in archive.namelist() if name.endswith(_NOTES)]
        return archive.read(names[0]).decode() if names else ""


def open_torch(data: bytes, count: int) -> Opened:
    """The programs of a file that `write_torch` made; nothing in it is executed.

    Raises:
        ValueError: it holds what could be executed, or an operation that does more than compute.
    """
    from torch.export.pt2_archive._package import load_pt2

    _require_harmless(data)
    programs = load_pt2(io.BytesIO(data)).exported_programs
    return [programs[_name(i)].module() for i in range(count)]


def open_compiled(data: bytes, count: int) -> Opened:
    """The programs of a file that `write_compiled` made, which are machine code."""
    from torch._inductor.package.package import load_package

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "programs.pt2"
        path.write_bytes(data)
        return [load_package(str(path), model_name=_name(i)) for i in range(count)]


def _exported(module: fx.GraphModule, given: Tensors) -> torch.export.ExportedProgram:
    with torch.no_grad():
        program = torch.export.export(module, tuple(given.values()), strict=True)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names the folders of whoever exports
    return program


def _with_notes(file: io.BytesIO, notes: str) -> bytes:
    """An archive with notes, where `torch.export.load` finds them as an extra file; its comment is the checksum."""
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(f"{archive.namelist()[0].partition('/')[0]}/{_NOTES}", notes)
        archive.comment = b"-" * CHECKSUM_DIGITS
    return file.getvalue()[:-CHECKSUM_DIGITS]


def _name(i: int) -> str:
    """What torch calls the first program of a file, and we the others."""
    return f"model_{i}" if i else "model"


def _require_harmless(data: bytes) -> None:
    """Torch unpickles what a file asks it to, and calls what a program names; here neither may do more than compute."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.namelist():
            name, part = entry.partition("/")[2], archive.read(entry)
            if not _HARMLESS.fullmatch(name):
                raise ValueError(f"it holds {name!r}, which no export writes")
            if name.endswith("_config.json") and _asks_for_pickle(json.loads(part)):
                raise ValueError(f"{name} asks for what would be executed")
            if name.endswith(".pt"):
                _require_weights_only(name, part)
            if name.startswith("models/"):
                for target in set(_targets(json.loads(part))) - _ALSO:
                    allowed_operation(target.removeprefix("torch.ops."))


def _require_weights_only(name: str, data: bytes) -> None:
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # whose words advise to run what the file holds
        raise ValueError(f"{name} holds more than tensors, which would be executed") from error


def _asks_for_pickle(content: Any) -> bool:
    return any(one.get("use_pickle") is not False for one in content["config"].values())


def _targets(content: Any) -> list[str]:
    """What a program's nodes call, those of graphs within it included."""
    if isinstance(content, dict):
        own = [content["target"]] if isinstance(content.get("target"), str) and "inputs" in content else []
        return own + [target for part in content.values() for target in _targets(part)]
    return [target for part in content for target in _targets(part)] if isinstance(content, list) else []
