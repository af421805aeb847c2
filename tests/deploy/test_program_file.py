"""Models as files: they predict like the model without its source, and invalid files raise clear errors."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms.pad import AttrNamePadding

from popgeo import FixedSizeOptions, FlatStore, Predictor, export, load
from popgeo.deploy.predict_command import predict
from popgeo.nn import GIN, PaiNN, SchNet
from popgeo.sealed_file import sealed

SIZES = FixedSizeOptions(num_nodes=16, num_edges=60, num_graphs=4)


def molecule(nodes: int) -> Data:
    generator = torch.Generator().manual_seed(nodes)
    pos = 1.5 * torch.randn(nodes, 3, generator=generator)
    apart = torch.cdist(pos, pos)
    return Data(
        z=torch.randint(1, 9, (nodes,), generator=generator),
        pos=pos,
        x=torch.randn(nodes, 4, generator=generator),
        edge_index=((apart < 3) & (apart > 0)).nonzero().t().contiguous(),
    )


GRAPHS = [molecule(nodes) for nodes in (5, 3, 7)]
WATER = Data(
    z=torch.tensor([8, 1, 1]),
    pos=torch.tensor([[0, 0, 0.12], [0, 0.76, -0.48], [0, -0.76, -0.48]]),
    edge_index=torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]),
)


def schnet() -> nn.Module:
    torch.manual_seed(0)
    return SchNet(8, 8, 1, 8, cutoff=4.0)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "schnet.pt2"
    return export(schnet(), SIZES, path, graphs=GRAPHS, forces=True, units={"energy": "eV"})


@pytest.fixture(scope="module")
def onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    path = tmp_path_factory.mktemp("files") / "schnet.onnx"
    return export(schnet(), SIZES, path, "onnx", graphs=GRAPHS, forces=True, units={"energy": "eV"})


def test_onnxruntime_finds_the_energies_and_forces_of_the_model(onnx: Path):
    expected, found = Predictor(schnet(), SIZES, "none", forces=True)(GRAPHS), load(onnx)(GRAPHS)
    for name in ("energy", "forces"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("at", [0.1, 0.9])
def test_a_file_of_onnx_that_is_not_whole_is_refused(onnx: Path, tmp_path: Path, at: float):
    data = onnx.read_bytes()
    place = int(at * len(data))
    for wrong in (data[:place], data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]):
        (tmp_path / "wrong.onnx").write_bytes(wrong)
        with pytest.raises(ValueError, match="truncated, damaged"):
            load(tmp_path / "wrong.onnx")


def test_energies_and_forces_of_a_file_are_those_of_the_model_in_order(file: Path):
    expected, found = Predictor(schnet(), SIZES, "none", forces=True)(GRAPHS), load(file)(GRAPHS)
    for name in ("energy", "forces"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-5)


PLAIN = """
import json, sys, torch
class NotHere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("popgeo", "torch_geometric"):
            raise ImportError(name)
sys.meta_path.insert(0, NotHere())
said = {"popgeo.json": ""}
program = torch.export.load(sys.argv[1], extra_files=said).module()
told = json.loads(said["popgeo.json"])
inputs = [torch.zeros(shape, dtype=getattr(torch, kind)) for shape, kind in told["programs"][0]["inputs"].values()]
print(json.dumps([told["units"], [list(made.shape) for made in program(*inputs)]]))
"""


def test_torch_alone_runs_a_file_and_finds_what_it_says_of_itself(file: Path):
    said = subprocess.run([sys.executable, "-c", PLAIN, file], capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == [{"energy": "eV"}, [[4, 1], [16, 3]]]


def test_a_file_names_nobodys_folders(file: Path):
    with zipfile.ZipFile(file) as archive:
        assert not any(str(Path(__file__).parents[2]).encode() in archive.read(name) for name in archive.namelist())


def test_of_several_shapes_each_batch_runs_in_the_smallest_that_holds_it(tmp_path: Path):
    torch.manual_seed(0)
    model = GIN(4, 8, 2, out_channels=2, readout="sum")
    shapes = [FixedSizeOptions(6, 30, 2), FixedSizeOptions(32, 90, 6)]
    found = load(export(model, shapes, tmp_path / "gin.pt2", graphs=GRAPHS), backend="none")
    expected = Predictor(model, shapes, "none")(GRAPHS)
    torch.testing.assert_close(found(GRAPHS)["out"], expected["out"])
    torch.testing.assert_close(found(GRAPHS[1:2]).of(0)["out"], expected.of(1)["out"])
    assert "32" in str(found.shapes[1])


class SumsOfFeatures(nn.Module):
    """A model that returns the values of padding."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.sum()


@pytest.mark.filterwarnings("ignore:A graph's result depends on those that share its batch")
def test_padding_is_filled_as_where_the_file_was_written(tmp_path: Path):
    sizes = FixedSizeOptions(16, 60, 4, node_pad_value=AttrNamePadding({"x": 7.0}))
    path = export(SumsOfFeatures(), sizes, tmp_path / "sums.pt2", graphs=GRAPHS)
    expected = Predictor(SumsOfFeatures(), sizes, "none")(GRAPHS)["out"]
    torch.testing.assert_close(load(path, "none")(GRAPHS)["out"], expected)


class OfTypes(nn.Module):
    def forward(self, x_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"author": x_dict["author"] + 1, "paper": x_dict["paper"] * 2}


def test_graphs_of_several_types_come_back_by_type(tmp_path: Path):
    graphs = []
    for papers in (2, 4):
        graph = HeteroData()
        graph["paper"].x, graph["author"].x = torch.rand(papers, 3), torch.rand(2, 2)
        graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [1, 0]])
        graphs.append(graph)
    sizes = FixedSizeOptions({"paper": 9, "author": 7}, 5, 3)
    path = export(OfTypes(), sizes, tmp_path / "types.pt2", graphs=graphs)
    found = load(path, "none")(graphs)
    torch.testing.assert_close(found["paper"], 2 * torch.cat([graph["paper"].x for graph in graphs]))


class WithGlobal(nn.Module):
    def forward(self, x: Tensor, state: Tensor, batch: Tensor) -> Tensor:
        return x * state[batch]


def test_a_graph_of_one_node_among_the_examples_leaves_no_attribute_open(tmp_path: Path):
    graphs = [Data(x=torch.randn(n, 4), state=torch.randn(1, 4), edge_index=torch.zeros(2, 0).long()) for n in (1, 3)]
    found = load(export(WithGlobal(), SIZES, tmp_path / "state.pt2", graphs=graphs), "none")(graphs)["out"]
    torch.testing.assert_close(found, torch.cat([graph.x * graph.state for graph in graphs]))


class DrawCount(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "tf"}, "format is 'tf'; pass one of 'torch', 'aotinductor', 'onnx'"),
        ({"sizes": FixedSizeOptions(3, 2, 2)}, "Graph 0 has 5 nodes.*Pass larger sizes"),
        ({"units": {"enrgy": "eV"}}, "units has"),
        ({"graphs": []}, "graphs is empty"),
        ({"model": DrawCount()}, "random"),
        ({"format": "onnx", "sizes": [SIZES, FixedSizeOptions(9, 40, 3)]}, "one program"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(tmp_path: Path, change: dict, why: str):
    asked = {"model": PaiNN(8, 1), "sizes": SIZES, "path": "model.pt2", "format": "torch", "graphs": GRAPHS} | change
    asked["path"] = tmp_path / asked["path"]
    with pytest.raises(ValueError, match=why):
        export(**asked)
    assert list(tmp_path.iterdir()) == []


def rewritten(data: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """Return a file with other parts and a correct checksum."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(file, "w") as other:
        for name in archive.namelist():
            other.writestr(name, change(name, archive.read(name)))
    return sealed(file.getvalue(), "program", 1, is_archive=True)


def replaced(ending: str, old: bytes, new: bytes) -> Callable[[str, bytes], bytes]:
    def change(name: str, part: bytes) -> bytes:
        assert not name.endswith(ending) or old in part
        return part.replace(old, new) if name.endswith(ending) else part

    return change


class TouchesAFile:
    def __reduce__(self):
        return os.system, ("touch executed",)


def code() -> bytes:
    file = io.BytesIO()
    torch.save(TouchesAFile(), file)
    return file.getvalue()


MODEL, SAYS = "models/model.json", "popgeo.json"
DAMAGE = {
    "cut": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
    "flipped notes": lambda data: data.replace(b'"num_nodes": 16', b'"num_nodes": 15'),
    "empty": lambda data: b"",
}
CRAFTED = {
    "later": (replaced(SAYS, b'"version": 1', b'"version": 7'), "version 7"),
    "pickle": (replaced("weights_config.json", b'"use_pickle": false', b'"use_pickle": true'), "could execute code"),
    "file": (replaced(MODEL, b"aten.mul.Tensor", b"aten.from_file.default"), "aten.from_file.default' is not one"),
    "shell": (replaced(MODEL, b"torch.ops.aten.mul.Tensor", b"posix.system"), "posix.system' is not one"),
}


@pytest.mark.parametrize("kind", [*DAMAGE, *CRAFTED])
def test_damaged_and_crafted_files_are_refused_and_nothing_in_them_runs(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.chdir(tmp_path)
    data, path = file.read_bytes(), tmp_path / "crafted.pt2"
    change, why = CRAFTED.get(kind, (None, "truncated, damaged"))
    path.write_bytes(DAMAGE[kind](data) if change is None else rewritten(data, change))
    with pytest.raises(ValueError, match=why):
        load(path)
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (Data(z=torch.ones(3).long(), pos=torch.ones(3, 2), edge_index=WATER.edge_index), r"pos fills \[16, 2\]"),
        (Data(z=torch.ones(3).long(), edge_index=WATER.edge_index), "has no pos"),
        (Data(z=WATER.z, pos=WATER.pos.double(), edge_index=WATER.edge_index), "pos is torch.float64"),
        (Data(z=torch.ones(40).long(), pos=torch.ones(40, 3), edge_index=WATER.edge_index), "larger than the file's"),
    ],
)
def test_graphs_that_the_file_is_not_for_are_named(file: Path, graph: Data, why: str):
    with pytest.raises(ValueError, match=f"Graph 1.*{why}"):
        load(file, "none")([WATER, graph])


def test_the_command_line_predicts_from_a_file(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    FlatStore.from_dataset(GRAPHS).save(tmp_path / "store")
    assert predict([str(file), str(tmp_path / "store"), "--out", str(tmp_path / "out.npz"), "--backend", "none"]) == 0
    assert "energy: [3, 1] of graphs" in capsys.readouterr().out


# Nobody asks how fast the program is, and it is the only one, so whatever makes it sooner compiled will do.
@inductor_config.patch(
    {
        "aot_inductor.precompile_headers": False,
        "aot_inductor.compile_wrapper_opt_level": "O0",
        "cpp.simdlen": 1,
    }
)
def test_compiled_ahead_of_time_a_file_runs_in_python_and_from_cpp(tmp_path: Path):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    path = tmp_path / "water.pt2"
    sizes = FixedSizeOptions(num_nodes=8, num_edges=12, num_graphs=3)
    export(schnet(), sizes, path, "aotinductor", graphs=[WATER], forces=True)
    expected = Predictor(schnet(), sizes, "none", forces=True)([WATER])
    found = load(path, run_machine_code=True)([WATER])
    torch.testing.assert_close(found["forces"], expected["forces"], rtol=1e-5, atol=1e-5)
    torch_folder, program = Path(torch.__file__).parent, tmp_path / "predict"
    source = Path(__file__).parents[2] / "examples" / "cpp_predict" / "predict.cpp"
    command = [compiler, "-std=c++20", "-O0", f"-I{torch_folder}/include", source, "-o", program]
    libraries = [f"-L{torch_folder}/lib", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch_folder}/lib"]
    subprocess.run([*command, *libraries], check=True)
    said = subprocess.run([program, path, "8", "12", "3"], check=True, capture_output=True, text=True).stdout.split()
    numbers = torch.tensor([float(word) for word in said if word not in ("energy", "force")])
    everything = torch.cat([expected["energy"].flatten(), expected["forces"].flatten()])
    torch.testing.assert_close(numbers, everything, rtol=1e-4, atol=2e-6)
