"""Reads what `torch.save` wrote from an untrusted source: within the size of the file, and nothing runs."""

import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from popgeo.sealed_file import has_checksum, kind_of, write_sealed

# Formats of popgeo from before there were seals; the CRC-32 of their archives is compared.
_WITHOUT_SEAL = {"popgeo force field 1", "popgeo checkpoint 2", "popgeo checkpoint 3"}


def entries_of(data: bytes) -> dict[str, bytes]:
    """The entries of an archive as torch writes it: not compressed, each name once, all within the file.

    Raises:
        ValueError: it is not such an archive, or an entry does not match its CRC-32.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = archive.infolist()
            if any(one.compress_type != zipfile.ZIP_STORED for one in found):
                raise ValueError("an entry is compressed, which torch never writes")
            # torch looks for names without regard to case
            if len({one.filename.lower() for one in found}) < len(found):
                raise ValueError("two entries have the same name")
            if sum(one.file_size for one in found) > len(data):
                raise ValueError("its entries are larger than the file")
            return {one.filename: archive.read(one) for one in found}
    except ValueError:
        raise
    except Exception as error:  # zipfile raises many kinds for what is not an archive
        raise ValueError(f"it is not a whole archive of torch.save ({_first_line(error)})") from error


def written_again(entries: Mapping[str, bytes]) -> io.BytesIO:
    """An archive of these entries alone, so that torch reads the bytes that were checked."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in entries.items():
            archive.writestr(name, part)
    file.seek(0)
    return file


def load_tensors(entries: Mapping[str, bytes]) -> Any:
    """The tensors, numbers, texts and nests of them in the entries of an archive that `torch.save` wrote.

    Raises:
        ValueError: the archive is damaged, or holds anything else.
    """
    try:
        return torch.load(written_again(entries), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # whose words advise to run what the file holds
        raise ValueError("it holds more than tensors, numbers and texts, which would be executed") from error
    except Exception as error:
        raise ValueError(f"torch cannot read it ({_first_line(error)})") from error


def checked_entries(path: str | os.PathLike[str], what: str) -> tuple[dict[str, bytes], bool]:
    """The entries of an archive whose checksums match, and whether popgeo sealed it.

    Raises:
        ValueError: the checksum of a seal, or a CRC-32, does not match.
        OSError: the file cannot be read.
    """
    data = Path(path).read_bytes()
    is_sealed = kind_of(data) is not None
    try:
        if is_sealed and not has_checksum(data):
            raise ValueError("its checksum does not match")
        return entries_of(data), is_sealed
    except ValueError as error:
        raise _refusal(path, what, error) from error


def read_content(path: str | os.PathLike[str], what: str = "file of torch.save") -> Any:
    """What a file of `torch.save`, or of popgeo, holds.

    Raises:
        ValueError: a checksum does not match, or the file holds what could be executed.
        OSError: the file cannot be read.
    """
    entries, is_sealed = checked_entries(path, what)
    try:
        content = load_tensors(entries)
        name = content.get("format") if isinstance(content, dict) else None
        # A changed bit in a seal may make a file look like one from before there were seals.
        if isinstance(name, str) and name.startswith("popgeo ") and name not in _WITHOUT_SEAL and not is_sealed:
            raise ValueError("its checksum is missing")
    except ValueError as error:
        raise _refusal(path, what, error) from error
    return content


def write_format(path: str | os.PathLike[str], content: Mapping[str, Any], kind: str, version: int) -> None:
    """Writes tensors and numbers as a sealed file, which `torch.load` reads, too."""
    file = io.BytesIO()
    torch.save({"format": f"popgeo {kind} {version}", **content}, file)
    write_sealed(path, file.getvalue(), kind, version, is_archive=True)


def read_format(path: str | os.PathLike[str], kind: str, version: int) -> dict[str, Any]:
    """What `write_format` wrote, in this version or in one from before there were seals.

    Raises:
        ValueError: the file is damaged, or it is not of this kind and version.
        OSError: the file cannot be read.
    """
    content = read_content(path, f"{kind} of popgeo")
    name = content.get("format") if isinstance(content, dict) else None
    older = name in _WITHOUT_SEAL and name.startswith(f"popgeo {kind} ") if isinstance(name, str) else False
    if name != f"popgeo {kind} {version}" and not older:
        is_state = (
            not name and isinstance(content, dict) and all(isinstance(one, torch.Tensor) for one in content.values())
        )
        if is_state and content:
            raise ValueError(
                f"{path} is not a {kind} of popgeo, but a state_dict of {len(content)} tensors. Load it by "
                "model.load_state_dict(torch.load(path))."
            )
        what = f"its format is {name!r:.60}" if name else "something else wrote it"
        raise _refusal(path, f"{kind} of popgeo that this version reads", what)
    return content


def _refusal(path: str | os.PathLike[str], what: str, reason: object) -> ValueError:
    return ValueError(f"{path} is not a {what}, or it is damaged: {reason}. Copy the file again, or write it again.")


def _first_line(error: BaseException) -> str:
    return f"{error}".partition("\n")[0][:200] or type(error).__name__
