"""The files that popgeo reads: functions to write, read and forge each kind."""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from popgeo import ipu
from popgeo.convert.atoms import read_atoms
from popgeo.convert.pyg import read_pt
from popgeo.convert.smiles import read_smiles
from popgeo.data import FlatStore, write
from popgeo.data.store.save_columns import blocks
from popgeo.data.store.write_folder import FolderWriter
from popgeo.ipu import Options, training_model
from tests.fuzz.structure_formats import NEEDED, WRITERS, read_all
from tests.support.graphs import graph

X = torch.tensor([[1.0, 4.0, 2.0], [-2.0, 0.5, 1.0]])
GRAPHS = [graph(n, 2 * n, seed=n) for n in (3, 1, 4, 2, 5)]

Make = Callable[[Path], object]
Use = Callable[[Path], str]
Seal = Callable[[bytes, Any], bytes]


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """One kind of file or folder.

    Attributes:
        make: Function that writes a complete file into a folder.
        use: Function that reads the folder as a user does, and returns a text that identifies the result.
        pattern: Pattern of the files to damage.
        json_in: Endings of the names of files with JSON.
        json_of: Function that returns the JSON part of a file.
        seal: Function that returns the file with other JSON and a valid checksum.
        differs: Whether a changed file may be read with a different result, since the kind has no checksum. Then
            only the kind of ending is checked.
    """

    make: Make
    use: Use
    pattern: str = "*"
    json_in: tuple[str, ...] = ()
    json_of: Callable[[bytes], Any] = json.loads
    seal: Seal | None = None
    differs: bool = False


class Convolved(nn.Module):
    """A model of sums over edges with a constant, and of flips, which need new memory."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.senders = torch.tensor([0, 1, 1])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        messages = self.linear(x)[self.senders]
        out = torch.zeros(2, 4).index_add(0, torch.tensor([1, 0, 1]), messages).flip(0).relu()
        return out, out.square().mean()


def digest(*parts: Any) -> str:
    """Return a text that differs if tensors or other parts differ."""
    state = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            plain = part.detach().clone(memory_format=torch.contiguous_format)
            state.update(f"{plain.shape} {plain.dtype}".encode())
            state.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(part, Mapping):
            state.update(digest(*(item for key in sorted(part, key=str) for item in (str(key), part[key]))).encode())
        elif isinstance(part, list | tuple):
            state.update(digest(*part).encode())
        else:
            state.update(repr(part).encode())
    return state.hexdigest()


def _seeded_model() -> Convolved:
    torch.manual_seed(0)
    return Convolved()


def _train(folder: Path) -> str:
    model = _seeded_model()
    step = training_model(model, Options(cache_dir=folder), torch.optim.SGD(model.parameters(), 0.1))
    return digest([step(X) for _ in range(2)], dict(model.state_dict()))


def _checkpointed(folder: Path) -> None:
    model = _seeded_model()
    step = training_model(model, Options(random_seed=3), torch.optim.Adam(model.parameters(), 0.1))
    step(X)
    step.save(folder / "step.pt")


def _go_on(folder: Path) -> str:
    model = _seeded_model()
    step = training_model(model, Options(random_seed=3), torch.optim.Adam(model.parameters(), 0.1))
    step.load(folder / "step.pt")
    return digest(step(X), dict(model.state_dict()))


def _all_of(store: FlatStore) -> str:
    return digest([[(key, part) for key, part in one.to_dict().items()] for one in store[:]])


def _open_store(folder: Path) -> str:
    store = FlatStore.open(folder / "store")
    return _all_of(store)


def _open_and_verify(folder: Path) -> str:
    return _all_of(FlatStore.open(folder / "store", verify=True))


def _begin(folder: Path) -> None:
    with FolderWriter(folder / "store") as writer:
        for part in blocks(FlatStore.from_dataset(GRAPHS)[:3], 0, 1):
            writer.append(part)


def _finish(folder: Path) -> str:
    return _all_of(write(GRAPHS, folder / "store", progress_bar=False))


def _seal_manifest(data: bytes, content: Any) -> bytes:
    if isinstance(content, dict):
        rest = {key: held for key, held in content.items() if key != "crc32"}
        content = {**rest, "crc32": zlib.crc32(json.dumps(rest, sort_keys=True).encode())}
    return json.dumps(content, indent=1).encode()


def _report(folder: Path) -> None:
    step = ipu.compile(lambda x: (x @ x).softmax(1), [torch.ones(8, 8)])
    step.report.to_json(folder / "report.json")


def _show(folder: Path) -> str:
    report = ipu.Report.from_json((folder / "report.json").read_text(encoding="utf-8", errors="replace"))
    shown = [str(report), report._repr_html_(), report.to_html(), report.to_chrome_trace()]
    assert not any("<img" in page for page in shown[1:3]), "markup in the page"
    return digest(shown, report.to_json())


def _read_pt(folder: Path) -> str:
    found = read_pt(folder / "graphs.pt")
    return digest([[(key, part) for key, part in one.to_dict().items()] for one in found])


def _save_pt(folder: Path) -> None:
    torch.save([Data(x=one.x, edge_index=one.edge_index) for one in GRAPHS], folder / "graphs.pt")


def _words(data: bytes) -> Any:
    return [line.split(" ") for line in data.decode().split("\n")]


def _seal_words(data: bytes, content: Any) -> bytes:
    lines = content if isinstance(content, list) else [content]
    return "\n".join(" ".join(map(str, line)) if isinstance(line, list) else str(line) for line in lines).encode()


@contextmanager
def _naming(path: Path) -> Iterator[Path]:
    try:
        yield path
    except ValueError as error:
        if str(path) not in str(error):
            raise AssertionError(f"the error does not name the file: {error}") from error
        raise


def _write_atoms(folder: Path) -> None:
    properties = 'Lattice="4 0 0 0 5 0 0 0 6" Properties=species:S:1:pos:R:3:forces:R:3 energy=-1.5 pbc="T T F"'
    lines = [f"{symbol} {i}.5 0.25 {i / 4} 0.1 -0.2 {i}.0" for i, symbol in enumerate("OHH")]
    (folder / "atoms.xyz").write_text("\n".join(["3", properties, *lines, ""]) * 3)


def _read_atoms(folder: Path) -> str:
    with _naming(folder / "atoms.xyz") as path:
        atoms = read_atoms(path, cutoff=1.5)
        found = [atoms[i] for i in range(len(atoms))]
    assert all(one.pos.isfinite().all() and one.pos.shape == (len(one.z), 3) for one in found), (
        "a position is not finite"
    )
    return digest([one.to_dict() for one in found])


def _write_smiles(folder: Path) -> None:
    rows: list[str] = [
        f"{smiles} , {i}.25 , {-i}e-3" for i, smiles in enumerate(["CCO", "c1ccccc1", "[NH4+]", "C/C=C/C", "C#N"])
    ]
    (folder / "molecules.csv").write_text("\n".join(["smiles,gap,mu", *rows, ""]))


def _read_smiles(folder: Path) -> str:
    with _naming(folder / "molecules.csv") as path:
        found = [*read_smiles(path, targets=("gap", "mu"))]
    assert not any(one.y.isinf().any() for one in found), "a target is infinite"
    return digest([one.to_dict() for one in found])


# Files of other programs and files without a checksum: changed numbers make a different valid file.
_TEXTS: Mapping[str, FileFormat] = {
    "atoms": FileFormat(
        make=_write_atoms, use=_read_atoms, json_in=(".xyz",), json_of=_words, seal=_seal_words, differs=True
    ),
    "molecules": FileFormat(
        make=_write_smiles, use=_read_smiles, json_in=(".csv",), json_of=_words, seal=_seal_words, differs=True
    ),
}
_NEEDED = {"atoms": ("ase", "vesin"), "molecules": ("rdkit",)}


def _read_structures(name: str, folder: Path) -> str:
    with _naming(folder / name) as path:
        return digest(read_all(path))


def _of_structures(name: str) -> FileFormat:
    return FileFormat(make=lambda folder: WRITERS[name](folder / name), use=partial(_read_structures, name),
                      pattern=name, differs=True)  # fmt: skip


_READABLE = [name for name in WRITERS if find_spec(NEEDED.get(Path(name.removesuffix(".gz").removesuffix(".xz")).suffix,
                                                             "rdkit"))]  # fmt: skip

FORMATS: Mapping[str, FileFormat] = {
    "kept step": FileFormat(make=lambda f: _train(f) and None, use=_train),
    "checkpoint": FileFormat(make=_checkpointed, use=_go_on),
    "report": FileFormat(
        make=_report, use=_show, json_in=(".json",), seal=lambda _, c: json.dumps(c).encode(), differs=True
    ),
    "store": FileFormat(
        make=lambda f: write(GRAPHS, f / "store", progress_bar=False) and None, use=_open_store, pattern="store/*",
        json_in=("manifest.json", "journal.json"), seal=_seal_manifest,
    ),
    "store, verified": FileFormat(
        make=lambda f: write(GRAPHS, f / "store", progress_bar=False) and None, use=_open_and_verify,
        pattern="store/*", json_in=("manifest.json", "journal.json"), seal=_seal_manifest,
    ),
    "part of a store": FileFormat(
        make=_begin, use=_finish, pattern="store.part/*", json_in=("journal.json",), seal=_seal_manifest,
    ),
    "graphs for convert": FileFormat(make=_save_pt, use=_read_pt),
    **{name: _of_structures(name) for name in _READABLE},
    **{name: form for name, form in _TEXTS.items() if all(map(find_spec, _NEEDED[name]))},
}  # fmt: skip
