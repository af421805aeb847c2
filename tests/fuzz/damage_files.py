"""Damage to files: flipped bits, missing ends, and hostile values in JSON fields."""

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.file_formats import FileFormat


def damage(form: FileFormat, folder: Path, outside: Path, draw: random.Random) -> str:
    """Damage one file of a folder; return the kind of damage in a word.

    Args:
        form: Format of the folder's files.
        folder: Folder with the files.
        outside: File that crafted fields point to and that must stay untouched.
        draw: Random choices of kind and place.
    """
    files = sorted(path for path in folder.glob(form.pattern) if path.is_file())
    path = draw.choice(files)
    data = path.read_bytes()
    kinds = ["flip", "flip", "cut", "bytes", "empty", "grow"]
    if path.name.endswith(form.json_in):
        kinds += ["field"] * 6
    kind = draw.choice(kinds)
    if kind == "field":
        path.write_bytes(_with_field(form, data, str(outside), draw))
    elif kind == "flip":
        path.write_bytes(_flipped(data, draw))
    elif kind == "bytes":
        place = draw.randrange(len(data) + 1)
        path.write_bytes(data[:place] + draw.randbytes(8) + data[place + 8 :])
    else:
        end = {"cut": draw.randrange(len(data) + 1), "empty": 0, "grow": len(data)}[kind]
        path.write_bytes(data[:end] + (draw.randbytes(9) if kind == "grow" else b""))
    return kind


def _flipped(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return data
    changed, bit = bytearray(data), draw.randrange(8 * len(data))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _with_field(form: FileFormat, data: bytes, outside: str, draw: random.Random) -> bytes:
    assert form.seal is not None
    content = form.json_of(data)
    holder, key = draw.choice([*_places(content)])
    how = draw.randrange(4)
    if how == 0 and isinstance(holder, dict):
        holder[draw.choice(strange_texts(outside))] = holder.pop(key)
    elif how == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif how == 2:
        del holder[key]
    else:
        holder[key] = draw.choice(strange_values(outside, holder[key]))
    return form.seal(data, content)


def _places(part: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
        yield part, key
        yield from _places(part[key])


def strange_texts(outside: str) -> list[str]:
    """Return names and texts that leave a folder, are code, are markup, or are empty."""
    code = f"__import__('os').system('echo x > {outside}')"
    return [
        outside, f"../{outside.rpartition('/')[2]}", "..", "/dev/zero", "\0", "", "<img src=x onerror=alert(1)>",
        f"**({code} or {{}})); _ = dict(x", f"0 or {code}", "__class__", "aten.from_file.default",
        "popgeo.for_loop.default", "aten.set_.source_Tensor", "float64", "int8", "é" * 300,
    ]  # fmt: skip


def strange_values(outside: str, before: Any) -> list[Any]:
    """Return possible replacements of a value."""
    number = type(before) in (int, float) and abs(before) < 1e300
    near = [before + 1, before - 1, -before, before * 2**31, 1.5 * before] if number else []
    numbers = [0, -1, 1, 2**31, 2**61, 2**64, 10**400, 0.5, 1e308, float("nan"), True]
    others: list[Any] = [
        None,
        [],
        {},
        [[]],
        {"ref": 0},
        {"ref": 10**6},
        {"dtype": "float64"},
        {"device": "cuda"},
        [before, before],
    ]
    return [*near, *near, *numbers, *others, *strange_texts(outside)]
