"""A report from a stranger's file is valid or refused, and its page runs only its own script."""

import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from popgeo import ipu
from popgeo.ipu import Report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MARKUP = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


@pytest.fixture(scope="module")
def written() -> str:
    return ipu.compile(lambda x: (x @ x).softmax(1), [torch.ones(8, 8)]).report.to_json()


def changed(written: str, change: Callable[[dict], Any]) -> str:
    content = json.loads(written)
    change(content)
    return json.dumps(content)


NONSENSE = {
    "no costs": lambda c: c.pop("costs"),
    "markup for a number": lambda c: c.update(micro_batches=MARKUP),
    "a number below zero": lambda c: c.update(calls=-1),
    "no number": lambda c: c.update(compile_seconds=float("nan")),
    "an endless number": lambda c: c.update(run_seconds=float("inf")),
    "a number beyond all": lambda c: c.update(micro_batches=10**400),
    "a truth for a number": lambda c: c.update(replicas=True),
    "a list for a target": lambda c: c.update(target=[]),
    "no target": lambda c: c.pop("target"),
    "no clock": lambda c: c["target"].update(clock=0),
    "a profile that is none": lambda c: c.update(profile="best"),
    "costs that are text": lambda c: c.update(costs="all"),
    "a cost that is null": lambda c: c["costs"].append(None),
    "a plan without a family": lambda c: c["costs"][1]["plan"].pop("family"),
    "a split by text": lambda c: c["costs"][1]["plan"].update(split={"rows": "four"}),
    "an activity that is none": lambda c: c["costs"][1]["plan"]["supersteps"][0].update(activity="play"),
    "tiles that are text": lambda c: c["memory"].update(peak=["a"]),
    "tiles of numbers that no computer has": lambda c: c["memory"].update(peak=[2**80]),
    "memory of no tile": lambda c: c["memory"].update(categories={}, peak=[], curve=[], always_live=[]),
    "slots that are no number": lambda c: c.update(real_of_slots={"many": 1.0}),
    "state of a text": lambda c: c.update(state_bytes="1"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_as_a_value_error(written: str, name: str):
    if name == "memory of no tile" and json.loads(written)["memory"] is None:
        pytest.skip("the report has no memory")
    text = changed(written, NONSENSE[name])
    if name == "no costs":
        assert Report.from_json(text).costs == ()
        return
    with pytest.raises(ValueError, match=r"report|Activity|Profile|IpuTarget"):
        Report.from_json(text)


def test_a_message_names_the_field_and_what_stands_there(written: str):
    text = changed(written, lambda c: c["costs"][1]["plan"]["supersteps"][0].update(tiles="all of them"))
    with pytest.raises(
        ValueError, match=r"report\.costs\[1\]\.plan\.supersteps\[0\]\.tiles is 'all of them', which is"
    ):
        Report.from_json(text)


@pytest.mark.parametrize(
    "text", ["[" * 10**5, '{"a":' * 10**5, "", "null", "7", '"x"', "{}", b"\x00\xff".decode("latin1")]
)
def test_a_text_that_is_no_report_is_refused(text: str):
    with pytest.raises(ValueError, match="No report"):
        Report.from_json(text)


def fields_of(part: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each place of a nest as its container and key."""
    for key in part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
        yield part, key
        yield from fields_of(part[key])


@pytest.mark.parametrize("kind", ["report", "pipeline"])
def test_what_is_read_can_be_shown_whatever_was_changed(written: str, kind: str):
    draw = random.Random(0)
    if kind == "pipeline":
        layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
        whole = ipu.pipeline(layers, [torch.ones(4, 8)], ipu.Options(device_iterations=4), stages=2)
        text, read = whole.to_json(), type(whole).from_json
    else:
        text, read = written, Report.from_json
    for _ in range(6):
        content = json.loads(text)
        holder, key = draw.choice(list(fields_of(content)))
        holder[key] = draw.choice([None, -1, 0, 10**30, 0.5, "", MARKUP, [], {}, [[[]]], True, [1, "a"], {"a": MARKUP}])
        try:
            report = read(json.dumps(content))
        except ValueError:
            continue
        for form in (str(report), report.to_html(), report._repr_html_(), report.to_chrome_trace(), report.to_json()):
            assert form
        assert "<img" not in report.to_html()
        assert "<img" not in report._repr_html_()


MEANT = ("schema", "profile", "activity", "validity", "phase", "shapes")


def marked(part: Any) -> Any:
    """Return the nest with markup in all its texts, except texts of a fixed form."""
    if isinstance(part, dict):
        return {key: held if key in MEANT else marked(held) for key, held in part.items()}
    if isinstance(part, list):
        return [marked(item) for item in part]
    return part + MARKUP if isinstance(part, str) else part


def test_markup_in_any_text_stays_text_in_the_page(written: str):
    report = Report.from_json(json.dumps(marked(json.loads(written))))
    for page in (report.to_html(title=MARKUP), report._repr_html_()):
        assert "<img" not in page
        assert "<script>document" not in page


@pytest.mark.skipif(BROWSER is None, reason="no browser: apt-get install chromium")
def test_in_a_browser_the_page_runs_its_own_script_and_no_other(written: str, tmp_path):
    """Check the page in a browser, with markup in the report."""
    page = Report.from_json(written).to_html(title="quiet")
    assert page.count("<main>") == 1
    (tmp_path / "page.html").write_text(
        page.replace("<main>", f"<main>{MARKUP}<a href=\"javascript:document.title='run'\">")
    )
    (tmp_path / "free.html").write_text(
        re.sub(r"<meta http-equiv[^>]*>", "", page).replace("<main>", f"<main>{MARKUP}")
    )
    titles = {}
    for name in ("page", "free"):
        shown = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / name}", "--dump-dom",
             "--virtual-time-budget=2000", (tmp_path / f"{name}.html").as_uri()],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip
        titles[name] = re.search(r"<title>(.*?)</title>", shown)[1]
        assert "aria-sort" in shown  # only the page's own script writes it
    assert titles == {"page": "quiet", "free": "run"}


def test_a_report_is_written_as_a_whole_or_not_at_all(written: str, tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("before")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        Report.from_json(written).to_html(path)
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]
