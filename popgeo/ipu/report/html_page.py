"""The common parts of all HTML pages of reports; they need only a browser."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from popgeo.ipu.report.cost_rows import Row
from popgeo.ipu.report.insights import Insight
from popgeo.ipu.report.tables import TableColumn
from popgeo.quantity import quantity

PARTS = Path(__file__).with_name("page")


def shell(
    title: str,
    about: str,
    sections: Mapping[str, str],
    data: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = (),
) -> str:
    """Return a whole page in the common style.

    Args:
        title: Title of the page.
        about: HTML below the title.
        sections: HTML of each section by name; the first word of the name is the id. Empty sections are left out.
        data: Data for the scripts.
        scripts: Names of the page's scripts, in order. The page allows no other script.
    """
    shown = {name: part for name, part in sections.items() if part}
    script = script_of(*scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"sha256-{digest}" if script else "none"
    held = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    runs = f'<script type="application/json" id="report">{held}</script>\n<script>{script}</script>\n'
    return markup(
        "page.html",
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src '{allowed}'; base-uri 'none'",
        title=escape(title),
        style=(PARTS / "page.css").read_text(encoding="utf-8"),
        about=about,
        nav="".join(f'<a href="#{s.split()[0]}">{s}</a>' for s in shown),
        sections="\n".join(shown.values()),
        scripts=runs if script else "",
    )


def markup(name: str, **words: object) -> str:
    """Return the content of a file of the folder `page`, with its placeholders filled."""
    return Template((PARTS / name).read_text(encoding="utf-8")).substitute(words)


def script_of(*names: str) -> str:
    """Join several scripts in order."""
    return "\n".join((PARTS / f"{name}.js").read_text(encoding="utf-8") for name in names)


def section(name: str, heading: str, content: str, about: str = "") -> str:
    """Return a section of a page, with an id, a heading and an optional text below the heading."""
    soft = f'<p class="soft">{escape(about)}</p>' if about else ""
    return f'<section id="{name}"><h2>{heading}</h2>{soft}{content}</section>'


def totals(cards: Iterable[tuple[str, str]], parts: Mapping[str, float], names: Mapping[str, str]) -> str:
    """Return the section with the main figures above a bar of the parts of a step.

    Args:
        cards: The figures, each with a label.
        parts: Length of each part of a step.
        names: Name of each part in the legend. Parts without a name are not in the legend.
    """
    whole = sum(parts.values()) or 1.0
    boxes = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for value, label in cards
    )
    words = {part: f"{name} {parts[part] / whole:.1%}" for part, name in names.items()}
    return section("totals", "Totals", f'<div class="cards">{boxes}</div>{bar(parts, whole)}{key(words)}')


def bar(parts: Mapping[str, float], whole: float, longest: float = 0.0, *, limit: bool = False) -> str:
    """Return a bar of the parts of a whole, each with its name and share as a tip.

    Args:
        parts: Length of each part by name.
        whole: The value of 100 %.
        longest: Length of the longest of several bars, if it exceeds 100 %.
        limit: Whether a dashed line marks 100 %.
    """
    wide = 1 / max(whole, longest)
    pieces = "".join(
        f'<div style="width:{n * wide:.4%};background:var(--{part})" title="{part} {n / whole:.1%}"></div>'
        for part, n in parts.items()
        if n
    )
    line = f'<i class="limit" style="left:{whole * wide:.2%}"></i>' if limit else ""
    return f'<div class="bar">{pieces}{line}</div>'


def bars(rows: Sequence[Mapping[str, float]], parts: Sequence[str], whole: float, *, limit: bool = False) -> str:
    """Return a bar per IPU, with the share of all parts except waiting as text.

    Args:
        rows: One row per IPU.
        parts: Columns to join, in order.
        whole: The value of 100 %.
        limit: Whether a dashed line marks 100 %.
    """
    joined = [{part: of[part] for part in parts} for of in rows]
    longest = max(sum(of.values()) for of in joined)
    return "".join(
        f'<div class="ipu"><span>IPU {number}</span>{bar(of, whole, longest, limit=limit)}'
        f"<span>{(sum(of.values()) - of.get('wait', 0.0)) / whole:.0%}</span></div>"
        for number, of in enumerate(joined)
    )


def key(names: Mapping[str, str]) -> str:
    """Return the legend of the colours."""
    items = "".join(f'<span><i style="background:var(--{name})"></i>{words}</span>' for name, words in names.items())
    return f'<div class="key" style="margin-top:8px">{items}</div>'


def table(columns: Sequence[TableColumn], rows: Sequence[Row]) -> str:
    """Return rows as a table with units; each heading has its column's meaning as a tip."""
    words = {c.name: ' class="words"' if rows and isinstance(rows[0][c.name], str) else "" for c in columns}
    head = "".join(f'<th{words[c.name]} title="{escape(c.about)}">{c.heading or c.name}</th>' for c in columns)
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
    """Return the summary of a report for a notebook: its figures, a table and its insights."""
    items = "".join(f"<li><b>{escape(i.title)}</b>: {escape(i.text)} {escape(i.remedy)}</li>" for i in found)
    return f"<p><b>{escape(bold)}</b>{escape(rest)}</p>{table(columns, rows)}<ul>{items}</ul>"


def insights_section(found: Sequence[Insight], of: str = "the cycles") -> str:
    """Return the section with all insights."""
    items = "".join(
        f'<div class="insight{" fatal" if one.fatal else ""}"><b>{escape(one.title)}</b> '
        f'<span class="share">{f"{one.share:.1%} of {of}" if one.share else ""}</span><p>{escape(one.text)}</p>'
        f'<p class="do">{escape(one.remedy)}</p></div>'
        for one in found
    )
    return section("insights", "Insights", items or "<p>None.</p>")
