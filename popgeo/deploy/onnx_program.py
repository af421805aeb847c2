"""Programs as files of ONNX, and what runs them: onnxruntime, without torch's operations and without this library."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from popgeo.deploy.fixed_program import Tensors
from popgeo.deploy.onnx_operations import decompositions, translations

OPSET = 18


def to_onnx(module: fx.GraphModule, examples: Mapping[str, Tensor], results: Sequence[str]) -> Any:
    """A program as a model of ONNX, whose inputs and outputs have names.

    Args:
        module: Takes the tensors in their order, in operations of torch alone, and returns several.
        examples: Tensors like its inputs, by name.
        results: Names of what it returns.

    Returns:
        An `onnx.ModelProto`.

    Raises:
        ImportError: a package that ONNX needs is not installed.
        ValueError: the model has what ONNX does not have.
    """
    needed("onnx")
    optimizer = needed("onnxscript.optimizer")
    with torch.no_grad():
        module = make_fx(torch.func.functionalize(module), decomposition_table=decompositions())(*examples.values())
    given = tuple(examples.values())
    program = torch.export.export(module, given, strict=False)
    # Torch's optimizer of what is made takes 1e-8 for zero and leaves its addition out.
    made = torch.onnx.export(
        program,
        dynamo=True,
        optimize=False,
        opset_version=OPSET,
        verbose=False,
        input_names=list(examples),
        output_names=list(results),
        custom_translation_table=translations(),
    )
    optimizer.fold_constants(made.model)
    optimizer.remove_unused_nodes(made.model)
    return made.model_proto


def run_onnx(data: bytes) -> Callable[[Tensors], Tensors]:
    """What runs a file of ONNX: from tensors by name to tensors by name.

    Raises:
        ImportError: onnxruntime is not installed.
        ValueError: onnxruntime cannot read the file.
    """
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    inputs, outputs = ([one.name for one in part] for part in (session.get_inputs(), session.get_outputs()))

    def run(tensors: Tensors) -> Tensors:
        made = session.run(outputs, {name: tensors[name].numpy() for name in inputs})
        return {name: torch.from_numpy(array) for name, array in zip(outputs, made, strict=True)}

    return run


def needed(package: str) -> Any:
    """A package that is no part of every installation.

    Raises:
        ImportError: it is missing; the message says what to install.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f'{package} is not installed; files of ONNX need it. pip install "popgeo[onnx]"') from error
