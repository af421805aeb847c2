"""The files of a path: the file itself, or the files of structures in a folder, in natural order."""

import re
import warnings
from pathlib import Path

from popgeo.convert.atom_files import SUFFIXES, ending

_OF_RUN = "checkpoint.pt"  # a file in the folder of a run of `popgeo train`
_MOST_NAMED = 5


def natural_order(path: Path) -> list[tuple[bool, int, str]]:
    """Return the key that sorts names by their numbers, so that 2 comes before 10.

    Example:
        >>> [path.name for path in sorted(map(Path, ("b10.xyz", "b2.xyz", "a.xyz")), key=natural_order)]
        ['a.xyz', 'b2.xyz', 'b10.xyz']
    """
    parts = re.split(r"(\d+)", path.name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def files_of(path: Path) -> list[Path]:
    """Return a single file, or the files of structures of a folder; warn about other files of the folder.

    Raises:
        ValueError: the path does not exist, or the folder has no file of structures.
    """
    if not path.exists():
        raise ValueError(f"There is no file or folder {path}. Check the name and the current folder.")
    if path.suffix == ".pt":
        raise ValueError(
            f"{path} is a file of torch: popgeo predict {path} FILE uses a model, popgeo convert {path} FOLDER makes a "
            "store of graphs. Name a file of structures."
        )
    if not path.is_dir():
        return [path]
    if (path / _OF_RUN).exists():
        raise ValueError(
            f"{path} is a run of popgeo train, not a set of structures: see {path / 'summary.txt'} for its errors; "
            f"popgeo predict {path / 'model.pt'} FILE uses its model."
        )
    if (path / "manifest.json").exists():
        raise ValueError(f"{path} is a store of popgeo, which popgeo.data.FlatStore.open reads.")
    inside = sorted(path.iterdir(), key=natural_order)
    files = [one for one in inside if one.is_file() and ending(one) in SUFFIXES]
    if not files:
        raise ValueError(f"{path} has no file with one of the endings {SUFFIXES}.")
    others = {*inside} - {*files}
    if names := [one.name for one in inside if one in others and not re.search(r"^\.|-lock$", one.name)]:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        warnings.warn(
            f"{path}: {', '.join(names[:_MOST_NAMED])}{more} are left out: of a folder, files that end in "
            f"{', '.join(SUFFIXES)} are read. Convert the other files, or read them one by one.",
            stacklevel=3,
        )
    return files
