"""Write docs/results/qwen-coder.md from benchmarks/records, or check that it is what the records
say.

python docs/qwen_coder.py            # after benchmarks/qwen_coder.sh, whose records go to
benchmarks/records python docs/qwen_coder.py --check    # exit status 1 if the page is not the one
of the records
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from statistics import median

from measured import ROOT, Record, listed, records, table, write_or_check
from smollm2 import given_text, unique

PAGE = ROOT / "docs" / "results" / "qwen-coder.md"
SOURCE = "2026-11-29-qwen-coder.jsonl.gz"
BEFORE = "2026-11-24-qwen-coder-int8.jsonl.gz"
SMALL = "qwen2.5-coder-0.5b"
LARGE = "qwen2.5-coder-1.5b"
SIZES = {SMALL: "0.5B", LARGE: "1.5B"}
# positions
CONTEXTS = (1024, 8192, 30_000)
TRAINED = 32_768
OTHERS = ("repo", "question", "chat")  # suites whose goals are stated together
PAIR = ("sd", "sd-sparse", "budgetdraft", "specextend", "triforce")
TITLES = {"greedy": "greedy", "recommended": "the recommended sampling"}
HEAD = """# Qwen2.5-Coder-Instruct, 0.5B and 1.5B

Two official files (Q4_K_M) of models that were trained on 32,768 positions, with activations in {activations} and
keys and values in {kv}, on source code and on tasks of coding assistants. `benchmarks/qwen_coder.sh`
measures, and `python docs/qwen_coder.py` writes this page from its records, `benchmarks/records/{source}`. Outputs
equal plain decoding's in all {count:,} measurements of our methods. In tables, *d* is the share of distinct 3-grams of
plain decoding's output: an output that repeats itself is easy to draft.
"""
GOAL = """## Goals and results

Ratios of medians. In parentheses: the goal, and the ratio measured on 24 November 2026, on a Zen 4, with keys and values
in bfloat16 and an `auto` that used one source of drafts at a time. Ratios below the goal are in bold; empty cells were
not measured. Over tasks, the best method is the one whose median over the tasks is the largest: one method for the whole
cell, not the best of each task.
"""
BESIDE = """## Beside other engines: {model}

{text}, greedy. Each cell: tokens per second, and in parentheses those of the prompt. One engine after another in the
same run, each with its prompt read once; llama.cpp is built from source for this processor{compared}.
"""
TASKS = """## Tasks: {model}, {how}

Speedup over plain decoding, with adaptive drafting: the median over the tasks' turns, and in parentheses the worst,
up to {limits}. `auto` is the default. [How tasks are built](../tasks.md).
"""
PAIRED = """## The 1.5B with the 0.5B as its drafter

Task `repo`, greedy, up to {tokens} tokens: tokens per step, then the speedup over plain decoding. The drafter first
reads the prompt or the end of it (option `reads`), which the speedup includes.
"""
GIVEN = """## How many drafts the target accepts

0.5B, on source code, with activations in {activations}. Teacher-forced: at each of {anchors} positions of the text,
how many of 5 drafts the target accepts if the text up to there is given. Mean acceptance length ± standard error over
windows. Each method drafts with the share of the keys that *keep_ratio* names; `magicdec-stream` is a sink and a
window, `random-picks` and `recents` are controls that differ from `vegas` in which keys they keep.
"""
YARN = """## Beyond the trained positions

0.5B, greedy, `--rope`: tokens per second of plain decoding, then tokens per step and speedup of each method. The
goals were 1.5x (`vegas`) and 2x (`magicdec-stream`).
"""


def load() -> list[Record]:
    """All records; those of our methods are equal to plain decoding. Raises AssertionError."""
    found = records(SOURCE)
    assert all(r["equal"] for r in found if ours(r)), "an output differs from plain decoding's"
    return found


def ours(r: Record) -> bool:
    return r["task"] in ("speed", "suite") and "peer" not in r


def at(found: list[Record], model: str, context: int, **fields: str) -> list[Record]:
    """The records of a model and a context whose fields have these values."""
    return [
        r
        for r in found
        if (r["model"], r["context"]) == (model, context)
        and all(r.get(k) == v for k, v in fields.items())
    ]


def rates(found: Iterable[Record], rate: str = "tokens_per_s") -> dict[str, float]:
    """The median rate of each label."""
    groups: dict[str, list[float]] = {}
    for r in found:
        groups.setdefault(r["label"], []).append(r[rate])
    return {label: median(values) for label, values in groups.items()}


# --- beside other engines


def beside(
    found: list[Record], model: str, context: int, suite: str | None = None
) -> tuple[list[Record], list[Record]]:
    """Records of ours and of other engines, of the runs that have both."""
    task = {"task": "suite", "suite": suite} if suite else {"task": "speed"}
    same = at(found, model, context, **task)
    runs = {r["run"] for r in same if "peer" in r}
    return [r for r in same if r["run"] in runs and "peer" not in r], [
        r for r in same if "peer" in r
    ]


def alone(peers: list[Record]) -> list[Record]:
    """Without their own speculation."""
    return [r for r in peers if r["options"].get("speculation", "none") == "none"]


def over_peers(found: list[Record], model: str, context: int) -> float | None:
    """Plain decoding over the fastest engine's."""
    mine, peers = beside(found, model, context)
    return rates(mine)["plain"] / max(rates(alone(peers)).values()) if peers else None


def best_over_peers(
    found: list[Record], model: str, context: int, suite: str | None = None
) -> float | None:
    mine, peers = beside(found, model, context, suite)
    return max(rates(mine).values()) / max(rates(peers).values()) if peers else None


def prompts_over_peers(found: list[Record], model: str, context: int) -> float | None:
    mine, peers = beside(found, model, context)
    if not peers:
        return None
    return rates(mine, "prompt_tokens_per_s")["plain"] / max(
        rates(peers, "prompt_tokens_per_s").values()
    )


def engines(found: list[Record], model: str, suite: str | None = None) -> str:
    """A table of labels by contexts."""
    measured = {c: beside(found, model, c, suite) for c in CONTEXTS}
    measured = {c: both for c, both in measured.items() if both[1]}
    if not measured:
        return ""
    cells: dict[str, dict[int, str]] = {}
    for context, (mine, peers) in measured.items():
        prompts = rates([*mine, *peers], "prompt_tokens_per_s")
        for label, rate in rates([*mine, *peers]).items():
            cells.setdefault(label, {})[context] = f"{rate:.1f} ({prompts[label]:.0f})"
    rows = [[f"`{label}`", *(row.get(c, "") for c in measured)] for label, row in cells.items()]
    left = unique(
        (r["label"], r["reason"]) for r in found if r["task"] == "left out" and r["model"] == model
    )
    tokens = max(r["new_tokens"] for mine, _ in measured.values() for r in mine)
    compared = f". Up to {tokens} tokens; each engine may use its own drafts" if suite else ""
    text = "The task `edit`" if suite else "Source code that goes on"
    head = BESIDE.format(
        model=SIZES[model] + (", `edit`" if suite else ""), text=text, compared=compared
    )
    notes = "".join(f"\n- `{label}` is left out: {reason}." for label, reason in left)
    return (
        f"{head}\n{table(['', *map('{:,}'.format, measured)], rows)}\n{notes and notes + chr(10)}"
    )


# --- tasks


def sampled(r: Record) -> str:
    return "greedy" if r["temperature"] == 0 else "recommended"


def of_task(found: list[Record], model: str, context: int, suite: str, how: str) -> list[Record]:
    """Of the runs with nothing but training-free methods."""
    others = {r["run"] for r in found if "peer" in r} | pair_runs(found)
    same = at(found, model, context, task="suite", suite=suite)
    return [r for r in same if sampled(r) == how and r["run"] not in others]


def turns(
    found: list[Record], model: str, context: int, suite: str, how: str
) -> dict[str, list[float]]:
    """Each label's speedups over plain decoding, by turn of every task."""
    same = of_task(found, model, context, suite, how)
    groups: dict[tuple[str, str, int], dict[str, list[Record]]] = {}
    for r in same:
        groups.setdefault((r["run"], r["instance"], r["turn"]), {}).setdefault(
            r["label"], []
        ).append(r)
    speedups: dict[str, list[float]] = {}
    for labels in groups.values():
        plain = median(r["tokens_per_s"] for r in labels["plain"])
        for label, rs in labels.items():
            speedups.setdefault(label, []).append(median(r["tokens_per_s"] for r in rs) / plain)
    return speedups


def pair_runs(found: list[Record]) -> set[str]:
    return {r["run"] for r in found if r.get("method") in PAIR}


def fixed(speedups: dict[str, list[float]]) -> dict[str, float]:
    """The medians of the methods that a user would have to name."""
    return {
        label: median(each) for label, each in speedups.items() if label not in ("plain", "auto")
    }


def best_of(
    found: list[Record], model: str, context: int, suites: Iterable[str], how: str
) -> float | None:
    """The largest median over tasks (of each task: over its turns) among the fixed methods."""
    by_suite = [fixed(each) for s in suites if (each := turns(found, model, context, s, how))]
    if not by_suite:
        return None
    everywhere = [label for label in by_suite[0] if all(label in medians for medians in by_suite)]
    return max(median(medians[label] for medians in by_suite) for label in everywhere)


def auto_over_best(found: list[Record], model: str, context: int) -> float | None:
    """The median over tasks and samplings of `auto` over the best fixed method of that task."""
    ratios = []
    for how in TITLES:
        for suite in ("edit", *OTHERS):
            if speedups := turns(found, model, context, suite, how):
                ratios.append(median(speedups["auto"]) / max(fixed(speedups).values()))
    return median(ratios) if ratios else None


def tasks(found: list[Record], model: str, how: str) -> str:
    rows = []
    labels = list[str]()
    limits = dict[int, list[str]]()
    for suite in ("edit", *OTHERS):
        for context in CONTEXTS:
            speedups = turns(found, model, context, suite, how)
            if not speedups:
                continue
            labels = labels or [label for label in speedups if label != "plain"]
            plain = [r for r in of_task(found, model, context, suite, how) if r["label"] == "plain"]
            rate, distinct = (
                median(r[name] for r in plain) for name in ("tokens_per_s", "distinct_3")
            )
            shown = [_median_and_worst(speedups.get(label, [])) for label in labels]
            rows.append([f"{suite}, {context:,}", f"{rate:.1f}, {distinct:.2f}", *shown])
            limits.setdefault(max(r["new_tokens_limit"] for r in plain), []).append(f"`{suite}`")
    if not rows:
        return ""
    most = listed(
        [f"{tokens:,} tokens ({', '.join(unique(suites))})" for tokens, suites in limits.items()]
    )
    head = TASKS.format(model=SIZES[model], how=TITLES[how], limits=most)
    return (
        head
        + "\n"
        + table(["task, prompt", "plain: tokens/s, d", *(f"`{x}`" for x in labels)], rows)
        + "\n"
    )


def _median_and_worst(speedups: list[float]) -> str:
    return f"{median(speedups):.2f}x ({min(speedups):.2f}x)" if speedups else ""


# --- a drafter model, given text, YaRN


def pair(found: list[Record]) -> str:
    same = [r for r in found if r.get("run") in pair_runs(found)]
    contexts = [c for c in CONTEXTS if at(same, LARGE, c)]
    rows = []
    for label in unique(r["label"] for r in same if r["label"] != "plain"):
        cells = []
        for context in contexts:
            here = at(same, LARGE, context, label=label)
            plain = rates(at(same, LARGE, context, label="plain"))["plain"]
            cells.append(_steps(here, plain))
        rows.append([f"`{label}`", *cells])
    head = PAIRED.format(tokens=max((r["new_tokens_limit"] for r in same), default=0))
    return f"{head}\n{table(['', *map('{:,}'.format, contexts)], rows)}\n" if rows else ""


def _steps(here: list[Record], plain: float) -> str:
    if not here:
        return ""
    length, rate = (
        median(r[name] for r in here) for name in ("mean_acceptance_length", "tokens_per_s")
    )
    return f"{length:.2f}, {rate / plain:.2f}x"


def pair_over_plain(found: list[Record], model: str, context: int) -> float | None:
    same = at([r for r in found if r.get("run") in pair_runs(found)], model, context)
    each = rates(r for r in same if r["method"] in ("plain", "auto", *PAIR))
    return (
        max(rate for label, rate in each.items() if label != "plain") / each["plain"]
        if each
        else None
    )


def given(found: list[Record]) -> str:
    same = [r for r in found if r["task"] == "anchored"]
    if not same:
        return ""
    anchors = " or ".join(map(str, unique(r["anchors"] for r in same)))
    head = GIVEN.format(anchors=anchors, activations=" or ".join(unique(map(_activations, same))))
    return f"{head}\n### {given_text(same).partition('### ')[2]}"


def yarn(found: list[Record]) -> str:
    same = [r for r in found if r["task"] == "speed" and r.get("rope")]
    columns = unique((r["rope"], r["context"], r["text_name"]) for r in same)
    rows = []
    for label in unique(r["label"] for r in same):
        cells = []
        for column in columns:
            here = [r for r in same if (r["rope"], r["context"], r["text_name"]) == column]
            plain = rates(here)["plain"]
            mine = [r for r in here if r["label"] == label]
            cells.append(f"{plain:.1f} tokens/s" if label == "plain" else _steps(mine, plain))
        rows.append([f"`{label}`", *cells])
    heads = [f"{text}, {context:,}, `{rope}`" for rope, context, text in columns]
    return f"{YARN}\n{table(['', *heads], rows)}\n" if rows else ""


# --- goals

Figure = Callable[[list[Record], str, int], float | None]
GOALS: list[tuple[str, str, Figure, dict[int, float]]] = [
    ("plain over the fastest engine's plain", SMALL, over_peers, {1024: 1.2, 8192: 3, 30_000: 5.5}),
    (
        "plain over the fastest engine's plain",
        LARGE,
        over_peers,
        {1024: 1.0, 8192: 1.2, 30_000: 1.5},
    ),
    (
        "prompt: tokens/s over the fastest engine's",
        SMALL,
        prompts_over_peers,
        {8192: 1.2, 30_000: 2},
    ),
    (
        "prompt: tokens/s over the fastest engine's",
        LARGE,
        prompts_over_peers,
        {8192: 1.2, 30_000: 2},
    ),
]
for _model in SIZES:
    GOALS += [
        (
            "`edit`, greedy: best training-free over plain",
            _model,
            lambda f, m, c: best_of(f, m, c, ["edit"], "greedy"),
            {1024: 3.0, 8192: 3.2, 30_000: 3.0},
        ),
        (
            "`repo`, `question`, `chat`, greedy: the same",
            _model,
            lambda f, m, c: best_of(f, m, c, OTHERS, "greedy"),
            {1024: 1.3, 8192: 1.5, 30_000: 1.4},
        ),
        (
            "`edit`, `repo`, `question`, `chat` at the recommended sampling: the same",
            _model,
            lambda f, m, c: best_of(f, m, c, ("edit", *OTHERS), "recommended"),
            {1024: 1.15, 8192: 1.3, 30_000: 1.5},
        ),
        (
            "`auto` over the best fixed method of each task",
            _model,
            auto_over_best,
            dict.fromkeys(CONTEXTS, 0.97),
        ),
        (
            "`edit`: our fastest over the fastest engine's, with its own drafts",
            _model,
            lambda f, m, c: best_over_peers(f, m, c, "edit"),
            {1024: 2, 8192: 3, 30_000: 4},
        ),
    ]
GOALS.append(
    (
        "`repo`, with the 0.5B: best method over plain",
        LARGE,
        pair_over_plain,
        {1024: 1.2, 8192: 1.2},
    )
)


def goals(found: list[Record], before: list[Record]) -> str:
    rows = []
    for name, model, figure, wanted in GOALS:
        cells = [
            goal_cell(figure(found, model, c), wanted.get(c), figure(before, model, c))
            for c in CONTEXTS
        ]
        if any(cells):
            rows.append([f"{SIZES[model]}, {name}", *cells])
    cells = [cell for row in rows for cell in row[1:] if re.search(r"\(\d", cell)]
    missed = f"{sum(cell.startswith('**') for cell in cells)} of {len(cells)} goals were missed."
    return f"{GOAL}\n{table(['figure', *map('{:,}'.format, CONTEXTS)], rows)}\n\n{missed}\n"


def goal_cell(value: float | None, goal: float | None, before: float | None) -> str:
    """A ratio, in bold type where it is below its goal; in parentheses the goal and the ratio
    before.
    """
    if value is None:
        return ""
    shown = f"{value:.2f}"
    if goal is not None and float(shown) < goal:
        shown = f"**{shown}**"
    about = [f"{goal:g}"] if goal is not None else []
    about += [f"before {before:.2f}"] if before is not None else []
    return f"{shown} ({', '.join(about)})" if about else shown


def commands(found: list[Record]) -> str:
    """What was run, by revision, machine and versions."""
    groups: dict[str, list[str]] = {}
    for r in {r["run"]: r for r in found}.values():
        versions = ", ".join(f"{name} {value}" for name, value in r["versions"].items())
        about = (
            f"{r['time'][:10]}, {r['git_sha'][:12]}, {r['device']}, {r['threads']} threads, "
            f"{r['kernels']}, {versions}"
        )
        groups.setdefault(about, []).append(f"- {r['time'][11:19]}: `{r['command']}`")
    return "\n\n".join(f"{about}:\n\n" + "\n".join(lines) for about, lines in groups.items())


def _activations(r: Record) -> str:
    return (
        "8 bits (the default for such files)"
        if r.get("activations") == "int8"
        else "full precision"
    )


def parts(found: list[Record]) -> Iterator[str]:
    (activations,) = {_activations(r) for r in found if r["task"] in ("speed", "suite")}
    (kv,) = {"8 bits" if r["kv"] == "int8" else "bfloat16" for r in found if ours(r)}
    count = sum(map(ours, found))
    yield HEAD.format(source=SOURCE, count=count, activations=activations, kv=kv)
    yield goals(found, records(BEFORE))
    for model in SIZES:
        yield engines(found, model)
        yield engines(found, model, "edit")
    for model in SIZES:
        for how in TITLES:
            yield tasks(found, model, how)
    yield pair(found)
    yield given(found)
    yield yarn(found)
    yield f"## Origin\n\n{commands(found)}\n"


def main(arguments: list[str]) -> int:
    return write_or_check({PAGE: "\n".join(part for part in parts(load()) if part)}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
