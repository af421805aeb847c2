"""Programs as files of torch: what `torch.export` saves, or what its compiler makes of that, with a description."""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from popgeo.capture.check_read import allowed_operation

_DESCRIPTION = "extra/popgeo.json"
# What torch.export writes, and reads without executing any of it once `_require_harmless` has looked.
_HARMLESS = re.compile(
    r"data/(weights|constants)/(weight_\d+|tensor_\d+|\w+_config\.json)|models/\w+\.json|data/sample_inputs/\w+\.pt|"
    r"archive_format|archive_version|byteorder|\.data/\w+|" + re.escape(_DESCRIPTION)
)
_OF_PYTHON = {"_operator.getitem", "_operator.add", "_operator.mul", "_operator.sub"}


def write_torch(path: Path, modules: Sequence[fx.GraphModule], examples: Sequence[Sequence[Tensor]]) -> None:
    """Writes programs that `torch.export.load` reads; the first is the one that it returns.

    Args:
        path: A file whose name ends in .pt2.
        modules: Take tensors in order, and return several.
        examples: Tensors like the inputs of each.
    """
    from torch.export.pt2_archive._package import package_pt2  # a second to import, and needed here alone

    programs = {
        _name(i): torch.export.export(module, tuple(given), strict=True)
        for i, (module, given) in enumerate(zip(modules, examples, strict=True))
    }
    for program in programs.values():
        for node in program.graph.nodes:  # the paths of somebody's computer
            node.meta.pop("stack_trace", None)
            node.meta.pop("nn_module_stack", None)
    package_pt2(path, exported_programs=programs)


def write_compiled(path: Path, modules: Sequence[fx.GraphModule], examples: Sequence[Sequence[Tensor]]) -> None:
    """Writes programs as torch's compiler makes them, machine code for this kind of processor, weights included.

    Raises:
        ValueError: there is no C++ compiler.
    """
    from torch._inductor import aot_compile
    from torch.export.pt2_archive._package import package_pt2

    files: dict[str, Any] = {}
    for i, (module, given) in enumerate(zip(modules, examples, strict=True)):
        program = torch.export.export(module, tuple(given), strict=True)
        try:
            files[_name(i)] = aot_compile(program.module(), tuple(given), options={"aot_inductor.package": True})
        except Exception as error:
            if "InvalidCxxCompiler" not in f"{type(error).__name__} {error}":
                raise
            raise ValueError(
                "AOTInductor finds no C++ compiler. Install g++ or clang, or use format='torch'."
            ) from error
    package_pt2(path, aoti_files=files)


def add_description(path: Path, text: str) -> None:
    """Writes what the file says of its programs beside them, where `torch.export.load` finds it as an extra file."""
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/{_DESCRIPTION}", text)


def read_parts(path: Path) -> tuple[str, str]:
    """What a file says of its programs, and the checksum of all the rest.

    Raises:
        ValueError: it is no file of this kind, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            parts = {name.partition("/")[2]: archive.read(name) for name in sorted(archive.namelist())}
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ValueError(f"it is cut off, damaged or no archive ({error})") from error
    text = parts.pop(_DESCRIPTION, None)
    if text is None:
        raise ValueError("popgeo.export did not write it")
    digest = hashlib.sha256()
    for name, data in parts.items():
        digest.update(f"{name} {len(data)} ".encode() + data)
    return text.decode(errors="replace"), digest.hexdigest()


def open_torch(path: Path, count: int) -> list[Callable[..., Sequence[Tensor]]]:
    """The programs of a file that `write_torch` made; nothing in it is executed.

    Raises:
        ValueError: it holds what could be executed, or an operation that only computes in no case.
    """
    from torch.export.pt2_archive._package import load_pt2

    _require_harmless(path)
    programs = load_pt2(str(path)).exported_programs
    return [programs[_name(i)].module() for i in range(count)]


def open_compiled(path: Path, count: int) -> list[Callable[..., Sequence[Tensor]]]:
    """The programs of a file that `write_compiled` made, which are machine code."""
    from torch._inductor import aoti_load_package

    return [aoti_load_package(str(path), model_name=_name(i)) for i in range(count)]


def _name(i: int) -> str:
    """What torch calls the first program of a file, and we the others."""
    return f"model_{i}" if i else "model"


def _require_harmless(path: Path) -> None:
    """Torch unpickles what a file asks it to, and calls what a program names; here neither may do more than compute."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            name = entry.partition("/")[2]
            if not _HARMLESS.fullmatch(name):
                raise ValueError(f"it holds {name!r}, which no export writes")
            if name.endswith("_config.json") and _asks_for_pickle(json.loads(archive.read(entry))):
                raise ValueError(f"{name} asks for what would be executed")
            if name.endswith(".pt"):
                torch.load(io.BytesIO(archive.read(entry)), weights_only=True)
            if name.startswith("models/"):
                for target in _targets(json.loads(archive.read(entry))):
                    if target not in _OF_PYTHON:
                        allowed_operation(target.removeprefix("torch.ops."))


def _asks_for_pickle(content: Any) -> bool:
    return any(one.get("use_pickle") is not False for one in content["config"].values())


def _targets(content: Any) -> list[str]:
    """What a program's nodes call, those of graphs within it included."""
    if isinstance(content, dict):
        own = [content["target"]] if isinstance(content.get("target"), str) and "inputs" in content else []
        return own + [target for part in content.values() for target in _targets(part)]
    return [target for part in content for target in _targets(part)] if isinstance(content, list) else []
