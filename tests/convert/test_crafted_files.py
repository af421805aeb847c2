"""Cut-off, damaged and crafted files of structures end in an error, within memory and time that follow from their size.

Attempts that could end the process run in a child; `tests.fuzz` damages files of each kind at random.
"""

import gzip
import lzma
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from popgeo.convert.atoms import read_atoms
from popgeo.convert.lmdb_file import entries_of
from popgeo.convert.smiles import read_smiles
from tests.fuzz.structure_formats import (
    change_json,
    change_sql,
    write_aselmdb,
    write_database,
    write_hdf5,
    write_trajectory,
)
from tests.support import quick_python

CHILD = """
import random, sys, warnings
from popgeo.convert.atoms import read_atoms
warnings.simplefilter("ignore")
path, whole, draw, refused = sys.argv[1], open(sys.argv[1], "rb").read(), random.Random(0), 0
for case in range(60):
    data = bytearray(whole)
    if case % 3:
        page = draw.choice([0, 1, *range(2, len(data) // 4096)]) * 4096
        for _ in range(4):
            data[(page + draw.randrange(160)) % len(data)] = draw.randrange(256)
    else:
        del data[draw.randrange(len(data)):]
    open(path, "wb").write(data)
    try:
        atoms = read_atoms(path)
        [atoms[i] for i in range(len(atoms))]
    except ValueError as error:
        assert path in str(error), error
        refused += 1
print(refused)
"""


@pytest.mark.parametrize("write", [write_aselmdb, write_hdf5, write_database, write_trajectory])
def test_no_cut_and_no_changed_page_ends_the_process(tmp_path: Path, write: Callable[[Path], object]):
    pytest.importorskip("lmdb" if write is write_aselmdb else "h5py" if write is write_hdf5 else "ase")
    endings = {write_aselmdb: "aselmdb", write_hdf5: "h5", write_database: "db", write_trajectory: "traj"}
    write(path := tmp_path / f"a.{endings[write]}")
    ended = subprocess.run(
        [*quick_python.command(), "-c", CHILD, path], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout) >= 20  # all cuts at least


def test_entries_of_an_lmdb_are_those_that_lmdb_finds(tmp_path: Path):
    lmdb = pytest.importorskip("lmdb")
    write_aselmdb(path := tmp_path / "a.aselmdb", 300)
    with lmdb.open(str(path), subdir=False, map_size=1 << 24, lock=False) as file:
        for number in range(5, 40):
            with file.begin(write=True) as writing:
                writing.delete(str(number).encode())
        with file.begin() as reading:
            expected = [(bytes(key), bytes(value)) for key, value in reading.cursor()]
    whole = path.read_bytes()
    assert [(key, whole[start : start + length]) for key, start, length in entries_of(path)] == expected
    assert len(read_atoms(path)) == 300 - 35 - 1  # one is noted as deleted


def xyz(comment: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "a.xyz").write_text(f"1\n{comment}\nH 0 0 0\n")


def table(text: str, name: str = "a.csv") -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def database(*said: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        write_database(folder / "a.db")
        change_sql(folder / "a.db", *said)

    return write


def large_array(shape: object, data: object) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        write_database(path := folder / "a.json")
        change_json(path, lambda held: held["1"].update(positions={"__ndarray__": [shape, "float64", data]}))

    return write


def zipped(folder: Path) -> None:
    with zipfile.ZipFile(folder / "a.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", "smiles\n" + "." * 20_000_000)


def several(folder: Path) -> None:
    with zipfile.ZipFile(folder / "a.csv.zip", "w") as archive:
        archive.writestr("a.csv", "smiles\nC\n")
        archive.writestr("b.csv", "smiles\nC\n")


def wide(folder: Path) -> None:
    packed = lzma.compress(b"smiles\nCC\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}])
    (folder / "a.csv.xz").write_bytes(packed)


def declared(folder: Path) -> None:
    write_trajectory(path := folder / "a.traj")
    raw = bytearray(path.read_bytes())
    raw[32:40] = struct.pack("<q", 10**9)
    path.write_bytes(raw)


ROW, VIEW = "Properties=species:S:1:pos:R:3", "ALTER TABLE systems RENAME TO old"
CRAFTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "brackets": (xyz(f"{ROW} " + "a=[ " * 60_000), "twice"),
    "braces": (xyz(f"{ROW} " + "".join(f"a{n}={{ " for n in range(30_000)) + "a1=2"), "twice"),
    "many keys": (xyz(f"{ROW} " + " ".join(f"k{n}=1" for n in range(20_000)) + " k5=2"), "twice"),
    "long comment": (xyz(f"{ROW} " + "a " * 200_000), "comment line of over"),
    "columns": (xyz(f"{ROW}:x:R:1000000000"), "Properties names 1000000004"),
    "negative columns": (xyz("Properties=species:S:1:pos:R:3:a:R:-1:b:R:1"), "Properties names"),
    "packed": (lambda f: (f / "a.xyz.gz").write_bytes(gzip.compress(b"1\n" + b"x" * 20_000_000)), "hundred times"),
    "recursive view": (
        database(VIEW, "CREATE VIEW systems AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id FROM n) "
                       "SELECT * FROM n, old WHERE n.id < 0"), "has the view 'systems'",
    ),
    "view elsewhere": (database("CREATE VIEW x AS SELECT zeroblob(900000000)"), "has the view 'x'"),
    "trigger": (database("CREATE TRIGGER x AFTER INSERT ON systems BEGIN SELECT 1; END"), "has the trigger 'x'"),
    "computed": (database("CREATE TABLE x (a, b AS (zeroblob(900000000)))"), "columns that are computed"),
    "no table": (database(VIEW), "no table systems"),
    "filled array": (large_array([10**8, 3], [0.0]), "has 1 numbers"),
    "one number": (large_array([10**8, 3], 0.0), "has 1 numbers"),
    "steps": (declared, "declares 1,000,000,000 structures"),
    "zip": (zipped, "hundred times"),
    "zip of two": (several, "holds 2 files"),
    "dictionary": (wide, "needs a dictionary of over"),
    "tar": (table("x", "a.csv.tar"), "is not unpacked"),
    "ring": (table("smiles\nC1" + "C" * 8_000 + "C1\n"), "8,002 atoms and 1 rings"),
    "long molecule": (table("smiles\n" + "C" * 20_000 + "\n"), "more than 10,000 characters"),
    "ring as a header": (table("C1" + "C" * 9_000 + "C1\nC\n"), "9,002 atoms"),
    "fused rings": (table("smiles\n" + "".join(f"C%{10 + n % 80}" for n in range(1280)) + "\n"), "rings"),
    "wide table": (table("smiles," + ",".join(map(str, range(50_000))) + "\nC\n"), "50,001 columns"),
}  # fmt: skip


@pytest.mark.parametrize("name", CRAFTED)
def test_files_that_would_take_more_than_their_size_are_refused(tmp_path: Path, name: str):
    pytest.importorskip("ase")
    pytest.importorskip("rdkit")
    write, said = CRAFTED[name]
    write(tmp_path)
    (path,) = tmp_path.iterdir()
    with pytest.raises(ValueError, match=said) as found:
        list(read_smiles(path)) if ".csv" in path.suffixes else read_atoms(path)[0]
    assert str(path) in str(found.value)


def test_many_atoms_are_not_placed(tmp_path: Path):
    pytest.importorskip("rdkit")
    (tmp_path / "a.csv").write_text("smiles\nCC\n" + "C" * 200 + "\n")
    with pytest.raises(ValueError, match="more than 500 atoms"):
        list(read_smiles(tmp_path / "a.csv", positions=True))
    with pytest.warns(UserWarning, match="1 of 2 rows"):
        assert len(list(read_smiles(tmp_path / "a.csv", positions=True, skip=True))) == 1


@pytest.mark.parametrize("place", ["", "/config_0", "/config_0/properties", "/config_0/atomic_numbers",
                                   "/config_0/positions", "/config_0/properties/energy"])  # fmt: skip
@pytest.mark.parametrize("kind", ["external", "soft"])
def test_links_in_hdf5_are_not_followed(tmp_path: Path, place: str, kind: str):
    h5py = pytest.importorskip("h5py")
    place = f"config_batch_0{place}"
    write_hdf5(tmp_path / "secret.h5")
    write_hdf5(path := tmp_path / "gift.h5")
    with h5py.File(path, "a") as file:
        file["other"] = file[place]
        del file[place]
        file[place] = h5py.ExternalLink("secret.h5", place) if kind == "external" else h5py.SoftLink("/other")
    with pytest.raises(ValueError, match=r"gift\.h5.* is a link"):
        read_atoms(path)


def test_texts_in_hdf5_that_lie_at_one_place_are_refused(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    write_hdf5(path := tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        group = file["config_batch_0/config_0/properties"]
        for name, length, count in (("few", 500, 2), ("notes", 100_000, 50)):
            texts = group.create_dataset(name, shape=(count,), dtype=h5py.string_dtype())
            texts[0], texts[1:] = "y" * length, "z"
    assert len(read_atoms(path)) == 4
    raw = bytearray(path.read_bytes())
    at = raw.find(struct.pack("<I", 100_000))
    raw[at : at + 16 * 50] = raw[at : at + 16] * 50
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="longer texts than the file"):
        read_atoms(path)


def test_datasets_that_declare_what_is_not_there_share_one_limit(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    write_hdf5(path := tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        for number in range(80):
            file["config_batch_0/config_0/properties"].create_dataset(
                f"x{number}", shape=(2, 8000), chunks=(2, 8000), compression="gzip", dtype=np.float64
            )
    with pytest.raises(ValueError, match="declares 128,000 bytes"):
        read_atoms(path)
