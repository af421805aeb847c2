"""The guide's table agrees with the account in the code."""

import ast
import re
from collections.abc import Iterator

from popgeo.compat.poptorch import Options
from tests.conftest import REPOSITORY

COMPAT = REPOSITORY / "popgeo" / "compat"
GUIDE = REPOSITORY / "docs" / "guides" / "coming_from_poptorch.md"


def entries() -> Iterator[tuple[str, str]]:
    """Return the request and the treatment of each account entry with a complete name in the code."""
    for path in sorted(COMPAT.rglob("*.py")):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if not call.args or not isinstance(call.args[0], ast.Constant):
                continue
            if isinstance(call.func, ast.Name) and call.func.id in ("honoured", "recorded", "ignored"):
                yield call.args[0].value, call.func.id


def setters() -> Iterator[tuple[str, str]]:
    """Return the same as `entries` for the setters of options, which are in a table."""
    options = Options()
    for group in (options, options.Training, options.Precision, options.Jit, options.TensorLocations):
        for kind in type(group).__mro__:
            for method in vars(kind).values():
                if getattr(method, "becomes", None) is not None:
                    yield f"{group._asked}.{method.__name__}", method.becomes.value


def rows() -> str:
    """Return the expected rows of the guide's table."""
    became: dict[str, list[str]] = {"honoured": [], "recorded": [], "ignored": []}
    for asked, treatment in sorted({*entries(), *setters()}):
        became[treatment].append(f"`{asked}`")
    return "\n".join(f"| {treatment} | {', '.join(asked)} |" for treatment, asked in became.items())


def test_the_table_of_the_guide_is_the_account_of_the_code():
    text = GUIDE.read_text()
    table = re.search(r"^\| effect \| feature \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    assert table[1].strip() == rows(), "paste what the right side says"
    assert "`Options.deviceIterations`" in rows()
