"""Kept steps that somebody else has written: what is in a file, changed and sealed again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from popgeo.capture.step_cache import KIND, VERSION
from popgeo.sealed_file import sealed, unsealed

Document = dict[str, Any]


def parts_of(path: Path) -> tuple[Document, Document, bytes]:
    """The head of a kept step, its graph as JSON has it, and the memory of its constants."""
    head, _, body = unsealed(path.read_bytes(), path, KIND, VERSION).partition(b"\n")
    document, _, raw = body.partition(b"\n")
    return json.loads(head), json.loads(document), raw


def write_parts(path: Path, head: Document, document: Document, raw: bytes) -> None:
    """Writes a kept step with the checksum that it should have: only what it says can give it away."""
    body = json.dumps(document).encode() + b"\n" + raw
    path.write_bytes(sealed(json.dumps(head).encode() + b"\n" + body, KIND, VERSION))


def plant(path: Path, change: Callable[[Document], bytes | None]) -> None:
    """Changes the graph of a kept step in place; what the change returns becomes the memory of its constants."""
    head, document, raw = parts_of(path)
    given = change(document)
    write_parts(path, head, document, raw if given is None else given)


def add_op(document: Document, target: str, args: list[Any], kwargs: Document, **made: Any) -> int:
    """Puts an operation at the end of a graph, with a result of this form; returns the number of its value.

    The result is one float32 of its own memory where nothing else is said.
    """
    form = {
        "shape": [],
        "stride": [],
        "offset": 0,
        "dtype": "float32",
        "storage": 1 + max(v[4] for v in document["values"]),
    }
    form |= made
    document["values"].append([*form.values(), len(document["ops"])])
    number = len(document["values"]) - 1
    document["ops"].append([target, args, kwargs, [number], [], "forward", "", "", [], None])
    return number
