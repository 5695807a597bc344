"""Write docs/results/smollm2.md from benchmarks/records, or check that it is what the records say.

python docs/smollm2.py            # after benchmarks/smollm2.sh, whose records go to benchmarks/records
python docs/smollm2.py --check    # exit status 1 if the page is not the one of the records
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results" / "smollm2.md"
RECORDS = ROOT / "benchmarks" / "records"
FREE, GIVEN = "2026-11-22-smollm2-free.jsonl", "2026-11-22-smollm2-given.jsonl"
HEAD = """# SmolLM2-135M-Instruct

Acceptance and speed on a real model: the file that `longdraft fetch smollm2` downloads (Q4_1), its keys and values in
bfloat16. `benchmarks/smollm2.sh` measures, `python docs/smollm2.py` writes this page from the records
`benchmarks/records/{free}` and `{given}`.
"""
OWN = """## On text that the model writes

Each cell: mean acceptance length without adaptive drafting (accepted drafts per step and the bonus token), then the
speedup over plain decoding with it, the median of {repeats}. All outputs equal plain decoding's. Repetitive output is
easy to draft, so acceptance on it proves little: *d* is the share of distinct 3-grams of plain decoding's output, and
below 0.6 the output goes in circles.
"""
HUMAN = """## On text that people wrote

Teacher-forced: at {anchors} positions of each text, how many drafts the target accepts if the text up to there is
given. It understates what happens on the model's own text, and it is the same for all methods. Mean acceptance length
± standard error over windows; controls keep as many keys as the method above them. *minus window*: paired difference to
sink and window at the same budget.
"""

Record = dict[str, Any]


def records(name: str) -> list[Record]:
    return [json.loads(line) for line in (RECORDS / name).read_text(encoding="utf-8").splitlines()]


def task(r: Record) -> str:
    """What was decoded, in a few words."""
    asked = f", asked: {r['question']}" if r.get("question") else ""
    return f"{r['text_name'].removesuffix('.txt')}{asked}"


def sampling(r: Record) -> str:
    top = f", top-p {r['top_p']:g}" if "top_p" in r else ""
    return "greedy" if r["temperature"] == 0 else f"T={r['temperature']:g}{top}"


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def own_text(found: list[Record]) -> str:
    """A table per task and sampler: a row per method, a column per context."""
    assert all(r["equal"] for r in found), "an output differs from plain decoding's"
    parts = [OWN.format(repeats=max(r["repeat"] for r in found) + 1)]
    for name, how in unique((task(r), sampling(r)) for r in found):
        same = [r for r in found if (task(r), sampling(r)) == (name, how)]
        contexts = sorted({r["context"] for r in same})
        plain = {c: [r for r in same if r["context"] == c and r["method"] == "plain"] for c in contexts}
        distinct = [f"{c:,} (d {median(r['distinct_3'] for r in plain[c]):.2f})" for c in contexts]
        rows = []
        for label in unique(r["label"].removesuffix("@pace=off") for r in same if r["method"] != "plain"):
            cells = [_cell([r for r in same if r["context"] == c], label, plain[c]) for c in contexts]
            rows.append([f"`{label}`", *cells])
        parts.append(f"### {name}: {how}\n\n{table(['method', *distinct], rows)}\n")
    return "\n".join(parts)


def _cell(here: list[Record], label: str, plain: list[Record]) -> str:
    fixed = [r["mean_acceptance_length"] for r in here if r["label"] == f"{label}@pace=off"]
    paced = [r for r in here if r["label"] == label]
    beside = [r["tokens_per_s"] for r in plain if r["run"] in {p["run"] for p in paced}]
    length = f"{median(fixed):.2f}" if fixed else ""
    speed = f"{median(r['tokens_per_s'] for r in paced) / median(beside):.2f}x" if beside else ""
    return ", ".join(x for x in (length, speed) if x)


def given_text(found: list[Record]) -> str:
    """A table per text and context: a row per method and budget, in the order of the run."""
    from longdraft.bench.averages import mean_and_errors, paired

    parts = [HUMAN.format(anchors=max(r["anchors"] for r in found))]
    for key in unique(map(_group, found)):
        same = [r for r in found if _group(r) == key]
        rows = []
        for r in same:
            window = next((w for w in same if w["method"] == "magicdec-stream" and budget(w) == budget(r)), None)
            gain = ""
            if window is not None and window is not r:
                mean, simple, clustered = mean_and_errors(paired(r["accepted"], window["accepted"]))
                gain = f"{mean:+.2f} ± {clustered if clustered is not None else simple:.2f}"
            length = f"{r['mean_acceptance_length']:.2f} ± {r['stderr_clustered'] or r['stderr']:.2f}"
            positions = " ".join(f"{p:.2f}" for p in r["acceptance_per_position"])
            rows.append([f"`{r['label']}`", length, gain, positions])
        header = ["method", "acceptance length", "minus window", "accepted by position"]
        parts.append(f"### {', '.join(key)}\n\n{table(header, rows)}\n")
    return "\n".join(parts)


def _group(r: Record) -> tuple[str, ...]:
    """What records of given text share a table for."""
    when = "after a verification" if r["warmup_rounds"] else "guided by the prompt's last token alone"
    return task(r), f"{r['context']:,} tokens", sampling(r), when


def budget(r: Record) -> str | None:
    """The share of the keys that a method was given."""
    return r["options"].get("keep_ratio")


def origin(found: list[Record]) -> str:
    """Machines, revisions, versions and commands, once each."""
    lines = []
    for r in {r["run"]: r for r in found}.values():
        versions = ", ".join(f"{name} {value}" for name, value in r["versions"].items())
        lines.append(f"- {r['time']}, {r['git_sha'][:12]}, {r['device']}, {r['kernels']}, {versions}: `{r['command']}`")
    return "\n".join(lines)


def page() -> str:
    free, given = records(FREE), records(GIVEN)
    head = HEAD.format(free=FREE, given=GIVEN)
    return "\n".join([head, own_text(free), given_text(given), "## Origin\n", origin(free + given), ""])


def main(arguments: list[str]) -> int:
    text = page()
    if arguments == ["--check"]:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
