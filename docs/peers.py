"""Fill the section on other engines in docs/performance.md from benchmarks/records.

python docs/peers.py            # after benchmarks/llama_cpp.sh, whose records go to
benchmarks/records python docs/peers.py --check    # exit status 1 if the page is not what the
records say
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from statistics import median

from measured import ROOT, Record, dates, filled, one_line, origin, records, table, write_or_check

PAGE = ROOT / "docs" / "performance.md"
SOURCE = "2026-11-24-llama-cpp.jsonl.gz"  # llama.cpp built from source, and the wheel
WHEEL = "2026-11-22-cpu-peers.jsonl.gz"  # the wheel alone, and Transformers
NAME = "llama.cpp"
WHEEL_NAME = "llama.cpp (wheel)"


FASTER = """Plain decoding is at least {least} times as fast as llama.cpp's plain decoding in every column ({when},
{origin}):"""
BUILDS = """Cells are medians of {repeats} repeats. llama.cpp is shown with the better setting of flash attention in
each cell (*fa*); the wheel runs with its default, `auto`."""
OLDER = """Older figures ({when}, {origin}) include Transformers, but llama.cpp only as the wheel of xllamacpp, which is
not built for this processor, so the ratios do not show llama.cpp at its best:"""


def block() -> str:
    old = records(WHEEL)
    names = dict.fromkeys(r["label"] for r in old)
    rows = {label.replace(NAME, WHEEL_NAME): _of(old, label) for label in names}
    return f"{from_source(speed_records(SOURCE))}\n\n{one_line(OLDER.format(**about(old)))}\n\n{shown(old, rows)}"


def speed_records(name: str) -> list[Record]:
    """Without those that say why an engine was left out."""
    return [r for r in records(name) if r["task"] == "speed"]


def from_source(found: list[Record]) -> str:
    """Ours, then llama.cpp by kind of speculation, then the other engines; and how they were
    built.
    """
    rows: dict[str, Cells] = {label: _of(found, label) for label in ours(found)}
    built = [r for r in found if r.get("peer") == NAME]
    for kind in dict.fromkeys(r["options"]["speculation"] for r in built):
        same = [r for r in built if r["options"]["speculation"] == kind]
        rows[NAME if kind == "none" else f"{NAME} {kind}"] = lambda context, same=same: _better(
            _at(same, context)
        )
    rows |= {r["label"]: _of(found, r["label"]) for r in found if r.get("peer", NAME) != NAME}
    head, builds = (one_line(text.format(**about(found))) for text in (FASTER, BUILDS))
    # Some records are older than the command's name.
    line = found[0]["command"].replace("longdraft bench -", "longdraft bench peers -", 1)
    command = f"`{line}` wrote the records."
    return "\n\n".join([head, shown(found, rows), builds, how_built(found), command])


def how_built(found: list[Record]) -> str:
    """A row for each build of llama.cpp."""
    lines = []
    for name in (NAME, WHEEL_NAME):
        if build := next((r["peer_build"] for r in found if r.get("peer") == name), None):
            made = "the wheel of xllamacpp, for any processor"
            if name == NAME:
                made = (
                    f"source in {build['package']} (revision {build['commit']}), "
                    f"{build['compiler']}"
                )
            lines.append([name, made, ", ".join(re.findall(r"(\w+) = 1", build["system_info"]))])
    return table(["engine", "built from", "instruction sets and features that it reports"], lines)


Cells = Callable[[int], str]  # a row of a table: its cell at a context


def shown(found: list[Record], rows: dict[str, Cells]) -> str:
    """Rates, and below them the two ratios."""
    known = contexts(found)
    heads = (f"{_size(c)}{' (YaRN)' if _at(found, c)[0].get('rope') else ''}" for c in known)
    lines = [[name, *map(cell, known)] for name, cell in rows.items()]
    for name, ratio in (
        ("plain over llama.cpp's plain", plain_over),
        ("our fastest over llama.cpp's", best_over),
    ):
        lines.append([f"*{name}*", *(f"{ratio(_at(found, c)):.1f}x" for c in known)])
    return table(["tokens/s (prefill, s)", *heads], lines)


def plain_over(same: list[Record]) -> float:
    """Plain decoding over llama.cpp's, at one context."""
    alone = [r for r in same if r.get("peer") == NAME and r["options"]["speculation"] == "none"]
    return _fastest(r for r in same if r["label"] == "plain") / _fastest(alone)


def best_over(same: list[Record]) -> float:
    """The fastest of our methods over the fastest of llama.cpp's, at one context."""
    return _fastest(r for r in same if "peer" not in r) / _fastest(
        r for r in same if r.get("peer") == NAME
    )


def about(found: list[Record]) -> dict[str, str | int]:
    """What the sentences say."""
    least = min(plain_over(_at(found, c)) for c in contexts(found))
    facts = {
        "least": f"{least:.1f}",
        "origin": _origin(found[0]),
        "when": dates(r["time"][:10] for r in found),
    }
    return facts | {"repeats": repeats(found)}


def ours(found: list[Record]) -> list[str]:
    return list(dict.fromkeys(r["label"] for r in found if "peer" not in r))


def contexts(found: list[Record]) -> list[int]:
    return sorted({r["context"] for r in found})


def repeats(found: list[Record]) -> int:
    return max(r["repeat"] for r in found) + 1


def _at(found: list[Record], context: int) -> list[Record]:
    return [r for r in found if r["context"] == context]


def _of(found: list[Record], label: str) -> Cells:
    return lambda context: _cell([r for r in _at(found, context) if r["label"] == label])


def _cell(same: list[Record]) -> str:
    rate, prefill = (
        median(r[name] for r in same) if same else 0.0 for name in ("tokens_per_s", "prefill_s")
    )
    return f"{rate:.1f} ({prefill:.1f})" if same else ""


def _better(same: list[Record]) -> str:
    """The cell of the faster label; they differ in flash attention."""
    labels = _by_label(same)
    best = max(labels, key=lambda label: _fastest(labels[label]), default=None)
    return f"{_cell(labels[best])}, fa {best.split('=')[-1]}" if best is not None else ""


def _fastest(found: Iterable[Record]) -> float:
    """The largest median of tokens per second among the labels."""
    return max(median(r["tokens_per_s"] for r in same) for same in _by_label(found).values())


def _by_label(found: Iterable[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for r in found:
        groups.setdefault(r["label"], []).append(r)
    return groups


def _origin(r: Record) -> str:
    return origin(r).replace("†", ", before kernels became faster")


def _size(context: int) -> str:
    return f"{round(context / 1000)}K"


def main(arguments: list[str]) -> int:
    return write_or_check(
        {PAGE: filled(PAGE.read_text(encoding="utf-8"), "peers", block())}, arguments
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
