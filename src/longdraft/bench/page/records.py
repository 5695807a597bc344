"""The end of the page: every record that a table shows, and the runs that made them."""

from __future__ import annotations

from html import escape
from typing import Any

from longdraft.bench.grouping import Record, anchor
from longdraft.bench.report import ComparedRecords, Section

COLUMNS = {  # of a task: {heading: field of the record}
    "speed": {
        "repeat": "repeat",
        "tokens/s": "tokens_per_s",
        "prefill (s)": "prefill_s",
        "drafter's start (s)": "start_s",
        "decoding (s)": "decode_s",
        "accepted length": "mean_acceptance_length",
        "steps": "verify_steps",
        "equal to plain": "equal",
    },
    "suite": {
        "instance": "instance",
        "turn": "turn",
        "repeat": "repeat",
        "prompt": "prompt_tokens",
        "new": "new_tokens",
        "tokens/s": "tokens_per_s",
        "prefill (s)": "prefill_s",
        "decoding (s)": "decode_s",
        "accepted length": "mean_acceptance_length",
        "distinct 3-grams": "distinct_3",
        "equal to plain": "equal",
    },
    "steps": {"milliseconds of each turn": "ms"},
    "anchored": {
        "accepted length": "mean_acceptance_length",
        "standard error": "stderr",
        "clustered": "stderr_clustered",
        "anchors": "anchors",
        "windows": "windows",
    },
}


def run_ids(report: list[Section]) -> dict[str, str]:
    """{the `run` of a record: its id on the page}; what a record says is never an id itself."""
    runs = dict.fromkeys(str(r["run"]) for s in report for r in s.records)
    return {run: f"run{i}" for i, run in enumerate(runs, 1)}


def runs(report: list[Section], ids: dict[str, str]) -> str:
    """The fields that all records of a run share."""
    firsts = {str(r["run"]): r for s in reversed(report) for r in reversed(s.records)}
    return "".join(_run(firsts[run], i) for run, i in ids.items())


def _run(r: Record, i: str) -> str:
    code = f"{r['git_sha'] or 'no checkout'}{' with changes' if r['git_dirty'] else ''}"
    kernels = f", {r['kernels']} kernels" if r.get("kernels") else ""
    step = f"native step{kernels}" if r["native"] else "Transformers forward"
    said = {
        "command": r["command"],
        "git revision": code,
        "versions": _pairs(r["versions"]),
        "device": f"{r['device']}, {r['threads']} threads, {step}",
        "seed": r["seed"],
        "time": r["time"],
        "weights": f"{r['model']}, sha256 {r.get('weights_sha256') or 'not known'}",
        "environment": _pairs(r["environment"]),
    }
    rows = "".join(
        f"<dt>{k}</dt><dd><code>{escape(str(v))}</code></dd>" for k, v in said.items() if v != ""
    )
    return f'<h3 id="{i}">Run {i[3:]}</h3><dl class="run">{rows}</dl>\n'


def _pairs(fields: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in fields.items())


def records(section: Section, number: int, ids: dict[str, str]) -> str:
    """The records of one table, a group for each of its rows."""
    columns = COLUMNS[section.records[0]["task"]]
    groups = "".join(_group(s, columns, ids) for s in section.sources)
    title = f'<h3 id="t{number}-records">Records of <a href="#t{number}">table {number}</a></h3>'
    return (
        f'{title}<div class="scroll" tabindex="0"><table class="records">{groups}</table></div>\n'
    )


def _group(source: ComparedRecords, columns: dict[str, str], ids: dict[str, str]) -> str:
    """Headings are repeated in each group, since links lead into the middle of the table."""
    first = source.own[0]
    others = source.others
    about = f"{first['context']}, {first['label']}"
    about += f" ({_pairs(first['options'])})" if first.get("options") else ""
    about += f", {first['peer']} {first.get('peer_version', '')}" if "peer" in first else ""
    beside = (
        f'; compared with <a href="#{anchor(others)}">{escape(str(others[0]["label"]))}</a>'
        if others
        else ""
    )
    heads = "".join(f"<td>{escape(h)}</td>" for h in ("record", *columns, "run", "file and line"))
    head = (
        f'<tr><th colspan="{len(columns) + 3}">{escape(about)}{beside}</th></tr><tr '
        f'class="heads">{heads}</tr>'
    )
    return (
        "<tbody "
        f'id="{anchor(source.own)}">{head}{"".join(_record(r, columns, ids) for r in source.own)}</tbody>\n'
    )


def _record(r: Record, columns: dict[str, str], ids: dict[str, str]) -> str:
    name = f"r{r['record']}"
    run = ids[str(r["run"])]
    values = [escape(_value(r.get(field))) for field in columns.values()]
    cells = [name, *values, f'<a href="#{run}">{run[3:]}</a>', escape(str(r.get("where", "")))]
    return f'<tr id="{name}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _value(x: Any) -> str:
    if isinstance(x, list):
        return " ".join(map(_value, x))
    if isinstance(x, bool):
        return "yes" if x else "no"
    if x is None:
        return ""
    return f"{x:.6g}" if isinstance(x, float) else str(x)
