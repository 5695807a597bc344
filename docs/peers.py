"""Fill the section on other engines in docs/performance.md from benchmarks/records.

python docs/peers.py            # after benchmarks/llama_cpp.sh, whose records go to benchmarks/records
python docs/peers.py --check    # exit status 1 if the page is not what the records say
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from statistics import median

from measured import RECORDS, ROOT, Record, filled, listed, one_line, origin, records, table, write_or_check

PAGE = ROOT / "docs" / "performance.md"
SOURCE = "2026-11-24-llama-cpp.jsonl.gz"  # llama.cpp built from source, and the wheel
WHEEL = "2026-11-22-cpu-peers.jsonl.gz"  # the wheel alone, and Transformers
NAME, WHEEL_NAME, OPENVINO = "llama.cpp", "llama.cpp (wheel)", "openvino"

# Until SOURCE is measured: what was noted on a quiet Zen 4, without records.
NOTED = """Built from source, llama.cpp decoded 100, 54 and 39 tokens/s after 1K, 4K and 7K tokens on a quiet Zen 4
(noted without records), the wheel 66 and 16 after 1K and 7K. Plain decoding is 1.4, 1.9 and 1.9 times as fast as
the build from source."""
NOTED_HEADLINE = """**llama.cpp built from source**, on the same file (SmolLM2, greedy, after 1K, 4K and 7K tokens;
a Zen 4, noted without records): plain decoding is 1.4, 1.9 and 1.9 times as fast"""

HEADLINE = """**llama.cpp built from source**, on the same file (SmolLM2, greedy, a novel, after {contexts} tokens;
{origin}): plain decoding is {plain} times as fast, the fastest of {count} methods {best} times as fast as the
fastest of llama.cpp's"""
FACTS = (
    """Plain decoding is {plain} times as fast as llama.cpp ({contexts}), the fastest of ours {best} times as fast as
    the fastest of llama.cpp's.""",
    """llama.cpp has in each cell the better of flash attention on and off (*fa*). It is built from the source in
    {package} (revision {commit}) with {compiler}, and says of itself: `{system_info}`.""",
    "The wheel has its default, `auto`, and is not built for this processor. It says of itself: `{wheel_info}`.",
    "{origin}, {repeats} repeats: `{command}`",
)
OPENVINO_FACT = """OpenVINO GenAI {peer_version} computes in {inference_precision_hint}, with keys and values in
{key_value_precision}."""
OLDER = """Older figures ({origin}), with Transformers and with llama.cpp as the wheel of xllamacpp alone, which is
no measure of llama.cpp at its best: plain decoding is {plain} times as fast as that wheel ({contexts}), the fastest
of ours {best} times as fast as its fastest."""


def headline() -> str:
    """One sentence for the README."""
    text = NOTED_HEADLINE
    if measured():
        found = speed_records(SOURCE)
        text = HEADLINE.format(count=len(ours(found)), **compared(found))
    return f"{one_line(text)} ([Performance](docs/performance.md#beside-llamacpp-and-transformers))."


def block() -> str:
    newest = from_source(speed_records(SOURCE)) if measured() else one_line(NOTED)
    old = records(WHEEL)
    names = dict.fromkeys(r["label"] for r in old)
    rows = {label.replace(NAME, WHEEL_NAME): _of(old, label) for label in names}
    return f"{newest}\n\n{one_line(OLDER.format(**compared(old)))}\n\n{shown(old, rows)}"


def measured() -> bool:
    return any(RECORDS.glob(f"{SOURCE}*"))


def speed_records(name: str) -> list[Record]:
    """Without those that say why an engine was left out."""
    return [r for r in records(name) if r["task"] == "speed"]


def from_source(found: list[Record]) -> str:
    """Ours, then llama.cpp by kind of speculation, then the other engines; and how they were built."""
    rows: dict[str, Cells] = {label: _of(found, label) for label in ours(found)}
    built = [r for r in found if r.get("peer") == NAME]
    for kind in dict.fromkeys(r["options"]["speculation"] for r in built):
        same = [r for r in built if r["options"]["speculation"] == kind]
        rows[NAME if kind == "none" else f"{NAME} {kind}"] = lambda context, same=same: _better(_at(same, context))
    rows |= {r["label"]: _of(found, r["label"]) for r in found if r.get("peer", NAME) != NAME}
    wheel = next((r for r in found if r.get("peer") == WHEEL_NAME), None)
    openvino = next((r for r in found if r.get("peer") == OPENVINO), None)
    facts = compared(found) | built[0]["peer_build"] | {"command": found[0]["command"]}
    facts |= {"wheel_info": wheel["peer_build"]["system_info"] if wheel else "", "repeats": repeats(found)}
    lines = [fact.format(**facts) for fact in FACTS]
    if openvino is not None:
        lines.append(OPENVINO_FACT.format(**openvino, **openvino["peer_build"]))
    return shown(found, rows) + "\n\n" + "\n".join(f"- {one_line(line)}" for line in lines)


Cells = Callable[[int], str]  # a row of a table: its cell at a context


def shown(found: list[Record], rows: dict[str, Cells]) -> str:
    known = contexts(found)
    heads = (f"{_size(c)}{' (YaRN)' if _at(found, c)[0].get('rope') else ''}" for c in known)
    return table(["tokens/s (prefill, s)", *heads], ([name, *map(cell, known)] for name, cell in rows.items()))


def compared(found: list[Record]) -> dict[str, str]:
    """What the sentences say: the factors at each context, of plain decoding and of the fastest on both sides."""
    plain, best = [], []
    for context in contexts(found):
        same = _at(found, context)
        theirs = [r for r in same if r.get("peer") == NAME]
        alone = [r for r in theirs if r["options"]["speculation"] == "none"]
        plain.append(f"{_fastest(r for r in same if r['label'] == 'plain') / _fastest(alone):.1f}")
        best.append(f"{_fastest(r for r in same if 'peer' not in r) / _fastest(theirs):.1f}")
    names = [_size(c) for c in contexts(found)]
    return {"plain": listed(plain), "best": listed(best), "contexts": listed(names), "origin": _origin(found[0])}


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
    rate, prefill = (median(r[name] for r in same) if same else 0.0 for name in ("tokens_per_s", "prefill_s"))
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
    return write_or_check({PAGE: filled(PAGE.read_text(encoding="utf-8"), "peers", block())}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
