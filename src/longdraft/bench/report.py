"""Tables made from records alone, the same in the terminal and in Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from rich import box
from rich.table import Table

from longdraft.bench.averages import mean_and_errors, paired
from longdraft.bench.grouping import (
    STEP_PARTS,
    Record,
    by_instance,
    cells,
    grouped,
    numbered,
    ratios,
    spread,
    step_parts,
)
from longdraft.bench.notes import inexact, origin, speed_notes
from longdraft.errors import InputError
from longdraft.recording.decode_figures import SPEEDUPS, speedups

REPEATS = 5  # with fewer repeats, a table has a note


class ComparedRecords(NamedTuple):
    """The records that a row shows, and those that it is compared with."""

    own: list[Record]
    others: list[Record]


@dataclass
class Section:
    """A table with a heading and notes on its origin; every row has its sources."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]
    sources: list[ComparedRecords]  # of each row

    @property
    def records(self) -> list[Record]:
        return [r for source in self.sources for r in source.own]


def sections(records: list[Record]) -> list[Section]:
    """Separate tables for real acceptance, acceptance set by an oracle, costs of steps, and
    anchored acceptance.
    """
    tasks = {
        task: [r for r in numbered(records) if r["task"] == task]
        for task in ("speed", "suite", "steps", "anchored")
    }
    report = [
        _speed(g)
        for g in grouped(sorted(tasks["speed"], key=lambda r: "oracle" in r), "batch", "new_tokens")
    ]
    report += [
        _suite(g)
        for g in grouped(tasks["suite"], "suite", "ends", without=("text_name", "text_sha256"))
    ]
    report += [_steps(g) for g in grouped(tasks["steps"], "run")]
    report += [_anchored(g) for g in grouped(tasks["anchored"], "run")]
    _add_left_out(report, [r for r in records if r["task"] == "left out"])
    return report


def _add_left_out(report: list[Section], left_out: list[Record]) -> None:
    """Notes on the engines that could not be measured, under the tables of the same texts."""
    for section in report:
        texts = {(r["run"], r["text_name"]) for r in section.records}
        same = [r for r in left_out if (r["run"], r["text_name"]) in texts]
        section.notes[-1:-1] = dict.fromkeys(
            f"At {r['context']} {r['label']} is left out: {r['reason']}" for r in same
        )


def _speed(records: list[Record]) -> Section:
    first = records[0]
    rows = []
    sources = []
    for context, label, same in cells(records):
        runs = {r["run"] for r in same}
        plain = [
            r
            for r in records
            if r["method"] == "plain" and r["context"] == context and r["run"] in runs
        ]
        sources.append(ComparedRecords(same, [] if label == "plain" else plain))
        speeds = [_spread([r["tokens_per_s"] for r in same], "{:.1f}")]
        speeds += [_spread(ratios(same, records, name), "{:.2f}x") for name in SPEEDUPS]
        length = f"{fmean(r['mean_acceptance_length'] for r in same):.2f}"
        rows.append([f"{context}", label, *speeds, length, _equal(same), f"{len(same)}"])
    about = (
        f"{_model(first)}, {first['dtype']}, batch {first['batch']}, {_text(first)}, "
        f"{_sampling(first)}"
    )
    if "oracle" in first:
        depths = sorted({len(r["acceptance_per_position"]) for r in records} - {0})
        most = f" of {' or '.join(map(str, depths))}" if depths else ""
        drafted = f"{first['oracle']:g}{most} drafts"
        title = f"Speed at a given acceptance (oracle: {drafted} accepted per step; cost only)"
    else:
        title = "Speed, real acceptance"
    header = ["context", "method", "tokens/s", "speedup", "end to end", "steady"]
    header += ["accepted length", "equal to plain", "repeats"]
    new = first["new_tokens"] if first["batch"] == 1 else first["new_tokens"][0]
    notes = [
        f"{new} new tokens per row; medians (minimum to maximum). Speedup counts from the "
        "end of the target's"
        " prefill and includes the drafter's start; end to end includes the prefill; "
        "steady counts decoding steps only."
    ]
    few = min(len(same) for _, _, same in cells(records))
    if few < REPEATS:
        notes.append(f"Only {few} repeats: too few to distinguish small differences from noise.")
    return Section(f"{title}: {about}", header, rows, notes + speed_notes(records), sources)


def _suite(records: list[Record]) -> Section:
    """Tasks x contexts x methods: the medians over instances, each of which counts with the median
    of its repeats.
    """
    first = records[0]
    rows = []
    sources = []
    kinds, labels = (list(dict.fromkeys(r[name] for r in records)) for name in ("kind", "label"))
    plains = by_instance([r for r in records if r["method"] == "plain"])
    for kind, context, label in sorted(
        {(r["kind"], r["context"], r["label"]) for r in records},
        key=lambda place: (kinds.index(place[0]), place[1], labels.index(place[2])),
    ):
        same = [
            r for r in records if (r["kind"], r["context"], r["label"]) == (kind, context, label)
        ]
        instances = by_instance(same)
        others = [p for key in instances for p in plains.get(key, [])]
        sources.append(ComparedRecords(same, [] if label == "plain" else others))
        cells = [
            f"{_middle([[r['prompt_tokens']] for r in same]):.0f}",
            f"{_middle([[r['new_tokens']] for r in same]):.0f}",
        ]
        cells.append(
            f"{_middle([[r['tokens_per_s'] for r in group] for group in instances.values()]):.1f}"
        )
        for name in ("speedup", "speedup_end_to_end"):
            ratios_ = [
                [speedups(r, plains.get(key, []))[name] for r in group]
                for key, group in instances.items()
            ]
            cells.append(
                _worst(
                    [
                        median(known)
                        for group in ratios_
                        if (known := [x for x in group if x is not None])
                    ]
                )
            )
        for name, shape in (("mean_acceptance_length", "{:.2f}"), ("distinct_3", "{:.0%}")):
            cells.append(
                shape.format(_middle([[r[name] for r in group] for group in instances.values()]))
            )
        count = len({r["instance"] for r in same})
        turns = "" if len(instances) == count else f" ({len(instances)} turns)"
        rows.append([kind, f"{context}", label, *cells, _equal(same), f"{count}{turns}"])
    title = f"Suite {first['suite']}: {_model(first)}, {first['dtype']}, {_sampling(first)}"
    header = [
        "task",
        "context",
        "method",
        "prompt",
        "new",
        "tokens/s",
        "speedup (worst)",
        "end to end (worst)",
    ]
    header += ["accepted length", "distinct 3-grams", "equal to plain", "instances"]
    notes = [
        "Medians over instances and turns, each with the median of its repeats; in "
        "parentheses the worst."
        " Speedup counts from the end of the target's prefill; end to end includes it. "
        "Prompt and new: tokens.",
        "Context: the prompt length that was asked for; a task of fixed length stands at "
        "the next larger one.",
    ]
    if not first.get("ends", True):
        notes.append("Answers continue past end tokens, since the other engines' do.")
    return Section(title, header, rows, notes + inexact(records) + origin(records), sources)


def _middle(instances: list[list[float]]) -> float:
    return median(median(values) for values in instances)


def _worst(gains: list[float]) -> str:
    return f"{median(gains):.2f}x ({min(gains):.2f}x)" if gains else ""


def _anchored(records: list[Record]) -> Section:
    first = records[0]
    rows = []
    sources = []
    labels = list(dict.fromkeys(r["label"] for r in records))
    ours = next((x for x in labels if x.split("@")[0] == "vegas"), labels[0])
    for context, label, same in cells(records):
        r = same[0]
        anchor = next((x for x in records if (x["context"], x["label"]) == (context, ours)), None)
        gain = "" if anchor is None or anchor is r else _gain(anchor["accepted"], r["accepted"])
        length = (
            f"{r['mean_acceptance_length']:.3f} ± {_plus(r['stderr'])} "
            f"({_plus(r['stderr_clustered'])})"
        )
        positions = " ".join(f"{p:.2f}" for p in r["acceptance_per_position"])
        sources.append(ComparedRecords([r], [anchor] if gain and anchor is not None else []))
        rows.append(
            [f"{context}", label, length, gain, positions, f"{r['anchors']} in {r['windows']}"]
        )
    title = (
        f"Acceptance on real text: {_model(first)}, {first['dtype']}, {_text(first)}, "
        f"{_sampling(first)}"
    )
    header = [
        "context",
        "method",
        "accepted length",
        f"{ours} minus this",
        "accepted by position",
        "anchors, windows",
    ]
    notes = [
        "Accepted length: accepted drafts per step plus the bonus token; ± standard error "
        "over anchors (clustered by"
        " window). All methods use the same anchors; differences are paired, with the "
        "clustered error.",
        f"An anchor every {first['every']} tokens; {first['warmup_rounds']} speculative "
        "steps before the measured one.",
    ]
    if any(r.get("interrupted") for r in records):
        notes.append("The run was interrupted: these are the anchors measured until then.")
    return Section(title, header, rows, notes + origin(records), sources)


def _steps(records: list[Record]) -> Section:
    first = records[0]
    rows = []
    sources = []
    notes = [
        f"Milliseconds per call: medians (minimum to maximum) of {len(first['ms'])} "
        "interleaved turns."
    ]
    for context in sorted({r["context"] for r in records}):
        by_label = {r["label"]: r for r in records if r["context"] == context}
        ms = {label: median(r["ms"]) for label, r in by_label.items()}
        for label, r in by_label.items():
            over = f"{ms[label] / ms['plain']:.3f}" if "plain" in ms else ""
            sources.append(
                ComparedRecords([r], [by_label["plain"]] if over and label != "plain" else [])
            )
            rows.append([f"{context}", label, _spread(r["ms"], "{:.3f}"), over])
        if not ms.keys() >= STEP_PARTS:  # of a run that was interrupted
            continue
        least = by_label["plain"]["bytes_per_step"] / 1e6 / by_label["plain"]["bandwidth_gb_s"]
        part = ms["choose and copy 7%"] / sum(step_parts(ms).values())
        notes.append(
            f"At {context} plain decoding takes {ms['plain'] / least:.2f} times as long as "
            "reading its bytes at the"
            f" measured bandwidth; selecting and copying keys takes {part:.1%} of a "
            "decoding step of vegas (7 drafts)."
        )
    title = f"Cost of a step: {_model(first)}, {first['dtype']}, {_text(first)}"
    return Section(
        title, ["context", "step", "ms", "over plain"], rows, notes + origin(records), sources
    )


def _gain(a: list[list[int]], b: list[list[int]]) -> str:
    if [len(window) for window in a] != [len(window) for window in b]:
        raise InputError(
            "records of one run differ in their anchors: give the files as longdraft bench "
            "wrote them"
        )
    mean, simple, clustered = mean_and_errors(paired(a, b))
    return f"{mean:+.3f} ± {_plus(clustered if clustered is not None else simple)}"


def _equal(same: list[Record]) -> str:
    """Whether all outputs equal plain decoding's; if not, the largest gap between the two best
    tokens there.
    """
    damage = next((r["damage"] for r in same if "damage" in r), None)
    if damage:
        return f"NO: it changed {damage}"
    if all(r["equal"] is None for r in same):
        return "other noise"  # of an engine that draws its samples in another way
    equal = sum(r["equal"] is True for r in same)
    gaps = [r["first_difference"]["top2_gap"] for r in same if r["first_difference"]]
    size = "unbounded" if None in gaps else f"{max(gaps, default=0):.3g}"
    return "yes" if equal == len(same) else f"{equal} of {len(same)}, top-2 gap {size}"


def _plus(error: float | None) -> str:
    return "?" if error is None else f"{error:.3f}"


def _spread(values: list[float], shape: str) -> str:
    if not values:
        return ""
    mid, low, high = (shape.format(x) for x in spread(values))
    return mid if len(values) == 1 else f"{mid} ({low} to {high})"


def _model(r: Record) -> str:
    chosen = [
        f"--{name} {r[name]}" for name in ("rope", "weights", "kv", "activations") if r.get(name)
    ]
    kernels = f", {r['kernels']} kernels" if r.get("kernels") else ""
    return r["model"] + (f" ({' '.join(chosen)})" if chosen else "") + kernels


def _text(r: Record) -> str:
    asked = f", asked: {r['question']}" if r.get("question") else ""
    return f"text {r['text_name']} ({r['text_sha256'][:8]}){asked}"


def _sampling(r: Record) -> str:
    more = [
        f"{name.replace('_', '-')} {r[name]:g}"
        for name in ("top_k", "top_p", "penalty")
        if name in r
    ]
    return ", ".join([f"T={r['temperature']:g}", *more])


def rich_table(section: Section) -> Table:
    table = Table(title=section.title, title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(section.header):
        table.add_column(name, justify="left" if i == 1 else "right", overflow="fold")
    for row in section.rows:
        table.add_row(*row)
    return table


def markdown(report: list[Section]) -> str:
    parts = ["# longdraft: measurements\n"]
    for s in report:
        parts.append(f"## {s.title}\n")
        lines = [s.header, ["---"] * len(s.header), *s.rows]
        parts.append(
            "\n".join(
                "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
            )
            + "\n"
        )
        parts.append("\n".join(f"- {note}" for note in s.notes) + "\n")
    return "\n".join(parts)
