"""Programs as torch files, saved by `torch.export` or compiled by torch, with metadata."""

import io
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from popgeo.deploy.fixed_program import Tensors
from popgeo.deploy.read_torch_program import read_program
from popgeo.torch_archive import entries_of

_NOTES = "extra/popgeo.json"

Modules = Sequence[fx.GraphModule]
Examples = Sequence[Tensors]
Functions = Sequence[Callable[..., Sequence[Tensor]]]


def torch_bytes(modules: Modules, examples: Examples, notes: str) -> bytes:
    """Return the bytes of a file of programs. `torch.export.load` reads the file and returns its first program.

    Args:
        modules: The programs. Each takes tensors in order and returns several.
        examples: Example tensors of the inputs of each program, in order.
        notes: Inputs, results and sizes of the programs, as JSON.

    Returns:
        The file without its seal.
    """
    programs = {_name(i): _exported(*both) for i, both in enumerate(zip(modules, examples, strict=True))}
    return _packaged(notes, exported_programs=programs)


def compiled_bytes(modules: Modules, examples: Examples, notes: str) -> bytes:
    """Return the bytes of a file with compiled programs (machine code for this type of CPU) and their weights.

    The arguments are those of `torch_bytes`.

    Raises:
        ValueError: a C++ compiler is missing.
    """
    from torch._inductor import aot_compile

    files: dict[str, Any] = {}
    for i, (module, given) in enumerate(zip(modules, examples, strict=True)):
        program = _exported(module, given).module()
        try:
            with torch.no_grad():
                files[_name(i)] = aot_compile(program, tuple(given.values()), options={"aot_inductor.package": True})
        except Exception as error:
            if "InvalidCxxCompiler" not in f"{type(error).__name__} {error}":
                raise
            raise ValueError("There is no C++ compiler. Install g++ or clang, or use format='torch'.") from error
    return _packaged(notes, aoti_files=files)


def parts_of_archive(data: bytes) -> dict[str, bytes]:
    """Return the entries of an archive by name, without the name of the first folder.

    Raises:
        ValueError: neither `torch_bytes` nor `compiled_bytes` made the archive.
    """
    entries = entries_of(data)
    if len({entry.partition("/")[0] for entry in entries}) != 1:
        raise ValueError("the archive does not have one folder")
    return {entry.partition("/")[2]: part for entry, part in entries.items()}


def read_notes_of_archive(data: bytes) -> str:
    """Return the metadata of a file, or an empty string."""
    return parts_of_archive(data).get(_NOTES, b"").decode()


def open_torch(data: bytes, inputs: Examples) -> Functions:
    """Return the programs of a file that `torch_bytes` made. No code in the file is executed.

    Args:
        data: The file.
        inputs: Example tensors of the inputs of each program.

    Raises:
        ValueError: the file contains executable code, or an operation that is not allowed.
    """
    parts = parts_of_archive(data)
    return [read_program(parts, _name(i), given) for i, given in enumerate(inputs)]


def open_compiled(data: bytes, inputs: Examples) -> Functions:
    """Return the programs of a file that `compiled_bytes` made, which are machine code."""
    from torch._inductor.package.package import load_package

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "programs.pt2"
        path.write_bytes(data)
        return [load_package(str(path), model_name=_name(i)) for i, _ in enumerate(inputs)]


def _exported(module: fx.GraphModule, given: Tensors) -> torch.export.ExportedProgram:
    with torch.no_grad():
        program = torch.export.export(module, tuple(given.values()), strict=True)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names folders of the user who exports
    return program


def _packaged(notes: str, **parts: Any) -> bytes:
    """Return a torch archive with these parts and with the metadata as an extra file."""
    from torch.export.pt2_archive._package import package_pt2  # importing it takes a second

    file = io.BytesIO()
    package_pt2(file, **parts)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(f"{archive.namelist()[0].partition('/')[0]}/{_NOTES}", notes)
    return file.getvalue()


def _name(i: int) -> str:
    """Return the name of program `i` in a file. The first name is torch's default."""
    return f"model_{i}" if i else "model"
