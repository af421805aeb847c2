"""Files of ONNX from untrusted sources: one graph of ONNX's own operations, with its tensors in the file."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from popgeo import FixedSizeOptions, export, load
from popgeo.nn import GIN
from popgeo.sealed_file import SEAL_BYTES, sealed
from tests.support import quick_python

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
for package in ("onnxruntime", "onnxscript"):
    pytest.importorskip(package, reason=f"{package} is not installed")

GRAPHS = [Data(x=torch.ones(n, 4), edge_index=torch.tensor([[0], [1]])) for n in (2, 9, 5)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    sizes, model = FixedSizeOptions(num_nodes=16, num_edges=60, num_graphs=4), GIN(4, 8, 2, 1, readout="sum")
    return export(model, sizes, tmp_path_factory.mktemp("files") / "gin.onnx", "onnx", graphs=GRAPHS).read_bytes()


def crafted(path: Path, whole: bytes, change: Callable[[Any], object]) -> Path:
    """Return the file with a changed model and a correct seal."""
    model = onnx.load_model_from_string(whole)
    kept = [entry for entry in model.metadata_props if entry.key != "popgeo.sha256"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    change(model)
    entry = b"\x0a\x0dpopgeo.sha256\x12" + bytes([SEAL_BYTES])
    path.write_bytes(
        sealed(model.SerializeToString() + b"\x72" + bytes([len(entry) + SEAL_BYTES]) + entry, "program", 1)
    )
    return path


def append(op_type: str, inputs: list[str], domain: str = "", **attributes: Any) -> Callable[[Any], object]:
    node = onnx.helper.make_node(op_type, inputs, ["popgeo_extra"], domain=domain, **attributes)
    return lambda model: model.graph.node.append(node)


def endless() -> Any:
    """Return the body of a loop."""
    of_bool = onnx.helper.make_tensor_value_info("more", onnx.TensorProto.BOOL, [])
    number = onnx.helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [])
    going_on = onnx.helper.make_tensor_value_info("going_on", onnx.TensorProto.BOOL, [])
    node = onnx.helper.make_node("Identity", ["more"], ["going_on"])
    return onnx.helper.make_graph([node], "body", [number, of_bool], [going_on])


def function(model: Any) -> None:
    node = onnx.helper.make_node("again", ["x"], ["y"], domain="own")
    opsets = [onnx.helper.make_opsetid("own", 1)]
    model.functions.append(onnx.helper.make_function("own", "again", ["x"], ["y"], [node], opsets))


def elsewhere(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../etc/passwd")


def huge(model: Any) -> None:
    model.graph.initializer.append(onnx.TensorProto(name="huge", data_type=1, dims=[2**31, 2**10]))


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "loop": (append("Loop", ["", ""], body=endless()), "holds a graph of its own"),
    "branch": (append("If", ["x"], then_branch=endless(), else_branch=endless()), "holds a graph of its own"),
    "function": (function, "functions"),
    "library": (append("EPContext", [], domain="com.microsoft", ep_cache_context="lib.so"), "not an operation of ONNX"),
    "tensor in a file": (elsewhere, "lies in a different file"),
    "huge tensor": (huge, "more elements than the file can hold"),
    "no notes": (lambda model: model.metadata_props.pop(), "no notes"),
    "no operation of that name": (append("NoSuch", ["x"]), "NoSuch"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_no_export_writes_is_refused(whole: bytes, tmp_path: Path, name: str):
    change, why = CHANGES[name]
    with pytest.raises(ValueError, match=rf"crafted\.onnx cannot be loaded: .*{why}"):
        load(crafted(tmp_path / "crafted.onnx", whole, change))


def test_the_file_as_it_was_is_read_and_one_flipped_bit_is_found(whole: bytes, tmp_path: Path):
    path = crafted(tmp_path / "flipped.onnx", whole, lambda model: None)
    assert load(path)(GRAPHS).num_graphs == 3
    data = path.read_bytes()
    for bit in range(0, 8 * len(data), 8 * len(data) // 60):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"flipped\.onnx is truncated, damaged or not a program of popgeo"):
            load(path)


FILLS = """
import resource, sys
from popgeo import load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
load(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units")
def test_what_a_file_declares_takes_no_memory_when_it_is_loaded(whole: bytes, tmp_path: Path):
    def fill(model: Any) -> None:
        shape = onnx.helper.make_tensor("big", onnx.TensorProto.INT64, [1], [2**28])
        model.graph.initializer.append(shape)
        append("ConstantOfShape", ["big"])(model)
        model.graph.output.append(onnx.helper.make_tensor_value_info("popgeo_extra", onnx.TensorProto.FLOAT, None))

    path = crafted(tmp_path / "fills.onnx", whole, fill)
    command, folder = [*quick_python.command(), "-c", FILLS, path], Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout) < 2**19  # kilobytes; the tensor would have twice as many
