"""The documents are correct: their code runs unchanged, their commands and links exist, the site builds."""

import doctest
import importlib.util
import io
import os
import re
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

from popgeo import extension_path
from tests.contracts.test_imports import GROUND, MAY_IMPORT
from tests.contracts.test_public_names import MODULES
from tests.support import quick_python

REPOSITORY = Path(__file__).resolve().parent.parent
README, CONTRIBUTING = REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"
MADE_BY_HAND = ("docs", "guides", "api")
GUIDES = sorted(page for page in (REPOSITORY / "docs").rglob("*.md") if page.parent.name in MADE_BY_HAND)
PAGES = [README, CONTRIBUTING, *GUIDES]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def name(page: Path) -> str:
    """Return the name of a page's test."""
    return str(page.relative_to(REPOSITORY))


def blocks(page: Path, *languages: str) -> Iterator[tuple[int, str, str]]:
    """Yield the fenced blocks of a page in some languages: first line, language, text."""
    text = page.read_text()
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        if found[1] in languages:
            yield text.count("\n", 0, found.start(2)), found[1], found[2]


def installed(code: str) -> bool:
    """Check whether the packages that a block imports are installed."""
    return all(importlib.util.find_spec(module) for module in re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE))


def run_page(page: Path) -> None:
    """Run the Python blocks of a page in order, in one namespace, and compare the output of sessions.

    A block of the language `py` needs an optional package, and is left out if the package is missing.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    said = io.StringIO()
    for line, language, text in blocks(page, "python", "py", "pycon"):
        if language == "py" and not installed(text):
            continue
        if language in ("python", "py"):
            exec(compile("\n" * line + text, page, "exec"), namespace)
        else:
            session = doctest.DocTestParser().get_doctest(text, namespace, name(page), str(page), line)
            session.globs = namespace  # the next block sees the names of this session
            runner.run(session, out=said.write, clear_globs=False)
    assert not runner.failures, said.getvalue()


@pytest.mark.parametrize("page", [page for page in GUIDES if any(blocks(page, "python", "pycon"))], ids=name)
def test_the_code_of_a_page_runs_as_it_stands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    if "import popgeo.extensions" in page.read_text():
        extension_path.provide()  # the effect of the import, which this process has undone
    run_page(page)


def test_a_page_that_is_wrong_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"{__name__}.REPOSITORY", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```pycon\n>>> x\n1\n```\n")
    run_page(page)
    page.write_text("```py\nimport no_such_package\n```\n")
    run_page(page)
    page.write_text("```python\nx = 1\n```\n\n```pycon\n>>> x\n2\n```\n")
    with pytest.raises(AssertionError, match="Expected"):
        run_page(page)


@pytest.mark.parametrize("block", [text for _, _, text in blocks(README, "python")], ids=["README"])
def test_the_code_of_the_readme_runs_in_an_interpreter_of_its_own(block: str, tmp_path: Path):
    assert block.count("[:2000]") == 1
    block = block.replace("[:2000]", "[:300]")  # fewer molecules, the same code
    # One thread, because pytest's workers share the cores.
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*quick_python.command(), "-c", block],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_commands_of_a_page_exist(page: Path):
    text = page.read_text()
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"(?:`|^    )make ([a-z]+)\b", text, flags=re.MULTILINE)) <= targets
    files = re.findall(r"\b((?:benchmarks|examples|scripts|tests)/[\w/]+\.(?:py|ipynb))", text)
    assert [file for file in files if not (REPOSITORY / file).exists()] == []


def test_pyproject_names_only_what_there_is():
    text = (REPOSITORY / "pyproject.toml").read_text()
    for found in set(re.findall(r"(?<!\.)\bpopgeo(?:\.\w+)+", text)):
        module, _, last = found.rpartition(".")
        assert importlib.util.find_spec(found) or hasattr(importlib.import_module(module), last), found
    files = re.findall(r"\b((?:examples|scripts|notebooks)/[\w/.]*)", text)
    assert [file for file in files if not (REPOSITORY / file).exists()] == []


def test_the_two_commands_of_the_readme_are_demo_and_test():
    assert {"demo", "test"} <= set(re.findall(r"\bmake ([a-z]+)\b", README.read_text()))


def test_nobody_is_told_to_install_popgeo_from_an_index_that_does_not_have_it():
    places = (REPOSITORY / place for place in ("popgeo", "docs", "examples", "scripts", "benchmarks", "notebooks"))
    texts = [path for place in places for path in place.rglob("*") if path.suffix in (".py", ".md", ".ipynb")]
    texts = [path for path in texts if "docs/notebooks" not in str(path)]  # copies
    asks = re.compile(r"pip install ['\"]?popgeo\b")
    assert [name(path) for path in (README, CONTRIBUTING, *texts) if asks.search(path.read_text())] == []


def test_the_readme_is_read_in_five_minutes():
    assert len(README.read_text().splitlines()) <= 110, "move a table to a page of the site"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)  # `layers[0](x)` is no link
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    made = {"notebooks/index.md", "../notebooks/index.md"}  # by docs/conf.py, which also copies the notebooks
    made |= {f"../notebooks/{path.name}" for path in (REPOSITORY / "notebooks").glob("*.ipynb")}
    assert [link for link in links if link not in made and not (page.parent / link).exists()] == []


def test_every_page_of_the_site_is_reached_from_its_index():
    listed = " ".join(page.read_text() for page in GUIDES if page.name == "index.md")
    assert [name(page) for page in GUIDES if page.name != "index.md" and page.stem not in listed] == []


def test_the_index_of_the_reference_has_a_line_for_each_page():
    index = (REPOSITORY / "docs" / "api" / "index.md").read_text()
    described = re.findall(r"^\| \[[^\]]+\]\((\w+)\.md\) \| \S.*\|$", index, flags=re.MULTILINE)
    in_the_sidebar = index.partition(":maxdepth: 1\n\n")[2].removesuffix("```\n").split()
    assert described == in_the_sidebar  # in the same order
    assert {*described} == {page.stem for page in GUIDES if page.parent.name == "api"} - {"index"}


def test_the_page_for_contributors_names_the_files_and_the_floors_that_there_are():
    text = (REPOSITORY / "docs" / "house.md").read_text()
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|csv))`", text)
    files = [file for file in named if "/" in file]
    assert [f for f in files if not (REPOSITORY / f).exists() and not (REPOSITORY / "popgeo" / f).exists()] == []
    floors = {}
    for folders, allowed in re.findall(r"^\| [2-5] \| ([^|]+) \|[^|]+\| ([^|]+) \|$", text, flags=re.MULTILINE):
        if allowed == "anything below":
            continue
        floors |= {folder: set(re.findall(r"\w+", allowed)) for folder in re.findall(r"\w+", folders)}
    assert floors == {folder: allowed for folder, allowed in MAY_IMPORT.items() if folder not in GROUND}
    ground = re.search(r"^\| 1 \| ([^|]+) \|", text, flags=re.MULTILINE)
    assert set(re.findall(r"\w+", ground[1])) == GROUND


def test_the_pictures_are_what_their_script_draws(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import draw_flow

    drawn = draw_flow.draw()
    assert {"flow.svg", "flow_phone.svg"} == {*drawn}
    assert {name: (draw_flow.PICTURES / name).read_text() for name in drawn} == drawn


def test_the_picture_of_the_folders_is_what_the_imports_say(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import draw_layers

    assert {*draw_layers.ABOUT} == {path.parent.name for path in (REPOSITORY / "popgeo").glob("*/*.py")}
    assert draw_layers.draw() == draw_layers.PICTURE.read_text(), "run python scripts/draw_layers.py"
    with pytest.raises(ValueError, match=r"circle: \['a', 'b'\]"):
        draw_layers.floors({"a": {"b"}, "b": {"a"}, "c": set()})


def test_contributing_is_a_short_read():
    assert len(CONTRIBUTING.read_text().split()) <= 600, "move details to docs/house.md"


def test_the_site_is_built_without_a_warning(tmp_path: Path):
    pytest.importorskip("sphinx", reason="sphinx is not installed: pip install '.[docs]' in a clone")
    # The default theme would take half of the time, and the garbage collector a fifth.
    build = "import gc, sys; from sphinx.cmd.build import main; gc.disable(); sys.exit(main(sys.argv[1:]))"
    options = ["-W", "--keep-going", "-q", "-D", "html_theme=basic", "-D", "html_permalinks=0", "-b", "html", "docs"]
    run = subprocess.run(
        [*quick_python.command(), "-c", build, *options, str(tmp_path)],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=480,
    )
    assert run.returncode == 0, run.stderr
    pages = [page.read_text() for page in tmp_path.rglob("*.html")]
    words = [alt for page in pages for alt in re.findall(r'<img [^>]*?alt="([^"]*)"', page)]
    assert len(words) > 40
    assert [alt for alt in words if not alt or re.search(r"\.(png|svg)$", alt)] == [], "pictures without a description"
    inventory = (
        (tmp_path / "objects.inv").read_bytes().split(b"\n", 4)[4]
    )  # one line per name, after four lines of text
    described = {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}
    for face in MODULES:
        module = importlib.import_module(face)
        held = ((name, getattr(module, name)) for name in dir(module))  # includes lazily imported names
        own = [n for n, one in held if isinstance(one, type | FunctionType) and one.__module__.startswith("popgeo")]
        public = [name for name in own if not name.startswith("_")]
        assert public
        # Names that are also at the top of the package are described only in their module.
        assert [name for name in public if not any(f"{part}.{name}" in described for part in MODULES)] == []
        if face != "popgeo":
            begin, _, rest = (tmp_path / "api" / f"{face.rpartition('.')[2]}.html").read_text().partition("</table>")
            assert [name for name in public if f">{name}</span>" not in begin] == [], f"{face}: not in the first table"
            heads = re.findall(r'class="sig-name descname"><span class="pre">(\w+)<', rest)
            main = {"popgeo.data": "FixedSizeOptions", "popgeo.loader": "FixedSizeDataLoader", "popgeo.ipu": "Options"}
            assert heads[0] == main.get(face, heads[0])


@pytest.mark.parametrize(("name", "least"), [("what_popgeo_promises", 12), ("what_a_fixed_shape_promises", 4)])
def test_every_promise_names_a_test_that_is_there(name: str, least: int):
    page = (REPOSITORY / "docs" / "guides" / f"{name}.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", page))
    assert len(named) > least
    assert [test for test in named if "def test_" not in (REPOSITORY / test).read_text()] == []
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if row[-1].strip() not in ("shown by", "---")]
    without = [row[0].strip() for row in promises if "`tests/" not in row[-1] and "the same" not in row[-1]]
    # The row about pickle promises nothing, so it needs no test.
    assert [what for what in without if "pickle" not in what] == []
