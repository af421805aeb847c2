"""Programs as ONNX files, which onnxruntime runs without torch and without popgeo."""

import importlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from popgeo.deploy.fixed_program import Tensors
from popgeo.deploy.onnx_operations import decompositions, translations
from popgeo.sealed_file import SEAL_BYTES

_OPSET = 18
_NOTES = "popgeo"
_SEAL = b"\x0a\x0dpopgeo.sha256\x12" + bytes([SEAL_BYTES])  # an entry of `metadata_props`, without its value


def onnx_bytes(modules: Sequence[fx.GraphModule], examples: Sequence[Tensors], notes: str) -> bytes:
    """Return a program as the bytes of an ONNX file with named inputs and outputs.

    Args:
        modules: One program of torch's operations. It takes tensors in order and returns several.
        examples: Example tensors for the program's inputs, by name.
        notes: Inputs, results and sizes of the program, as JSON.

    Returns:
        The file without its seal.

    Raises:
        ImportError: a package for ONNX is not installed.
        ValueError: the model cannot be expressed in ONNX, or there are several programs.
    """
    if len(modules) > 1:
        raise ValueError(f"A file of ONNX has one program, and there are {len(modules)} shapes: pass one.")
    needed("onnx")
    (module,), (example,) = modules, examples
    results = list(json.loads(notes)["programs"][0]["results"])
    optimizer = needed("onnxscript.optimizer")

    def own_results(*given: Tensor) -> list[Tensor]:  # in ONNX no result may be an input, or another result
        return [one.clone() for one in module(*given)]

    given = tuple(example.values())
    with torch.no_grad():
        lowered = make_fx(torch.func.functionalize(own_results), decomposition_table=decompositions())(*given)
    try:
        # `optimize=False`, because the converter's own optimizer removes an addition of 1e-8.
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
        raise ValueError(f"The model cannot be written as ONNX: {_cause(error)}") from error
    optimizer.fold_constants(made.model)
    optimizer.remove_unused_nodes(made.model)
    model = made.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = _NOTES, notes
    # The seal is the last entry: protobuf merges bytes after a message into it.
    return model.SerializeToString() + b"\x72" + bytes([len(_SEAL) + SEAL_BYTES]) + _SEAL


def read_notes_of_onnx(data: bytes) -> str:
    """Return the metadata of a file, or an empty string.

    Raises:
        ImportError: onnx is not installed.
        ValueError: the file contains anything except one graph of ONNX's own operations.
    """
    return {entry.key: entry.value for entry in _checked(data).metadata_props}.get(_NOTES, "")


def open_onnx(data: bytes, inputs: Sequence[Tensors]) -> list[Callable[..., list[Tensor]]]:
    """Return a list of one function, which runs an ONNX file on tensors in the order of `inputs`.

    Raises:
        ImportError: onnx or onnxruntime is not installed.
        ValueError: see `read_notes_of_onnx`.
    """
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # No folding: it would allocate any tensor that a file declares, and `onnx_bytes` has folded already.
    kept = {"providers": ["CPUExecutionProvider"], "disabled_optimizers": ["ConstantFolding"]}
    session = runtime.InferenceSession(_checked(data).SerializeToString(), options, **kept)
    taken, outputs = ([one.name for one in part] for part in (session.get_inputs(), session.get_outputs()))

    def run(*tensors: Tensor) -> list[Tensor]:
        given = dict(zip(inputs[0], tensors, strict=True))
        return list(map(torch.from_numpy, session.run(outputs, {name: given[name].numpy() for name in taken})))

    return [run]


def _checked(data: bytes) -> Any:
    """Return the model in a file after a check that it is safe to run.

    The model must be one graph of ONNX's own operations, and the file must contain all of its tensors. Functions and
    nested graphs, such as loops, could run forever, and operations of other domains could load libraries.
    """
    onnx = needed("onnx")
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # of protobuf
        raise ValueError(f"onnx cannot read the file: {error}") from error
    graph, tensors = model.graph, [*model.graph.initializer]
    if model.functions or model.training_info or graph.sparse_initializer:
        raise ValueError("it holds functions, training or sparse tensors, which no export writes")
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            name = f"{node.domain}.{node.op_type}".replace("\n", " ")
            raise ValueError(f"{name:.150} is not an operation of ONNX itself")
        for one in node.attribute:
            if one.HasField("g") or one.graphs or one.HasField("sparse_tensor") or one.sparse_tensors:
                raise ValueError(f"{node.op_type} holds a graph of its own or a sparse tensor, which no export writes")
            tensors += [*one.tensors, *([one.t] if one.HasField("t") else [])]
    for tensor in tensors:
        if tensor.external_data or tensor.data_location:
            raise ValueError(f"the tensor {tensor.name!r:.100} lies in a different file")
        if min(tensor.dims, default=0) < 0 or math.prod(tensor.dims) > 2 * len(data):
            raise ValueError(f"the tensor {tensor.name!r:.100} declares more elements than the file can hold")
    return model


def needed(package: str) -> Any:
    """Import a package that is not part of every installation.

    Raises:
        ImportError: the package is missing. The message says how to install it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"Files of ONNX need {package}: pip install onnx onnxscript onnxruntime") from error


def _cause(error: BaseException) -> str:
    """Return the first line of the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).partition("\n")[0]
