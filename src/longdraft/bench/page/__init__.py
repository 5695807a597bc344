"""One HTML page with the tables, plots and records of a report: no scripts, and nothing fetched
from elsewhere.
"""

from __future__ import annotations

import re
from html import escape

from longdraft.bench.grouping import anchor
from longdraft.bench.notes import origin
from longdraft.bench.page import records
from longdraft.bench.page.style import CSS
from longdraft.bench.plots import Plot
from longdraft.bench.plots.draw import PAGE
from longdraft.bench.plots.svg import inline
from longdraft.bench.report import ComparedRecords, Section

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>longdraft: measurements</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
"""
ABOUT = "Every number links to the records that it was computed from, and every record to its run:"
ABOUT += " command, code, versions, machine and seed."


def page(report: list[Section], drawn: list[list[Plot]], missing: str = "") -> str:
    """The text of the page; missing: why it has no plots. What records say is escaped, so it stays
    text.
    """
    ids = records.run_ids(report)
    tables = [
        _section(s, plots, i, ids)
        for i, (s, plots) in enumerate(zip(report, drawn, strict=True), 1)
    ]
    listed = [records.records(s, i, ids) for i, s in enumerate(report, 1)]
    about = ABOUT + (f" This page has {escape(missing)}." if missing else "")
    return "".join(
        [
            f"{HEAD}<style>{CSS}</style></head><body>\n<h1>longdraft: "
            f"measurements</h1>\n<p>{about}</p>\n",
            _contents(report),
            *tables,
            f'<h2 id="runs">Runs</h2>\n{records.runs(report, ids)}<h2 id="records">Records</h2>\n',
            *listed,
            "</body></html>\n",
        ]
    )


def _contents(report: list[Section]) -> str:
    entries = "".join(
        f'<li><a href="#t{i}">{escape(s.title)}</a></li>' for i, s in enumerate(report, 1)
    )
    summary = f"<summary>{len(report)} table{'s' * (len(report) > 1)}</summary>"
    last = '<p><a href="#runs">Runs</a>, <a href="#records">records</a></p>'
    return f"<nav><details{' open' * (len(report) < 9)}>{summary}<ol>{entries}</ol></details>{last}</nav>\n"


def _section(s: Section, plots: list[Plot], number: int, ids: dict[str, str]) -> str:
    heads = "".join(f'<th scope="col">{escape(h)}</th>' for h in s.header)
    rows = "".join(_row(row, source) for row, source in zip(s.rows, s.sources, strict=True))
    return (
        f'<h2 id="t{number}">{number}. {escape(s.title)}</h2>\n{_plots(plots, number)}'
        '<div class="scroll" '
        f'tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>\n'
        f"{_notes(s, number, ids)}"
    )


def _row(row: list[str], source: ComparedRecords) -> str:
    """The first two cells say what was measured; each of the others links to the records of the
    row.
    """
    linked = [
        f'<a href="#{anchor(source.own)}">{escape(cell)}</a>' if cell else "" for cell in row[2:]
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in (*map(escape, row[:2]), *linked))}</tr>\n"


def _plots(plots: list[Plot], number: int) -> str:
    drawn = [_figure(plot, f"t{number}-{plot.name}") for plot in plots]
    return f'<div class="plots">{"".join(drawn)}</div>\n' if drawn else ""


def _figure(plot: Plot, name: str) -> str:
    return (
        f'<figure id="{name}" '
        f'aria-label="{escape(plot.title)}">{inline(plot.svg, name, PAGE)}</figure>\n'
    )


def _notes(s: Section, number: int, ids: dict[str, str]) -> str:
    """Links to the runs, which show what their records share."""
    told = set(origin(s.records))
    seen = dict.fromkeys(str(r["run"]) for r in s.records)
    notes = [_code(note) for note in s.notes if note not in told]
    runs = ", ".join(f'<a href="#{ids[run]}">run {ids[run][3:]}</a>' for run in seen)
    notes.append(f'From {runs}; <a href="#t{number}-records">all records of this table</a>.')
    return f'<ul class="notes">{"".join(f"<li>{note}</li>" for note in notes)}</ul>\n'


def _code(note: str) -> str:
    return re.sub(r"`(.*?)`", r"<code>\1</code>", escape(note))
