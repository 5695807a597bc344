"""Records -> tables. The terminal and the Markdown show the same ones, rebuilt from the records alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich import box
from rich.table import Table

from longdraft.bench.averages import mean_and_errors, paired
from longdraft.engine import rates
from longdraft.errors import InputError

Record = dict[str, Any]
# Records that differ in one of these never share a table.
SETTING = ("model", "weights_sha256", "dtype", "device", "threads", "text_name", "text_sha256", "temperature")
SETTING += ("native", "kernels", "environment", "git_sha", "settle", "oracle")
REPEATS = 5  # of a cell, below which a table says that they are few
LOOPS = 0.6  # share of distinct 3-grams below which a text is said to loop


@dataclass
class Section:
    """A table under a heading, with notes on where it comes from."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]


def sections(records: list[Record]) -> list[Section]:
    """Real acceptance, the oracle's and anchored ones stand in tables apart."""
    speed = [r for r in rates.completed(records) if r["task"] == "speed"]
    found = [_speed(g) for g in _grouped([r for r in speed if "oracle" not in r], "batch", "new_tokens")]
    found += [_speed(g) for g in _grouped([r for r in speed if "oracle" in r], "batch", "new_tokens")]
    found += [_steps(g) for g in _grouped([r for r in records if r["task"] == "steps"], "run")]
    return found + [_anchored(g) for g in _grouped([r for r in records if r["task"] == "anchored"], "run")]


def _grouped(records: list[Record], *more: str) -> list[list[Record]]:
    """In order of first appearance, by setting."""
    groups: dict[tuple, list[Record]] = {}
    for r in records:
        groups.setdefault(tuple(str(r.get(k)) for k in (*SETTING, *more)), []).append(r)
    return list(groups.values())


def _cells(records: list[Record]) -> Iterable[tuple[int, str, list[Record]]]:
    """(context, label, records), contexts ascending, methods in order of first appearance."""
    labels = list(dict.fromkeys(r["label"] for r in records))
    for context in sorted({r["context"] for r in records}):
        for label in labels:
            same = [r for r in records if r["context"] == context and r["label"] == label]
            if same:
                yield context, label, same


def ratios(records: list[Record], everything: list[Record], name: str = "speedup") -> list[float]:
    """A speedup (rates.SPEEDUPS) of each record over the median plain of its own run and context."""
    found = []
    for r in records:
        plains = [
            p for p in everything if p["method"] == "plain" and (p["run"], p["context"]) == (r["run"], r["context"])
        ]
        keep_ratio = rates.speedups(r, plains)[name]
        if keep_ratio is not None:
            found.append(keep_ratio)
    return found


def _speed(records: list[Record]) -> Section:
    first, rows = records[0], []
    drafting = [r["options"] for r in records if {"gamma", "widths"} & r["options"].keys()]
    gammas = sorted({o.get("gamma") or o["widths"].count("1") for o in drafting})
    for context, label, same in _cells(records):
        rows.append(
            [
                f"{context}",
                label,
                _spread([r["tokens_per_s"] for r in same], "{:.1f}"),
                *(_spread(ratios(same, records, name), "{:.2f}x") for name in rates.SPEEDUPS),
                f"{fmean(r['mean_acceptance_length'] for r in same):.2f}",
                _equal(same),
                f"{len(same)}",
            ]
        )
    about = f"{first['model']}, {first['dtype']}, batch {first['batch']}, {_text(first)}, T={first['temperature']:g}"
    if "oracle" in first:
        drafted = " or ".join(map(str, gammas))
        title = f"Speed at a stated acceptance (oracle: {first['oracle']:g} of {drafted} drafts accepted; cost only)"
    else:
        title = "Speed, real acceptance"
    header = ["context", "method", "tokens/s", "speedup", "end to end", "steady"]
    header += ["accepted length", "equal to plain", "repeats"]
    new = first["new_tokens"] if first["batch"] == 1 else first["new_tokens"][0]
    notes = [
        f"{new} new tokens a row; medians (least to most). Speedup counts from the end of the target's prefill, the"
        " drafter's start included; end to end counts the prefill too; steady counts rounds alone."
    ]
    few = min(len(same) for _, _, same in _cells(records))
    if few < REPEATS:
        notes.append(f"Only {few} repeats: too few to tell small differences from noise.")
    notes += [*_exact_notes(records), *_stock_notes(records), *_bandwidth_notes(records), *_loop_notes(records)]
    notes += [*_distinct_notes(records), *_origin(records)]
    return Section(f"{title}: {about}", header, rows, notes)


def _exact_notes(records: list[Record]) -> list[str]:
    """Where equality is not promised; records from before `exact` was written say `native`, which is the same."""
    if all(r.get("exact", r["native"]) for r in records):
        return []
    return ["This backend is not bit-exact: equality is not guaranteed, since ties can fall either way."]


def _stock_notes(records: list[Record]) -> list[str]:
    """How our plain decoding stands to the better of Transformers' own."""
    found = []
    for context in sorted({r["context"] for r in records}):
        speeds = {
            name: median(r["tokens_per_s"] for r in records if (r["context"], r["method"]) == (context, name))
            for name in {r["method"] for r in records if r["context"] == context}
        }
        stock = {k: v for k, v in speeds.items() if k.startswith("hf-")}
        if stock and "plain" in speeds:
            best = max(stock, key=lambda k: stock[k])
            found.append(f"At {context} plain is {speeds['plain'] / stock[best]:.2f}x of {best}.")
    return found


def _bandwidth_notes(records: list[Record]) -> list[str]:
    found = []
    for context in sorted({r["context"] for r in records}):
        shares = [r for r in records if r["context"] == context and "bandwidth_share" in r]
        if shares:
            share = median(r["bandwidth_share"] for r in shares)
            read = median(r["bandwidth_gb_s"] for r in shares)
            size = shares[0]["bytes_per_step"] / 1e6
            found.append(f"At {context} plain reads {size:.0f} MB a step: {share:.0%} of the measured {read:.1f} GB/s.")
    return found


def _loop_notes(records: list[Record]) -> list[str]:
    """Text in a loop is easy to draft, so the acceptance measured on it proves nothing."""
    found = []
    for context in sorted({r["context"] for r in records}):
        shares = [r["distinct_3"] for r in records if (r["context"], r["method"]) == (context, "plain")]
        if shares and median(shares) < LOOPS and "oracle" not in records[0]:
            found.append(f"At {context} only {median(shares):.0%} of the new text's 3-grams are distinct: it loops.")
    return found


def _distinct_notes(records: list[Record]) -> list[str]:
    """Distinct-1 to 4 of plain's text, TokenSwift's measure of how little a long text repeats itself."""
    found = []
    for context in sorted({r["context"] for r in records}):
        plain = [r for r in records if (r["context"], r["method"]) == (context, "plain") and "distinct_1" in r]
        if plain:
            shares = " ".join(f"{median(r[f'distinct_{n}'] for r in plain):.2f}" for n in range(1, 5))
            found.append(f"At {context} Distinct-1 to 4 of the new text: {shares}.")
    return found


def _anchored(records: list[Record]) -> Section:
    first, rows = records[0], []
    labels = list(dict.fromkeys(r["label"] for r in records))
    ours = next((x for x in labels if x.split("@")[0] == "vegas"), labels[0])
    for context, label, same in _cells(records):
        r = same[0]
        anchor = next((x for x in records if (x["context"], x["label"]) == (context, ours)), None)
        gain = "" if anchor is None or anchor is r else _gain(anchor["accepted"], r["accepted"])
        length = f"{r['mean_acceptance_length']:.3f} ± {_plus(r['stderr'])} ({_plus(r['stderr_clustered'])})"
        positions = " ".join(f"{p:.2f}" for p in r["acceptance_per_position"])
        rows.append([f"{context}", label, length, gain, positions, f"{r['anchors']} in {r['windows']}"])
    title = f"Acceptance on real text: {first['model']}, {first['dtype']}, {_text(first)}, T={first['temperature']:g}"
    header = ["context", "method", "accepted length", f"{ours} minus this", "accepted by position", "anchors, windows"]
    notes = [
        "Accepted length: 1 + accepted drafts of a step, bonus token included; ± standard error over anchors (clustered"
        " by window). Every method stood at the same anchors; differences are paired, with the clustered error.",
        f"An anchor every {first['every']} tokens; speculative steps before the measured one: {first['settle']}.",
    ]
    if any(r.get("interrupted") for r in records):
        notes.append("The run was interrupted: these are the anchors it had reached.")
    return Section(title, header, rows, notes + _origin(records))


def _steps(records: list[Record]) -> Section:
    first, rows = records[0], []
    for context, label, same in _cells(records):
        plain = next(r for r in records if (r["context"], r["label"]) == (context, "plain"))
        share = median(same[0]["ms"]) / median(plain["ms"])
        rows.append([f"{context}", label, _spread(same[0]["ms"], "{:.3f}"), f"{share:.3f}"])
    notes = [f"Milliseconds of one call: medians (least to most) of {len(first['ms'])} interleaved turns."]
    for context in sorted({r["context"] for r in records}):
        ms = {r["label"]: median(r["ms"]) for r in records if r["context"] == context}
        plain = next(r for r in records if (r["context"], r["label"]) == (context, "plain"))
        least = plain["bytes_per_step"] / 1e6 / plain["bandwidth_gb_s"]
        whole = 7 * ms["draft at 7%"] + ms["verify 8 rows, scores kept"] + ms["choose and copy 7%"]
        part = ms["choose and copy 7%"] / whole
        notes.append(
            f"At {context} plain takes {ms['plain'] / least:.2f} times what reading its bytes at the measured bandwidth"
            f" takes; choosing and copying is {part:.1%} of a round of vegas (7 drafts)."
        )
    title = f"Cost of a step: {first['model']}, {first['dtype']}, {_text(first)}"
    return Section(title, ["context", "step", "ms", "over plain"], rows, notes + _origin(records))


def _gain(a: list[list[int]], b: list[list[int]]) -> str:
    mean, simple, clustered = mean_and_errors(paired(a, b))
    return f"{mean:+.3f} ± {_plus(clustered if clustered is not None else simple)}"


def _equal(same: list[Record]) -> str:
    """Whether every text was plain decoding's; if not, by how much the target preferred its own token at most."""
    damage = next((r["damage"] for r in same if "damage" in r), None)
    if damage:
        return f"NO: it changed {damage}"
    equal = sum(r["equal"] for r in same)
    gaps = [r["first_difference"]["top2_gap"] for r in same if r["first_difference"]]
    size = "unbounded" if None in gaps else f"{max(gaps, default=0):.3g}"
    return "yes" if equal == len(same) else f"{equal} of {len(same)}, top-2 gap {size}"


def _plus(error: float | None) -> str:
    return "?" if error is None else f"{error:.3f}"


def _spread(values: list[float], shape: str) -> str:
    if not values:
        return ""
    low, mid, high = (shape.format(f(values)) for f in (min, median, max))
    return mid if len(values) == 1 else f"{mid} ({low} to {high})"


def _text(r: Record) -> str:
    return f"text {r['text_name']} ({r['text_sha256'][:8]})"


def _origin(records: list[Record]) -> list[str]:
    """Machine, versions and command of every run in the table."""
    found = []
    for r in {r["run"]: r for r in records}.values():
        code = (r["git_sha"] or "no checkout")[:12] + (" with changes" if r["git_dirty"] else "")
        build = f" ({r['kernels']})" if r.get("kernels") else ""
        step = f"native step{build}" if r["native"] else "Transformers forward"
        parts = [r["time"], code, f"{r['device']}, {r['threads']} threads, {step}", f"seed {r['seed']}"]
        parts += [f"{k}={v}" for k, v in r["environment"].items()]
        parts += [f"{k} {v}" for k, v in r["versions"].items()]
        found.append(f"{'; '.join(parts)}: `{r['command']}`")
    return found


def rich_table(section: Section) -> Table:
    table = Table(title=section.title, title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(section.header):
        table.add_column(name, justify="left" if i == 1 else "right", overflow="fold")
    for row in section.rows:
        table.add_row(*row)
    return table


def markdown(found: list[Section]) -> str:
    parts = ["# longdraft: measurements\n"]
    for s in found:
        parts.append(f"## {s.title}\n")
        lines = [s.header, ["---"] * len(s.header), *s.rows]
        parts.append("\n".join("| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines) + "\n")
        parts.append("\n".join(f"- {note}" for note in s.notes) + "\n")
    return "\n".join(parts)


def write(records: list[Record], out: Path) -> Path:
    """report.md in `out`. Raises InputError."""
    if not records:
        raise InputError("the files hold no records: run longdraft bench --out FILE first")
    try:
        out.mkdir(parents=True, exist_ok=True)
        path = out / "report.md"
        path.write_text(markdown(sections(records)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write to {out} ({error.strerror}): give --out a folder") from None
    return path
