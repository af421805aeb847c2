"""Programs as files of ONNX, and what runs them: onnxruntime, without torch's operations and without this library."""

import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from popgeo.deploy.fixed_program import Tensors
from popgeo.deploy.onnx_operations import decompositions, translations

_OPSET = 18
_NOTES = "popgeo"
_CHECKSUM = b"\x0a\x0dpopgeo.sha256\x12\x40"  # an entry of `metadata_props`, but for its 64 digits


def write_onnx(modules: Sequence[fx.GraphModule], examples: Sequence[Tensors], notes: str) -> bytes:
    """A program as a file of ONNX, whose inputs and outputs have names.

    Args:
        modules: The one program, which takes tensors in their order, in operations of torch alone, and returns several.
        examples: Tensors like its inputs, by name.
        notes: What is to be known of it besides.

    Returns:
        The file, which ends where its checksum is to stand.

    Raises:
        ImportError: a package that ONNX needs is not installed.
        ValueError: the model has what ONNX does not have, or there are several programs.
    """
    if len(modules) > 1:
        raise ValueError(f"A file of ONNX has one program, and there are {len(modules)} shapes: pass one.")
    needed("onnx")
    (module,), (example,) = modules, examples
    results = list(json.loads(notes)["programs"][0]["results"])
    optimizer = needed("onnxscript.optimizer")

    def own_results(*given: Tensor) -> list[Tensor]:  # ONNX knows no result that is an input, or another result
        return [one.clone() for one in module(*given)]

    given = tuple(example.values())
    with torch.no_grad():
        lowered = make_fx(torch.func.functionalize(own_results), decomposition_table=decompositions())(*given)
    try:
        # The optimizer that the converter would call takes 1e-8 for zero, and leaves its addition out.
        made: Any = torch.onnx.export(
            torch.export.export(lowered, given),
            dynamo=True,
            optimize=False,
            opset_version=_OPSET,
            verbose=False,
            input_names=list(example),
            output_names=results,
            custom_translation_table=dict(translations()),
        )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ValueError(f"The model has no form in ONNX: {_cause(error)}") from error
    optimizer.fold_constants(made.model)
    optimizer.remove_unused_nodes(made.model)
    model = made.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = _NOTES, notes
    # The checksum is the last entry of the file: what follows a message is merged into it.
    return model.SerializeToString() + b"\x72" + bytes([len(_CHECKSUM) + 64]) + _CHECKSUM


def read_notes_of_onnx(data: bytes) -> str:
    """What stands beside the program of a file; nothing where there is none.

    Raises:
        ImportError: onnxruntime is not installed.
        ValueError: onnxruntime cannot read the file.
    """
    try:
        return _session(data, optimizes=False).get_modelmeta().custom_metadata_map.get(_NOTES, "")
    except ImportError:
        raise
    except Exception as error:  # of a class of its own for each kind
        raise ValueError(f"onnxruntime cannot read the file: {error}") from error


def open_onnx(data: bytes, count: int) -> list[Callable[..., list[Tensor]]]:
    """What runs a file of ONNX: from tensors in the order of its notes to several."""
    session = _session(data, optimizes=True)
    names = list(json.loads(read_notes_of_onnx(data))["programs"][0]["inputs"])
    inputs, outputs = ([one.name for one in part] for part in (session.get_inputs(), session.get_outputs()))

    def run(*tensors: Tensor) -> list[Tensor]:
        given = dict(zip(names, tensors, strict=True))
        return list(map(torch.from_numpy, session.run(outputs, {name: given[name].numpy() for name in inputs})))

    return [run]


def _session(data: bytes, optimizes: bool) -> Any:
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    if not optimizes:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def needed(package: str) -> Any:
    """A package that is no part of every installation.

    Raises:
        ImportError: it is missing; the message says what to install.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"{package} is missing, which files of ONNX need: pip install onnx onnxscript onnxruntime"
        ) from error


def _cause(error: BaseException) -> str:
    """The first line of what went wrong first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).partition("\n")[0]
