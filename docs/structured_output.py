"""Fill the tables of docs/structured-output.md from benchmarks/records.

python docs/structured_output.py            # after benchmarks/structured.py and
benchmarks/grammars.py, whose records python docs/structured_output.py --check    # go to
benchmarks/records; exit status 1 if the page is not what they say
"""

from __future__ import annotations

import sys
from collections import Counter
from statistics import median
from typing import Any

from measured import ROOT, Record, filled, one_line, records, table, write_or_check

PAGE = ROOT / "docs" / "structured-output.md"
ANSWERS = "2026-11-26-structured.jsonl.gz"
ENGINES = "2026-11-26-grammars.jsonl.gz"
PLAIN = "plain"
FREE = "unconstrained"
FORCED = "forced"
SHAPES = {"text": "no draft", "chain": "chain of 12", "tree": "tree of 69"}


def origin(r: Record) -> str:
    load = (
        f"load average {r['load_before']:.1f} at the start"
        if "load_before" in r
        else "an unknown load"
    )
    return f"{r['model']}, {r['git_sha'][:7]}, {r['device']}, {r['threads']} threads, {load}"


def answers_block(found: list[Record]) -> str:
    """What became of the answers, and what each method took."""
    parts = []
    for temperature in sorted({r["temperature"] for r in found}):
        same = [r for r in found if r["temperature"] == temperature]
        answered = [r for r in same if "runs" in r]
        refused = [r for r in same if "refused" in r]
        results = Counter(r["result"] for r in answered)
        unequal = sum(not run.get("equal", True) for r in answered for run in r["runs"].values())
        how = "greedy" if temperature == 0 else f"T={temperature:g}"
        head = f"""{origin(same[0])}; {how}, at most {same[0]["max_new_tokens"]} tokens. Of {len(same)} schemas
        {len(refused)} were refused, {sum(r["enforceable"] for r in refused)} of them without need.
        {results["valid"]} answers ended and were valid, {results["cut"]} reached the limit and could go on, and
        {results["wrong"]} were wrong. {unequal} outputs of a method differed from plain decoding's. Compiling a schema
        took {1000 * median(r["compile_s"] for r in answered):.1f} ms (median)."""
        lines = [_method(name, answered) for name in answered[0]["runs"]]
        columns = (
            "method",
            "passes per token",
            "drafts accepted",
            "tokens/s",
            "of plain: median",
            "worst",
        )
        parts += [one_line(head), table(columns, lines)]
    return "\n\n".join(parts)


def _method(name: str, answered: list[Record]) -> list[str]:
    runs = [r["runs"][name] for r in answered if name in r["runs"]]
    ratios = [
        _speed(r["runs"][name]) / _speed(r["runs"][PLAIN]) for r in answered if name in r["runs"]
    ]
    total = {
        key: sum(run[key] for run in runs) for key in ("tokens", "passes", "accepted", "decode_s")
    }
    shares = (
        f"{total['passes'] / total['tokens']:.2f}",
        f"{total['accepted'] / total['tokens']:.0%}",
    )
    return [
        f"`{name}`",
        *shares,
        f"{_speed(total):.0f}",
        f"{median(ratios):.2f}x",
        f"{min(ratios):.2f}x",
    ]


def _speed(run: dict[str, Any]) -> float:
    return run["tokens"] / run["decode_s"]


def engines_block(found: list[Record]) -> str:
    """Two engines on the same schemas: by model, what each accepts, takes and gets wrong."""
    lines = []
    for model, engine in dict.fromkeys((r["model"], r["engine"]) for r in found if "engine" in r):
        own = [r for r in found if r["model"] == model and r.get("engine") == engine]
        accepted = [r for r in own if "refused" not in r]
        walks = sum((Counter(r["walks"]) for r in accepted), Counter[str]())
        wrong = len({r["case"] for r in accepted if r["walks"].get("invalid")})
        compiled = sorted(1000 * r["compile_s"] for r in accepted)
        took = [_times(accepted, shape) for shape in SHAPES]
        ended = walks["valid"] + walks["invalid"]
        cells = [
            f"{len(accepted)} of {len(own)}",
            f"{walks['invalid']} of {ended} ({wrong} schemas)",
        ]
        cells += [f"{median(compiled):.1f} ms ({compiled[-1]:.0f})", *took]
        lines.append([f"{engine} {own[0]['engine_version']}, {own[0]['vocab']:,} tokens", *cells])
    columns = (
        "engine, vocabulary",
        "accepts",
        "invalid texts",
        "compiling: median (maximum)",
        *SHAPES.values(),
    )
    return "\n\n".join([_about(found), table(columns, lines), _applied(found)])


def _about(found: list[Record]) -> str:
    first = {r["model"]: r for r in found}.values()
    return one_line(
        f"{'; '.join(map(origin, first))}. Masks: microseconds a node, median / 95th "
        "percentile / maximum."
    )


def _times(accepted: list[Record], shape: str) -> str:
    taken: Counter[str] = Counter()
    for r in accepted:
        taken.update(r["microseconds"].get(shape, {}))
    each = sorted(int(us) for us in taken.elements())
    return f"{each[len(each) // 2]} / {each[len(each) * 95 // 100]} / {each[-1]:,}" if each else ""


def _applied(found: list[Record]) -> str:
    """What applying masks to logits takes."""
    lines = [
        [
            f"{r['vocab']:,}",
            str(r["nodes"]),
            f"{r['applied']['longdraft']:.0f}",
            f"{r['applied']['masked_fill']:.0f}",
        ]
        for r in found
        if "applied" in r
    ]
    head = (
        "Applying masks to logits, microseconds a node, beside unpacking the masks for "
        "`torch.masked_fill`:"
    )
    return f"{head}\n\n{table(('vocabulary', 'nodes', 'longdraft', 'masked_fill'), lines)}"


def main(arguments: list[str]) -> int:
    page = filled(PAGE.read_text(encoding="utf-8"), "answers", answers_block(records(ANSWERS)))
    return write_or_check(
        {PAGE: filled(page, "engines", engines_block(records(ENGINES)))}, arguments
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
