"""Phrases that make a reader stop: their numbers in the package and in the documents may only fall."""

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.conftest import REPOSITORY

# A phrase, its replacement, and the allowed numbers in the package and in the documents.
PHRASES = {
    r"\b(is|are|was|were|be|being) told\b": ("raises, reports, warns", 0, 0),
    r"(?<![Tt]here )\b(is|are|was|were) no (?!longer|more|less|better|worse|worth|such|op\b)": (
        "is not a, is missing",
        20,
        5,
    ),
    r"\b(is|are|has) none\b(?! of)": ("is not one, is missing", 10, 5),
    r"\b(is|are) (another|others)\b": ("differs, does not match", 5, 5),
    r"\b[Ww]here (it|they|that|there|nothing|something|somebody|nobody) ": ("if, when", 60, 15),
    r"\b(nobody|somebody|anybody)\b": ("no caller, a thread, a user", 0, 0),
    r"\banew\b|\bin vain\b|\bin silence\b|\bwithout a word\b|\bfor ever\b": ("again, silently, permanently", 0, 0),
    r"\bso many\b|\bas many as\b": ("this number of", 0, 0),
    r"\b(dearest|dearer)\b": ("most expensive", 0, 0),
    r"\bcannot be had\b|\bcould not be had\b": ("is not available", 0, 0),
    r"\bstands? (in|for|beside|at)\b": ("is in, represents", 5, 5),
    r"\b(goes|go|going|went) on\b": ("continues", 0, 0),
    r"\bas of `": ("see", 0, 0),
}


def words_of(source: str) -> str:
    """Return the docstrings, comments and messages of a source file."""
    kinds = (tokenize.COMMENT, tokenize.STRING)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(one.string for one in tokens if one.type in kinds or "FSTRING" in tokenize.tok_name[one.type])


def counts(texts: Iterable[str]) -> Counter[str]:
    """Count each phrase in the texts."""
    found: Counter[str] = Counter()
    for text in texts:
        found.update({phrase: len(re.findall(phrase, text)) for phrase in PHRASES})
    return found


def documents() -> Iterator[Path]:
    """Yield the documents that readers see first; the reference and the notebooks are made from other files."""
    yield from (REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))
    yield from (path for path in (REPOSITORY / "docs").rglob("*.md") if not {"api", "notebooks"} & set(path.parts))


def test_phrases_that_make_a_reader_stop_only_become_fewer():
    package = counts(words_of(path.read_text()) for path in (REPOSITORY / "popgeo").rglob("*.py"))
    package += counts(
        path.read_text() for path in (REPOSITORY / "popgeo").rglob("*.csv")
    )  # tables contain sentences, too
    documented = counts(path.read_text() for path in documents())
    over = [
        f"{phrase}: {package[phrase]} in the package ({most}), {documented[phrase]} in documents ({most_documented}). "
        f"Write: {instead}."
        for phrase, (instead, most, most_documented) in PHRASES.items()
        if package[phrase] > most or documented[phrase] > most_documented
    ]
    assert not over, "\n".join(over)


def test_the_count_sees_docstrings_comments_and_messages_and_no_code():
    source = (
        'def anew(nobody):\n    """Starts anew."""  # nobody waits\n    raise ValueError(f"{nobody} waits in vain")\n'
    )
    assert counts([words_of(source)])[r"\b(nobody|somebody|anybody)\b"] >= 1
    assert counts(["names told apart", "the error is told"])[r"\b(is|are|was|were|be|being) told\b"] == 1
