"""Models as files that run without their source: exported at a fixed shape, loaded as a predictor."""

import hashlib
import io
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from popgeo.atomic_write import write_atomically
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.deploy.fixed_program import Tensors
from popgeo.deploy.onnx_program import open_onnx, write_onnx
from popgeo.deploy.plain_operations import plain_module
from popgeo.deploy.predictor import Predictor
from popgeo.deploy.program_notes import read_notes, write_notes

_DIGITS = 64  # of a checksum, at the end of a file
_NOTES = "popgeo.json"
_TOLERANCE = 1e-4  # of results, whose rounding may be another


def export(
    model: nn.Module,
    sizes: FixedSizeOptions,
    path: str | Path,
    format: str = "torch",
    *,
    graphs: Sequence[Any],
    forces: bool = False,
    units: Mapping[str, str] | None = None,
    **choices: Any,
) -> Path:
    """Writes a file with a model as a program for batches of one size, which runs without the model's source.

    What the file computes for `graphs` is compared with what the model does before anything is written.

    Args:
        model: The model; it predicts as in `model.eval()`.
        sizes: The shape of a batch.
        path: The file.
        format: `"torch"`, which `torch.export.load` reads; `"aotinductor"`, compiled, which runs from C++, too; or
            `"onnx"`, which onnxruntime runs.
        graphs: A few graphs like those to come: their attributes, widths and types are those that the file takes.
        forces: Whether a model of energies is to give `energy` and `forces`; the backward pass is part of the file.
        units: Units of inputs and results, by name, which the file keeps for its readers.
        choices: What `Predictor` takes besides.

    Returns:
        The file.

    Raises:
        ImportError: a package that the format needs is not installed.
        ValueError: there is no such format, the model cannot be written in it, or the file would compute something
            else.

    Example:
        >>> from torch_geometric.data import Data
        >>> from popgeo.nn import GIN
        >>> graphs = [Data(x=torch.ones(n, 4), edge_index=torch.tensor([[0], [1]])) for n in (2, 9, 5)]
        >>> sizes = FixedSizeOptions(num_nodes=32, num_edges=8, num_graphs=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export(GIN(4, 8, 2, out_channels=1, readout="sum"), sizes, folder + "/gin.pt2", graphs=graphs)
        ...     load(path)(graphs)
        Predictions(3 graphs; out: [3, 1] of graphs)
    """
    if format not in _WRITERS:
        raise ValueError(f"format is {format!r}; it is one of {', '.join(map(repr, _WRITERS))}.")
    if not isinstance(sizes, FixedSizeOptions):
        raise ValueError(f"sizes is a {type(sizes).__name__}; a file has one shape: pass one FixedSizeOptions.")
    predictor = Predictor(model, sizes, "none", device="cpu", forces=forces, **choices)
    wanted = predictor(graphs)
    (program,) = predictor.programs.values()
    assert program.model is not None  # it has not come from a file
    examples = {name: torch.zeros_like(tensor, device="cpu") for name, tensor in program.inputs.items()}
    results = program.run(examples)
    plain = plain_module(program.model, examples)
    notes = write_notes(program, results, format, units or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch's exporters about torch
        data = _WRITERS[format](plain, examples, list(results), notes)
    data += hashlib.sha256(data).hexdigest().encode()
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / Path(path).name
        first.write_bytes(data)
        found = load(first)(graphs)
    for name, tensor in wanted.items():
        tolerance = _TOLERANCE * max(1.0, _largest(tensor))
        if not torch.allclose(found[name], tensor, rtol=0, atol=tolerance, equal_nan=True):
            raise ValueError(
                f"As {format!r} the model gives another {name!r} for these graphs, by up to "
                f"{_largest(found[name] - tensor):.3g}. Export it in another format."
            )
    write_atomically(Path(path), data)
    return Path(path)


def load(path: str | Path) -> Predictor:
    """A predictor of a file that `export` wrote.

    Raises:
        ImportError: a package that the format needs is not installed.
        ValueError: it is no such file, of another version, truncated or changed.
        OSError: it cannot be read.
    """
    data = Path(path).read_bytes()
    if hashlib.sha256(data[:-_DIGITS]).hexdigest().encode() != data[-_DIGITS:]:
        raise ValueError(
            f"{path} is truncated or changed, or popgeo.export has not written it: its checksum is wrong. Copy it "
            "again, or export the model again."
        )
    if zipfile.is_zipfile(io.BytesIO(data)):
        format, program, results = read_notes(_notes_of_archive(data), str(path))
        run = _by_name(_OPENED[format](path), results)
    else:
        run, notes = open_onnx(data, str(path))
        _, program, _ = read_notes(notes, str(path))
    return Predictor.of_programs([replace(program, run=run)])


def _largest(tensor: Tensor) -> float:
    """The size of the largest element, of those that have one."""
    return float(tensor.abs().double().nan_to_num(0.0, 0.0, 0.0).max()) if tensor.numel() else 0.0


def _program_of(plain: fx.GraphModule, examples: Tensors) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(plain, tuple(examples.values()), strict=True)


def _write_torch(plain: fx.GraphModule, examples: Tensors, results: Sequence[str], notes: str) -> bytes:
    file = io.BytesIO()
    torch.export.save(_program_of(plain, examples), file)
    return _with_notes(file.getvalue(), notes)


def _write_compiled(plain: fx.GraphModule, examples: Tensors, results: Sequence[str], notes: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        made = torch._inductor.aoti_compile_and_package(
            _program_of(plain, examples), package_path=str(Path(folder) / "program.pt2")
        )
        return _with_notes(Path(made).read_bytes(), notes)


def _by_name(function: Callable[..., Any], results: Sequence[str]) -> Callable[[Tensors], Tensors]:
    """A function of tensors in order as one of tensors by name."""

    def run(tensors: Tensors) -> Tensors:
        with torch.no_grad():
            return dict(zip(results, function(*tensors.values()), strict=True))

    return run


def _with_notes(data: bytes, notes: str) -> bytes:
    """An archive with notes, which ends where its checksum is to stand."""
    file = io.BytesIO(data)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(f"{archive.namelist()[0].partition('/')[0]}/extra/{_NOTES}", notes)
        archive.comment = b"-" * _DIGITS
    return file.getvalue()[:-_DIGITS]


def _notes_of_archive(data: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = [name for name in archive.namelist() if name.endswith(_NOTES)]
        return archive.read(names[0]).decode() if names else ""


_WRITERS: dict[str, Callable[[fx.GraphModule, Tensors, Sequence[str], str], bytes]] = {
    "torch": _write_torch,
    "aotinductor": _write_compiled,
    "onnx": write_onnx,
}
_OPENED: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "torch": lambda path: torch.export.load(io.BytesIO(path.read_bytes())).module(),
    "aotinductor": lambda path: torch._inductor.aoti_load_package(str(path)),
}
