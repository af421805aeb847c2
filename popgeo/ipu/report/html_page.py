"""What all pages of reports are made of: one look, and parts of HTML that need nothing but a browser."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from popgeo.ipu.report.cost_rows import Row
from popgeo.ipu.report.insights import Insight
from popgeo.ipu.report.tables import TableColumn
from popgeo.quantity import quantity

PARTS = Path(__file__).with_name("page")


def shell(title: str, about: str, sections: Mapping[str, str], data: str = "", script: str = "") -> str:
    """A whole page in the one look of all of them.

    Args:
        title: What it is called.
        about: What stands below that, in HTML.
        sections: Each part with its name, whose first word is its id, as HTML; empty ones are left out.
        data: What the script draws, as JSON.
        script: All that the page does; a browser runs nothing else, wherever it is in the page.
    """
    shown = {name: part for name, part in sections.items() if part}
    nav = "".join(f'<a href="#{s.split()[0]}">{s}</a>' for s in shown)
    style = (PARTS / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"sha256-{digest}" if script else "none"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src '{allowed}'; base-uri 'none'"
    held = data.replace("<", "\\u003c")
    scripts = (
        f'<script type="application/json" id="report">{held}</script>\n<script>{script}</script>\n' if script else ""
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n{about}\n<nav>{nav}</nav>\n"
        + "\n".join(shown.values())
        + f'\n</main>\n<div id="tip"></div>\n{scripts}</body>\n</html>\n'
    )


def section(name: str, heading: str, content: str, about: str = "") -> str:
    """A part of a page; `name` is its id, and `about` stands below its heading."""
    soft = f'<p class="soft">{escape(about)}</p>' if about else ""
    return f'<section id="{name}"><h2>{heading}</h2>{soft}{content}</section>'


def totals(cards: Iterable[tuple[str, str]], parts: Mapping[str, float], names: Mapping[str, str]) -> str:
    """The figures to look at first, each with what it is, above a bar of what a step is spent on.

    Args:
        cards: Figures, and what they are.
        parts: What a step is spent on.
        names: What the key calls the parts; those that are left out are not in it.
    """
    whole = sum(parts.values()) or 1.0
    boxes = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for value, label in cards
    )
    bar = "".join(
        f'<div style="flex:{n / whole:.6f};background:var(--{part})"></div>' for part, n in parts.items() if n
    )
    words = {part: f"{name} {parts[part] / whole:.1%}" for part, name in names.items()}
    return section("totals", "Totals", f'<div class="cards">{boxes}</div><div class="bar">{bar}</div>{key(words)}')


def key(names: Mapping[str, str]) -> str:
    """What each colour represents."""
    items = "".join(f'<span><i style="background:var(--{name})"></i>{words}</span>' for name, words in names.items())
    return f'<div class="key" style="margin-top:8px">{items}</div>'


def table(columns: Sequence[TableColumn], rows: Sequence[Row], headings: Mapping[str, str] | None = None) -> str:
    """Rows with the units of their columns; a heading tells what its column means."""
    words = {c.name: ' class="words"' if rows and isinstance(rows[0][c.name], str) else "" for c in columns}
    head = "".join(
        f'<th{words[c.name]} title="{escape(c.about)}">{(headings or {}).get(c.name, c.name)}</th>' for c in columns
    )
    body = "".join(
        "<tr>" + "".join(f"<td{words[c.name]}>{_cell(row[c.name], c.unit)}</td>" for c in columns) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any, unit: str) -> str:
    if unit == "0 to 1":
        return f"{value:.0%}"
    if unit == "B":
        return quantity(value, "B")
    return f"{value:,.0f}" if unit else escape(str(value))


def summary(bold: str, rest: str, columns: Sequence[TableColumn], rows: Sequence[Row], found: Iterable[Insight]) -> str:
    """What a notebook shows of a report: its figures, a table, and what stands out."""
    items = "".join(f"<li><b>{escape(i.title)}</b>: {escape(i.text)} {escape(i.remedy)}</li>" for i in found)
    return f"<p><b>{escape(bold)}</b>{escape(rest)}</p>{table(columns, rows)}<ul>{items}</ul>"


def insights_section(found: Sequence[Insight], of: str = "the cycles") -> str:
    """What stands out, each with its remedy."""
    items = "".join(_insight(insight, of) for insight in found)
    return section("insights", "What stands out", items or "<p>Nothing.</p>")


def _insight(insight: Insight, of: str) -> str:
    share = f"{insight.share:.1%} of {of}" if insight.share else ""
    return (
        f'<div class="insight{" fatal" if insight.fatal else ""}"><b>{escape(insight.title)}</b> '
        f'<span class="share">{share}</span><p>{escape(insight.text)}</p>'
        f'<p class="do">{escape(insight.remedy)}</p></div>'
    )
