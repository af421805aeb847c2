"""A safe reader of files that `torch.save` wrote: it runs no code and uses no more memory than the file's size."""

import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from popgeo.sealed_file import has_checksum, kind_of, write_sealed

# popgeo's older formats without a seal; the reader compares the CRC-32 of their archives.
_WITHOUT_SEAL = {"popgeo force field 1", "popgeo checkpoint 2", "popgeo checkpoint 3"}


def entries_of(data: bytes) -> dict[str, bytes]:
    """Return the entries of an archive that torch wrote: uncompressed, with different names, not larger than the file.

    Raises:
        ValueError: The data are not such an archive, or an entry does not match its CRC-32.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = archive.infolist()
            if any(one.compress_type != zipfile.ZIP_STORED for one in found):
                raise ValueError("an entry is compressed, which torch never writes")
            # torch ignores upper and lower case in names
            if len({one.filename.lower() for one in found}) < len(found):
                raise ValueError("two entries have the same name")
            if sum(one.file_size for one in found) > len(data):
                raise ValueError("its entries are larger than the file")
            return {one.filename: archive.read(one) for one in found}
    except ValueError:
        raise
    except Exception as error:  # zipfile raises errors of many classes for damaged archives
        raise ValueError(f"it is not a whole archive of torch.save ({_first_line(error)})") from error


def written_again(entries: Mapping[str, bytes]) -> io.BytesIO:
    """Return an archive of these entries alone, so that torch reads exactly the bytes that were checked."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in entries.items():
            archive.writestr(name, part)
    file.seek(0)
    return file


def load_tensors(entries: Mapping[str, bytes]) -> Any:
    """Load the tensors, numbers, texts and containers of them from the entries of an archive of `torch.save`.

    Raises:
        ValueError: The archive is damaged, or it contains other objects.
    """
    try:
        return torch.load(written_again(entries), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's message advises to execute the content of the file
        raise ValueError("it holds more than tensors, numbers and texts, which would be executed") from error
    except Exception as error:
        raise ValueError(f"torch cannot read it ({_first_line(error)})") from error


def checked_entries(path: str | os.PathLike[str], what: str) -> tuple[dict[str, bytes], bool]:
    """Read an archive; return its entries and whether popgeo sealed it.

    Raises:
        ValueError: The checksum of the seal, or a CRC-32, does not match.
        OSError: The file cannot be read.
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
    """Return the content of a file that `torch.save` or popgeo wrote.

    Raises:
        ValueError: A checksum does not match, or the file contains objects that could execute code.
        OSError: The file cannot be read.
    """
    entries, is_sealed = checked_entries(path, what)
    try:
        content = load_tensors(entries)
        name = content.get("format") if isinstance(content, dict) else None
        # A damaged seal may look like no seal, so a newer format without a seal is an error.
        if isinstance(name, str) and name.startswith("popgeo ") and name not in _WITHOUT_SEAL and not is_sealed:
            raise ValueError("its checksum is missing")
    except ValueError as error:
        raise _refusal(path, what, error) from error
    return content


def write_format(path: str | os.PathLike[str], content: Mapping[str, Any], kind: str, version: int) -> None:
    """Write tensors and numbers to a sealed file, which `torch.load` can read, too."""
    file = io.BytesIO()
    torch.save({"format": f"popgeo {kind} {version}", **content}, file)
    write_sealed(path, file.getvalue(), kind, version, is_archive=True)


def read_format(path: str | os.PathLike[str], kind: str, version: int) -> dict[str, Any]:
    """Read a file of `write_format`, in this version or in an older version without a seal.

    Raises:
        ValueError: The file is damaged, or its kind or version differs.
        OSError: The file cannot be read.
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
