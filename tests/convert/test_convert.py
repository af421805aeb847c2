"""Files of others become stores on disk: PyG's, tables of SMILES, files of atoms, by one command."""

import gzip

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, InMemoryDataset

from popgeo.__main__ import main
from popgeo.convert.atoms import read_atoms
from popgeo.convert.periodic_pairs import list_pairs
from popgeo.convert.pyg import read_pt
from popgeo.convert.smiles import read_smiles
from popgeo.data import FlatStore
from tests.support.graphs import assert_same_graphs, graph, hetero_graph

GRAPHS = [graph(n, n, n) for n in (2, 3, 1)]
TYPES = [hetero_graph(2, 3, 4, 1, seed) for seed in range(2)]
for one in TYPES:
    one["b"].x = torch.ones(3, 1)  # PyG itself cannot take a batch apart whose types have no features


class Saved(InMemoryDataset):
    def __init__(self, graphs):
        super().__init__()
        self._data, self.slices = self.collate(graphs)


@pytest.mark.parametrize("graphs", [GRAPHS, TYPES], ids=["one", "types"])
@pytest.mark.parametrize("kind", ["list", "processed", "batch"])
def test_every_pt_of_pyg_becomes_a_store(tmp_path, capsys, graphs, kind):
    path, folder = tmp_path / "graphs.pt", tmp_path / "store"
    if kind == "processed":
        InMemoryDataset.save(graphs, str(path))
    else:
        torch.save(graphs if kind == "list" else Batch.from_data_list(graphs), path)
    trust = ["--trust"] if kind == "batch" else []  # PyG pickles the class of a batch as a call
    assert main(["convert", str(path), str(folder), *trust]) == 0
    assert f"wrote FlatStore({len(graphs)} graphs" in capsys.readouterr().out
    assert_same_graphs(FlatStore.open(folder, verify=True)[:], graphs)


class Runs:
    def __reduce__(self):
        return print, ("code ran",)


def test_a_pt_that_would_run_code_or_holds_something_else_is_refused(tmp_path, capsys):
    torch.save([Runs()], tmp_path / "code.pt")
    assert main(["convert", str(tmp_path / "code.pt"), str(tmp_path / "store")]) == 2
    said = capsys.readouterr()
    assert "pass --trust" in said.err
    assert "code ran" not in said.out
    torch.save({"weights": torch.ones(2)}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="contains a dict; graphs, or the files of a dataset"):
        read_pt(tmp_path / "weights.pt")


def test_a_pt_that_is_empty_cut_or_has_a_flipped_bit_is_refused_by_name(tmp_path, capsys):
    path = tmp_path / "graphs.pt"
    torch.save(GRAPHS, path)
    whole = path.read_bytes()
    middle = whole.index(GRAPHS[0].x.numpy().tobytes())  # where only a checksum can tell
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for damaged, reason in [
        (b"", "it is empty"),
        (whole[:-300], "not a zip file"),
        (whole[:3], ""),
        (flipped, "checksum"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"graphs.pt cannot be read: .*{reason}"):
            read_pt(path)
    assert main(["convert", str(path), str(tmp_path / "store")]) == 2
    assert "Write or download it again" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError):
        read_pt(tmp_path / "other.pt")


def test_a_dataset_of_pyg_is_named_and_its_options_given(tmp_path, capsys):
    command = ["convert", "FakeDataset", str(tmp_path / "store"), "--option", "num_graphs=7", "--option", "task=graph"]
    assert main([*command, "--sort-edges"]) == 0
    store = FlatStore.open(tmp_path / "store")
    assert len(store) == 7
    assert store.row_ends is not None
    for wrong, message in [
        (["FakeDatasett", "x"], "neither a file nor a class"),
        (["FakeDataset", "x", "--option", "colour=1"], r"takes no ['colour']"),
        (["QM9", "x"], "pass --root FOLDER"),
        (["FakeDataset", str(tmp_path / "store")], "exists already"),
    ]:
        assert main(["convert", *wrong]) == 2
        assert message in capsys.readouterr().err


def test_a_table_of_smiles_becomes_graphs_of_atoms_and_bonds(tmp_path):
    pytest.importorskip("rdkit")
    path = tmp_path / "molecules.csv"
    path.write_text("name,smiles,gap,dipole\nethanol,CCO,7.5,1.7\nbenzene,c1ccccc1,6.0,0\nneon,[Ne],20,0\n")
    ethanol, benzene, neon = read_smiles(path, targets=["dipole", "gap"])
    assert ethanol.z.tolist() == [6, 6, 8]
    assert ethanol.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert ethanol.x[:, 2].tolist() == [3, 2, 1]  # hydrogens
    assert ethanol.y.tolist() == [[pytest.approx(1.7), 7.5]]
    assert benzene.edge_attr[:, 0].tolist() == [4] * 12  # aromatic
    assert neon.edge_index.shape == (2, 0)
    assert neon.edge_attr.shape == (0, 3)
    assert main(["convert", str(path), str(tmp_path / "store"), "--targets", "gap"]) == 0
    assert FlatStore.open(tmp_path / "store")[1].smiles == "c1ccccc1"


def test_positions_are_made_when_asked_and_the_same_for_the_same_seed(tmp_path):
    pytest.importorskip("rdkit")
    path = tmp_path / "molecules.smi"
    path.write_text("O water\nCC ethane\n")
    water, ethane = read_smiles(path, positions=True)
    assert water.z.tolist() == [8, 1, 1]
    assert (water.pos[0] - water.pos[1:]).norm(dim=1).tolist() == pytest.approx([0.97, 0.97], abs=0.02)
    assert torch.equal(ethane.pos, list(read_smiles(path, positions=True))[1].pos)


def test_a_row_that_is_no_molecule_is_refused_by_its_number_or_left_out_and_counted(tmp_path):
    pytest.importorskip("rdkit")
    path = tmp_path / "molecules.tsv"
    path.write_text("id\tSMILES\n1\tC\n2\tC(C\n3\t\n4\tN\n")
    with pytest.raises(ValueError, match=r"row 1: 'C\(C' cannot be read by rdkit"):
        list(read_smiles(path))
    with pytest.warns(UserWarning, match="2 of 4 rows"):
        assert [one.z.tolist() for one in read_smiles(path, skip=True)] == [[6], [7]]
    with pytest.raises(ValueError, match=r"has no column \['gap'\]; it has \['id', 'SMILES'\]"):
        list(read_smiles(path, targets=["gap"]))


def images(pos, cell, pbc, cutoff):
    """All pairs by trying every image: destination, source, vector."""
    reach = [range(-3, 4) if repeats else range(1) for repeats in pbc]
    found = set()
    for step in np.array(np.meshgrid(*reach)).reshape(3, -1).T:
        for i in range(len(pos)):
            for j in range(len(pos)):
                vector = pos[j] + step @ cell - pos[i]
                if (i != j or step.any()) and np.linalg.norm(vector) < cutoff:
                    found.add((i, j, *np.round(vector, 6) + 0.0))
    return found


@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, True), (False, False, False)])
@pytest.mark.parametrize("skew", [0.0, 0.8])
def test_pairs_across_periodic_boundaries_are_those_of_all_images(pbc, skew):
    pytest.importorskip("vesin")
    random = np.random.default_rng(0)
    cell = np.diag([3.0, 4.0, 3.5]) + skew * np.tri(3, k=-1)
    pos = random.random((5, 3)) @ cell
    edges, shift = list_pairs(pos, cell, np.array(pbc), cutoff=4.2)
    vector = pos[edges[0]] + shift.numpy() - pos[edges[1]]
    found = {(int(i), int(j), *np.round(v, 6) + 0.0) for j, i, v in zip(*edges, vector, strict=True)}
    assert len(found) == edges.shape[1]
    assert found == images(pos, cell, pbc, 4.2)
    assert bool((edges[1].diff() >= 0).all())


@pytest.mark.parametrize("name", ["steps.extxyz", "steps.traj", "steps.db"])
def test_files_of_atoms_keep_energies_forces_and_cells(tmp_path, name):
    ase = pytest.importorskip("ase")
    pytest.importorskip("vesin")
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.io import write as write_atoms

    frames = []
    for step in range(3):
        atoms = ase.Atoms("CuCu", positions=[[0, 0, 0], [1.8 + step / 10, 1.8, 0]], cell=[3.6, 3.6, 3.6], pbc=True)
        values = {"energy": -1.0 - step, "forces": np.full((2, 3), 0.25 * step), "stress": np.arange(6) / 8}
        atoms.calc = SinglePointCalculator(atoms, **values)
        frames.append(atoms)
    write_atoms(tmp_path / name, frames)
    assert main(["convert", str(tmp_path / name), str(tmp_path / "store"), "--cutoff", "3.0"]) == 0
    store = FlatStore.open(tmp_path / "store")
    assert len(store) == 3
    one = store[1]
    assert one.energy.tolist() == [-2.0]
    assert one.forces.tolist() == [[0.25] * 3] * 2
    assert one.stress[0].tolist() == pytest.approx([i / 8 for i in range(6)])
    assert one.cell.shape == (1, 3, 3)
    assert one.pbc.tolist() == [[True] * 3]
    assert one.edge_shift.shape == (one.num_edges, 3)
    length = (one.pos[one.edge_index[0]] + one.edge_shift - one.pos[one.edge_index[1]]).norm(dim=1)
    assert float(length.max()) <= 3.0
    assert store.level("edge_shift").value == "edge"
    assert store.level("forces").value == "node"


def test_what_ase_cannot_read_is_said(tmp_path, capsys):
    pytest.importorskip("ase")
    (tmp_path / "notes.txt").write_text("no atoms here")
    assert main(["convert", str(tmp_path / "notes.txt"), str(tmp_path / "store")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    with pytest.raises(ValueError, match="cutoff is -1"):
        list_pairs(np.zeros((1, 3)), np.zeros((3, 3)), np.zeros(3, bool), -1.0)
    with pytest.raises(ValueError, match="repeats along"):
        list_pairs(np.zeros((1, 3)), np.zeros((3, 3)), np.ones(3, bool), 1.0)
    assert callable(read_atoms)


@pytest.mark.parametrize("value", ["many", "1e39", "inf"])
def test_a_target_that_is_no_number_is_refused_by_its_row(tmp_path, value):
    pytest.importorskip("rdkit")
    (tmp_path / "one.csv").write_text(f"smiles,gap\nC,1\nCC,\nCCC,{value}\n")
    with pytest.raises(ValueError, match=r"one\.csv, row 2: gap is .*, not a number"):
        list(read_smiles(tmp_path / "one.csv", targets=("gap",)))


def test_a_table_that_is_none_is_refused_by_its_name(tmp_path):
    pytest.importorskip("rdkit")
    for name, content in (
        ("cut.csv.gz", b"\x1f\x8b\x08"),
        ("empty.csv", b""),
        ("odd.csv", b"smiles,a\nC,1\n\xff\xfe,2\n"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            list(read_smiles(tmp_path / name))


@pytest.mark.parametrize("name", ["a.smi", "a.smi.gz", "a.tsv", "quoted.tsv"])
def test_no_row_between_two_quotation_marks_is_lost(tmp_path, name):
    pytest.importorskip("rdkit")
    rows = [("C" * (1 + i % 5), ('"' if i in (3, 40) else "") + f"name {i}", str(i)) for i in range(60)]
    mark = '"' if name.startswith("quoted") else ""
    lines = ["\t".join(f"{mark}{field}{mark}" for field in row) for row in rows]
    lines = lines if ".smi" in name else ["\t".join(f"{mark}{one}{mark}" for one in ("smiles", "name", "gap")), *lines]
    text = "\n".join(lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    graphs = list(read_smiles(tmp_path / name, targets=() if ".smi" in name else ["gap"]))
    assert [graph.smiles for graph in graphs] == [row[0] for row in rows]
    assert ".smi" in name or [int(graph.y) for graph in graphs] == list(range(60))


def test_a_quotation_mark_of_a_csv_that_takes_in_rows_is_refused(tmp_path):
    pytest.importorskip("rdkit")
    path = tmp_path / "a.csv"
    path.write_text('smiles,name\nC,"methane, ""the"" gas"\nCC,ethane\n')
    assert len(list(read_smiles(path))) == 2
    path.write_text('smiles,name\nC,methane\nCC,"ethane\nCCC,propane\nCCCC,"butane\n')
    with pytest.raises(ValueError, match=r"row 1, counted from 0: column 'name' has a field of several lines"):
        list(read_smiles(path))


@pytest.mark.parametrize("rows", ["C,CC,1\nCO,CCO,2\n", "C,1,\nCO,2,\n", "1,C,1\n2,CO,2\n"])
def test_no_column_of_a_csv_is_read_from_the_next_one(tmp_path, rows):
    pytest.importorskip("rdkit")
    (tmp_path / "a.csv").write_text("smiles,y\n" + rows)
    with pytest.raises(ValueError, match="more fields in a line than names of columns"):
        list(read_smiles(tmp_path / "a.csv", targets=["y"]))
