"""Export of models to files that run without the model's source, and loading of such files as predictors."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from popgeo.atomic_write import write_atomically
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.deploy.compile_program import compiled_by
from popgeo.deploy.fixed_program import Tensors
from popgeo.deploy.onnx_program import onnx_bytes, open_onnx, read_notes_of_onnx
from popgeo.deploy.plain_operations import plain_module
from popgeo.deploy.predictions import Predictions
from popgeo.deploy.predictor import Predictor
from popgeo.deploy.program_notes import notes_as_json, read_notes
from popgeo.deploy.torch_program import compiled_bytes, open_compiled, open_torch, read_notes_of_archive, torch_bytes
from popgeo.engine.backend import Backend
from popgeo.sealed_file import has_checksum, kind_of, sealed, unsealed

_KIND, _VERSION = "program", 1
_TOLERANCE = 1e-4  # allowed difference of results by rounding


def export(
    model: nn.Module,
    sizes: FixedSizeOptions | Sequence[FixedSizeOptions] | None,
    path: str | Path,
    format: str = "torch",
    *,
    graphs: Sequence[Any],
    forces: bool = False,
    units: Mapping[str, str] | None = None,
    **choices: Any,
) -> Path:
    """Write a model to a file, as a program for batches of fixed size that runs without the model's source.

    Before the file is written, its results for `graphs` are compared with the model's results.

    Args:
        model: The model; it predicts as in `model.eval()`.
        sizes: Shape of a batch, or several; each is a program in the file. None chooses them from `graphs`.
        path: The file.
        format: `"torch"`, which `torch.export.load` reads; `"aotinductor"`, compiled, which also runs from C++; or
            `"onnx"`, which onnxruntime runs, with one shape.
        graphs: A few graphs; later graphs must have the same attributes, widths and types.
        forces: Whether a model of energies returns `energy` and `forces`; the backward pass is part of the file.
        units: Units of inputs and results by name, for readers of the file.
        choices: Further arguments of `Predictor`: `batch_size`, `max_shapes`, `arguments`, `results`, `layout`.

    Returns:
        The path of the file.

    Raises:
        ImportError: a package for the format is not installed.
        ValueError: the format is unknown, the model cannot be written in it, or the file's results would differ.

    Example:
        >>> import tempfile
        >>> from torch_geometric.data import Data
        >>> from popgeo.nn import GIN
        >>> graphs = [Data(x=torch.ones(n, 4), edge_index=torch.tensor([[0], [1]])) for n in (2, 9, 5)]
        >>> sizes = FixedSizeOptions(num_nodes=32, num_edges=8, num_graphs=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export(GIN(4, 8, 2, out_channels=1, readout="sum"), sizes, folder + "/gin.pt2", graphs=graphs)
        ...     load(path)(graphs)
        Predictions(3 graphs; out: [3, 1] of graphs)
    """
    from torch_geometric.data import Data

    if format not in _WRITERS:
        raise ValueError(f"format is {format!r}; pass one of {', '.join(map(repr, _WRITERS))}.")
    graphs = [Data(**graph) if isinstance(graph, dict) else graph for graph in graphs]
    if not graphs:
        raise ValueError("graphs is empty; pass a few graphs like those to predict for.")
    choices |= {"device": "cpu", "forces": forces}
    predictor = Predictor(model, sizes, "none", **choices)
    wanted = _at_these_sizes(predictor, graphs)
    # All graphs decide the levels of attributes; the smallest graph may leave them open.
    choices |= {"layout": next(iter(predictor.programs.values())).layout}
    smallest = copy.copy(min(graphs, key=lambda graph: graph.num_nodes))
    if "cutoff" in smallest:  # only the check of pairs reads it, and has passed
        del smallest["cutoff"]
    made, examples, plain = [], [], []
    for shape in predictor.shapes:
        of_shape = Predictor(model, shape, "none", **choices)
        _at_these_sizes(of_shape, [smallest])
        (program,) = of_shape.programs.values()
        assert program.model is not None  # not from a file
        example = {name: torch.zeros_like(one, device="cpu") for name, one in program.inputs.items()}
        made.append((program, program.run(*example.values())))
        examples.append(example)
        plain.append(plain_module(program.model, example))
    notes = notes_as_json(made, format, units or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # by torch's exporters about torch
        data = _WRITERS[format](plain, examples, notes)
    data = sealed(data, _KIND, _VERSION, is_archive=format != "onnx")
    found = _loaded(data, str(path), "none", run_machine_code=True)(graphs)
    for name, tensor in wanted.items():
        tolerance = _TOLERANCE * max(1.0, _largest(tensor))
        if not torch.allclose(found[name], tensor, rtol=0, atol=tolerance, equal_nan=True):
            raise ValueError(
                f"In the format {format!r} the result {name!r} of these graphs differs by up to "
                f"{_largest(found[name] - tensor):.3g}. Export the model in another format."
            )
    write_atomically(Path(path), data)
    return Path(path)


def load(path: str | Path, backend: Backend | str | None = "cpu", *, run_machine_code: bool = False) -> Predictor:
    """Return a predictor of a file that `export` wrote.

    Files of the formats torch and ONNX may come from untrusted sources: no code in them is executed, and their
    operations only compute. A file of the format AOTInductor is machine code, and loading it runs the code.

    Args:
        path: The file.
        backend: Compiles programs of the format torch: `"cpu"`, `"inductor"`, or `"none"`.
        run_machine_code: Whether to load a file of the format AOTInductor. Pass True only if you trust its author.

    Raises:
        ImportError: a package for the format is not installed.
        ValueError: the file is of a different kind or version, is truncated or changed, contains code, or is
            machine code and `run_machine_code` is False.
        OSError: the file cannot be read.
    """
    return _loaded(Path(path).read_bytes(), str(path), backend, run_machine_code)


def _loaded(data: bytes, path: str, backend: Backend | str | None, run_machine_code: bool) -> Predictor:
    is_older = has_checksum(data) and kind_of(data) is None  # seals of older versions name no kind
    try:
        is_older or unsealed(data, path, _KIND, _VERSION)
    except ValueError as error:
        raise ValueError(
            f"{error} If torch.save wrote it, it holds weights: make the model and pass both to "
            "popgeo.Predictor.from_checkpoint(path, model)."
        ) from error
    try:
        notes = (read_notes_of_archive if data[:2] == b"PK" else read_notes_of_onnx)(data)
        format, programs, results = read_notes(notes)
        if format == "aotinductor" and not run_machine_code:
            raise ValueError(
                "it is machine code, which runs when it is loaded. If you trust its author, pass "
                "run_machine_code=True to popgeo.load, or --run-machine-code to popgeo predict"
            )
        opened = _OPENED[format](data, [program.inputs for program in programs])
        compiler = backend if format == "torch" else None
        parts = zip(programs, opened, results, strict=True)
        made = [replace(program, run=_by_name(compiled_by(compiler, run), names)) for program, run, names in parts]
        return Predictor.of_programs(made)
    except ImportError:
        raise
    except Exception as error:  # readers raise errors of many kinds
        is_gap = isinstance(error, (LookupError, TypeError, AttributeError))
        reason = f"a part is missing or of a wrong type: {error!r}" if is_gap else str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be loaded: {reason[:300].rstrip('.') or repr(error)}.") from error


def _at_these_sizes(predictor: Predictor, graphs: Sequence[Any]) -> Predictions:
    """Predict with the shapes of the program; raise if a graph needs a larger shape.

    Raises:
        ValueError: a shape would have to grow.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Graph .* which grows")
        try:
            return predictor(graphs, progress_bar=False)
        except UserWarning as error:
            raise ValueError(f"{str(error).partition(', which')[0]}. Pass larger sizes.") from None


def _largest(tensor: Tensor) -> float:
    """Return the largest absolute value of the finite elements, or 0 if there are none."""
    return float(tensor.detach().abs().double().nan_to_num(0.0, 0.0, 0.0).max()) if tensor.numel() else 0.0


def _by_name(function: Callable[..., Sequence[Tensor]], results: Sequence[str]) -> Callable[..., Tensors]:
    """Wrap a function that returns tensors in order into a function that returns them by name."""

    @torch.no_grad()
    def run(*tensors: Tensor) -> Tensors:
        return dict(zip(results, function(*tensors), strict=True))

    return run


_WRITERS = {"torch": torch_bytes, "aotinductor": compiled_bytes, "onnx": onnx_bytes}
_OPENED = {"torch": open_torch, "aotinductor": open_compiled, "onnx": open_onnx}
