"""The list of public signatures shows every change of a signature in review.

`python -m tests.contracts.test_public_signatures` rewrites the list. docs/stability.md has the rules for changes.
"""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from tests.conftest import REPOSITORY
from tests.contracts.test_public_names import MODULES, public_names

SNAPSHOT = REPOSITORY / "tests" / "contracts" / "public_signatures.txt"


def signature_of(called: Callable[..., Any]) -> str:
    """Return names, kinds and defaults of arguments; without annotations, which differ by Python version."""
    try:
        found = inspect.signature(called)
    except (TypeError, ValueError):
        return "(...)"
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values()]
    return re.sub(r"<(?:function|factory|object|class)?.*?>(?=[,)])", "...", str(inspect.Signature(plain)))


def lines_of(path: str, held: Any) -> Iterator[str]:
    """Yield the line of a public name and, for a class, the lines of popgeo's own methods."""
    if not isinstance(held, type):
        yield path + (signature_of(held) if inspect.isfunction(held) else "")
        return
    ours = [base for base in reversed(held.__mro__) if base.__module__.startswith("popgeo")]
    made_by_us = any({"__init__", "__new__"} & {*vars(base)} for base in ours) and not issubclass(held, Enum)
    yield path + (signature_of(held) if made_by_us else "")
    if issubclass(held, Enum):
        yield from (f"{path}.{name}" for name in held.__members__)
    for name, own in sorted({name: own for base in ours for name, own in vars(base).items()}.items()):
        if not name.startswith("_") and isinstance(own, property):
            yield f"{path}.{name}"
        elif not name.startswith("_") and (inspect.isfunction(own) or isinstance(own, classmethod | staticmethod)):
            yield f"{path}.{name}{signature_of(getattr(held, name))}"


def public_signatures() -> str:
    """Return a line per public name and method; a name repeated at the top has its signature in its module."""
    lines, seen = [], set()
    for module in sorted(MODULES, reverse=True):  # the top of the package last
        face = importlib.import_module(module)
        for name in sorted({*getattr(face, "__all__", ()), *public_names(inspect.getsource(face))}):
            held = getattr(face, name)
            lines += [f"{module}.{name}"] if id(held) in seen else lines_of(f"{module}.{name}", held)
            seen.add(id(held))
    return "\n".join(lines) + "\n"


def test_the_public_signatures_are_those_that_are_written_down():
    before, after = SNAPSHOT.read_text().splitlines(), public_signatures().splitlines()
    changed = [
        line for line in difflib.unified_diff(before, after, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")
    ]
    assert not changed, "keep the old name (docs/stability.md), and rewrite the list:\n" + "\n".join(changed)


def test_the_check_sees_names_kinds_defaults_and_methods():
    class Ours:
        __module__ = "popgeo.x"

        def __init__(self, size: int, *, seed: int | None = None) -> None: ...

        def fill(self, name: str = "a", make: Any = print) -> None: ...

    assert [*lines_of("Ours", Ours)] == ["Ours(size, *, seed=None)", "Ours.fill(self, name='a', make=...)"]


if __name__ == "__main__":
    SNAPSHOT.write_text(public_signatures())
