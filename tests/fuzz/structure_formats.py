"""Files of structures and tables of molecules of each kind, for `tests.fuzz.file_formats`."""

import bz2
import gzip
import json
import lzma
import sqlite3
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from popgeo.convert.atoms import read_atoms
from popgeo.convert.smiles import read_smiles

XYZ = "".join(
    f'2\nProperties=species:S:1:pos:R:3:forces:R:3 energy=-1.{i} note="[{i}" pbc="F F F"\n'
    f"O 0 0 0.{i} 0.1 0 0\nH 0 0 1.{i} -0.1 0 0\n"
    for i in range(8)
)
TABLE = "smiles,gap\n" + "".join(f"{'C' * n}O,{n}.25\n" for n in range(1, 30))
_SDF = "".join(
    f"\n  popgeo  3D\n\n  2  1  0  0  0  0  0  0  0  0999 V2000\n{0:10.4f}{0:10.4f}{0:10.4f} O   0\n"
    f"{0:10.4f}{0:10.4f}{1 + i / 10:10.4f} H   0\n  1  2  1\nM  END\n$$$$\n"
    for i in range(6)
)


def atoms(number: int) -> Any:
    """Return a molecule with an energy and forces."""
    from ase import Atoms
    from ase.calculators.singlepoint import SinglePointCalculator

    one = Atoms("OH", [[0, 0, 0], [0, 0, 1 + number / 50]], info={"note": "x" * number})
    one.calc = SinglePointCalculator(one, energy=-1.0 - number, forces=np.full((2, 3), 0.25))
    return one


def write_trajectory(path: Path) -> None:
    """Write a trajectory of ASE."""
    from ase.io.trajectory import Trajectory

    with Trajectory(str(path), "w") as steps:
        for number in range(6):
            steps.write(atoms(number))


def write_database(path: Path) -> None:
    """Write a database of ASE, SQLite or JSON."""
    import ase.db

    with ase.db.connect(path) as rows:
        for number in range(12):
            rows.write(atoms(number), data={"fields": np.arange(6.0)})


def write_aselmdb(path: Path, count: int = 60) -> None:
    """Write a database as fairchem uses for training, with some rows larger than a page."""
    import lmdb
    from ase.db.row import AtomsRow
    from ase.io.jsonio import encode

    kept = {"metadata": {"name": "fuzz"}, "deleted_ids": [3], "nextid": count + 1}
    for number in range(count):
        row = AtomsRow(atoms(number % 20))
        held = {key: row[key] for key in ("numbers", "positions", "energy", "forces")}
        noise = np.random.default_rng(number).bytes(3000 if number % 7 == 0 else 10).hex()
        kept[str(number + 1)] = {**held, "key_value_pairs": {}, "data": {"noise": noise}, "ctime": 0.0, "mtime": 0.0}
    with lmdb.open(str(path), subdir=False, map_size=1 << 22, lock=False) as file:
        for key, value in kept.items():
            with file.begin(write=True) as writing:
                writing.put(key.encode(), zlib.compress(encode(value).encode()))


def write_hdf5(path: Path) -> None:
    """Write a file like MACE's `preprocess_data`."""
    import h5py

    with h5py.File(path, "w") as file:
        for number in range(4):
            group = file.create_group(f"config_batch_{number // 2}/config_{number % 2}")
            one = atoms(number)
            group["atomic_numbers"], group["positions"] = one.numbers, one.positions
            group["cell"], group["pbc"], group["head"] = np.zeros((3, 3)), [False] * 3, "Default"
            group["properties/energy"], group["properties/forces"] = -1.0, np.ones((2, 3))


def _zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table.csv", TABLE)


WRITERS: dict[str, Callable[[Path], object]] = {
    "steps.traj": write_trajectory,
    "rows.db": write_database,
    "rows.json": write_database,
    "rows.aselmdb": write_aselmdb,
    "mace.h5": write_hdf5,
    "some.sdf": lambda path: path.write_text(_SDF),
    "some.xyz": lambda path: path.write_text(XYZ),
    "some.xyz.gz": lambda path: path.write_bytes(gzip.compress(XYZ.encode(), mtime=0)),
    "some.xyz.xz": lambda path: path.write_bytes(lzma.compress(XYZ.encode())),
    "some.csv": lambda path: path.write_text(TABLE),
    "some.csv.zip": _zipped,
    "some.csv.xz": lambda path: path.write_bytes(lzma.compress(TABLE.encode())),
    "some.csv.bz2": lambda path: path.write_bytes(bz2.compress(TABLE.encode())),
}  # fmt: skip
"""Functions that write a complete file of each kind, by file name."""
NEEDED = {".traj": "ase", ".db": "ase", ".json": "ase", ".aselmdb": "lmdb", ".h5": "h5py", ".sdf": "ase", ".xyz": "ase"}


def read_all(path: Path) -> list[dict[str, Any]]:
    """Read the content of a file as a user does."""
    if ".csv" in path.suffixes:
        return [one.to_dict() for one in read_smiles(path, targets=("gap",))]
    found = read_atoms(path, cutoff=1.5, labels="partial")
    return [found[number].to_dict() for number in range(len(found))]


def change_sql(path: Path, *said: str) -> None:
    """Run statements on a database."""
    with closing(sqlite3.connect(path)) as opened:
        for one in said:
            opened.execute(one)
        opened.commit()


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    """Change the content of a JSON file in place."""
    held = json.loads(path.read_text())
    change(held)
    path.write_text(json.dumps(held))
