"""Write docs/results/smollm2.md from benchmarks/records, or check that it matches the records.

python docs/smollm2.py            # after benchmarks/smollm2.sh, whose records go to
benchmarks/records python docs/smollm2.py --check    # exit status 1 if the page is not the one of
the records
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from statistics import median
from typing import Any

from measured import DRAFTED, FREE, ROOT, Record, records, write_or_check
from measured import LONG as MORE

PAGE = ROOT / "docs" / "results" / "smollm2.md"
GIVEN = "2026-11-22-smollm2-given.jsonl.gz"
GIVEN_MORE = "2026-11-23-smollm2-given.jsonl.gz"
OUTPUT = "2026-11-23-smollm2-long-output.jsonl.gz"
LONG = "2026-11-22-long-context.jsonl.gz"
# positions that the model was trained on; texts that a statement needs
POSITIONS = 8192
FEWEST = 3
HEAD = """# SmolLM2-135M-Instruct

Acceptance and speed on a real model: the file that `longdraft fetch smollm2` downloads (Q4_1), its keys and values in
bfloat16. `benchmarks/smollm2.sh` measures, `python docs/smollm2.py` writes this page from the records
`benchmarks/records/{free}`, `{given}` and `{given_more}`, and the last section from
`{long}`, which `benchmarks/long_context.py` measures. Longer contexts and rows side by side are from `{more}`, and
trained drafters from `{trained}`, which `benchmarks/trained.sh` measures.
"""
OWN = """## On text that the model writes

Each cell: mean acceptance length without adaptive drafting (accepted drafts per step and the bonus token), then the
speedup over plain decoding with it, the median of {repeats}; both on up to {tokens} tokens. All outputs equal plain
decoding's. Repetitive output is easy to draft, so acceptance on it proves little: *d* is the share of distinct 3-grams
of plain decoding's output, and below 0.6 the output repeats itself.
"""
DRAFTERS = """## Trained drafters

Some kinds ([Trained drafters](../drafters.md)), beside drafters without weights; `longdraft-drafters` has those
that pay, `eagle3` and `glide`. Cells are as above,
on up to {tokens} tokens, the median of {repeats}. The drafters have not seen these texts: Python's documentation and a
meeting, about which the model is asked, a package's code, and a novel, which it continues.
"""
HUMAN = """## On text that people wrote

Teacher-forced: at {fewest} to {anchors} positions of each text, how many drafts the target accepts if the text up to
there is given. It understates what happens on the model's own text, and it is the same for all methods. Mean acceptance
length ± standard error over windows; controls keep as many keys as the method above them. *minus window*: paired
difference to sink and window at the same budget.
"""
OUTPUTS = """## A long output

`{method}` continues {prompt} tokens of {text} by {tokens:,} tokens, T={temperature:g}, penalty {penalty:g},
`--rope {rope}`: tokens per step in each part of the output, and the share of distinct n-grams in that part and in all
of the output until then. `benchmarks/long_output.py` measures. The output equals plain decoding's: {equal}.
"""
LONGER = """## Long context

The model was trained on {trained:,} positions; `--rope yarn:2` and `yarn:4` give it two and four times as many without
training. Loss in nats per token of the same last {scored} tokens of each text when the model sees its last {shortest:,}
to {longest:,} tokens (those {scored} among them); the model's own weights, not the packed ones, in {dtype}. Column
{trained:,}: the mean loss; *minus none*: its difference to the unscaled model's. Other columns: the difference to the
loss of the same row at {trained:,} tokens. Differences are paired by text, ± is their standard error over texts; [2]:
of 2 texts alone.

Below each table: the largest context at which the loss is at most one standard error above that at {trained:,} tokens
("more context does not hurt"). Cells of fewer than {fewest} texts do not count.
"""
FACTS = """### Facts found in a book

Five unlike sentences (as in "The code of the lighthouse is 48213.") stand at {depths} of a book's
text. The model is asked for each in its chat template, greedy; an answer counts if it has the number. In brackets: the
number of facts found at each depth, in that order. A cell of one book has only five answers.
"""


def task(r: Record) -> str:
    """What was decoded, in a few words."""
    asked = f", asked: {r['question']}" if r.get("question") else ""
    rope = f", `--rope {r['rope']}`" if r.get("rope") else ""
    rows = f", {r['batch']} rows" if r.get("batch", 1) > 1 else ""
    return f"{r['text_name'].removesuffix('.txt')}{asked}{rope}{rows}"


def sampling(r: Record) -> str:
    top = f", top-p {r['top_p']:g}" if "top_p" in r else ""
    return "greedy" if r["temperature"] == 0 else f"T={r['temperature']:g}{top}"


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def own_text(found: list[Record], head: str = OWN) -> str:
    """A table per task, sampler and build of the kernels: a row per method, a column per
    context.
    """
    assert all(r["equal"] for r in found), "an output differs from plain decoding's"
    counts = [r["new_tokens"] for r in found if r["method"] == "plain"]
    # a list: of each row
    tokens = [n for count in counts for n in (count if isinstance(count, list) else [count])]
    repeats = max(r["repeat"] for r in found) + 1
    parts = [head.format(repeats=repeats, tokens=max(tokens))]
    for name, how, build in unique((task(r), sampling(r), r["kernels"]) for r in found):
        same = [r for r in found if (task(r), sampling(r), r["kernels"]) == (name, how, build)]
        contexts = sorted({r["context"] for r in same})
        plain = {
            c: [r for r in same if r["context"] == c and r["method"] == "plain"] for c in contexts
        }
        distinct = [f"{c:,} (d {median(r['distinct_3'] for r in plain[c]):.2f})" for c in contexts]
        rows = []
        for label in unique(
            r["label"].removesuffix("@pace=off") for r in same if r["method"] != "plain"
        ):
            cells = [
                _cell([r for r in same if r["context"] == c], label, plain[c]) for c in contexts
            ]
            rows.append([f"`{label}`", *cells])
        parts.append(
            f"### {name}: {how}, `{build}` kernels\n\n{table(['method', *distinct], rows)}\n"
        )
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

    counts = [r["anchors"] for r in found]
    parts = [HUMAN.format(fewest=min(counts), anchors=max(counts))]
    for key in unique(map(group, found)):
        same = [r for r in found if group(r) == key]
        rows = []
        for r in same:
            window = next(
                (w for w in same if w["method"] == "magicdec-stream" and budget(w) == budget(r)),
                None,
            )
            gain = ""
            if window is not None and window is not r:
                mean, simple, clustered = mean_and_errors(paired(r["accepted"], window["accepted"]))
                gain = f"{mean:+.2f} ± {clustered if clustered is not None else simple:.2f}"
            length = (
                f"{r['mean_acceptance_length']:.2f} ± {r['stderr_clustered'] or r['stderr']:.2f}"
            )
            positions = " ".join(f"{p:.2f}" for p in r["acceptance_per_position"])
            rows.append([f"`{r['label']}`", length, gain, positions])
        header = ["method", "acceptance length", "minus window", "accepted by position"]
        parts.append(f"### {', '.join(key)}\n\n{table(header, rows)}\n")
    return "\n".join(parts)


def long_output(found: list[Record]) -> str:
    """A row per part of the output."""
    first = found[0]
    shared = {
        "prompt": first["prompt_tokens"],
        "text": first["text_name"],
        "tokens": found[-1]["to"],
    }
    shared |= {name: first[name] for name in ("method", "temperature", "penalty", "rope")}
    rows = []
    for r in found:
        here, until = (
            " ".join(f"{r[f'distinct_{n}{all}']:.2f}" for n in (1, 2, 3, 4))
            for all in ("", "_so_far")
        )
        rows.append(
            [f"{r['from']:,} to {r['to']:,}", f"{r['mean_acceptance_length']:.2f}", here, until]
        )
    header = ["tokens", "tokens per step", "Distinct-1 to 4", "of all so far"]
    equal = "yes" if all(r["equal"] for r in found) else "no"
    return OUTPUTS.format(equal=equal, **shared) + "\n" + table(header, rows) + "\n"


def group(r: Record) -> tuple[str, ...]:
    """What records of given text share a table for."""
    when = (
        "after a verification" if r["warmup_rounds"] else "guided by the prompt's last token alone"
    )
    return task(r), f"{r['context']:,} tokens", sampling(r), when


def budget(r: Record) -> str | None:
    """The share of the keys that a method was given."""
    return r["options"].get("keep_ratio")


def long_text(found: list[Record]) -> str:
    """Losses by context, a table per kind of text and one of all; what follows; and the facts
    found.
    """
    losses = [r for r in found if r["task"] == "long-context-loss"]
    contexts = sorted({r["context"] for r in losses})
    kinds = unique(r["text"] for r in losses)
    shared = {
        "trained": POSITIONS,
        "fewest": FEWEST,
        "scored": losses[0]["scored"],
        "shortest": contexts[0],
        "longest": contexts[-1],
    }
    parts = [LONGER.format(**shared, dtype=losses[0]["weights"] or losses[0]["dtype"])]
    for some in [[k] for k in kinds] + [kinds]:
        same = [r for r in losses if r["text"] in some]
        count = len({r["text_sha256"] for r in same})
        rows = [_loss_row(same, rope, contexts) for rope in _ropes(same)]
        header = [
            "rope",
            f"{POSITIONS:,}",
            "minus none",
            *(f"{c:,}" for c in contexts if c != POSITIONS),
        ]
        parts.append(
            f"### Loss: {' and '.join(some)}, {count} "
            f"texts\n\n{table(header, rows)}\n\n{verdict(same)}\n"
        )
    parts.append(facts([r for r in found if r["task"] == "long-context-facts"]))
    return "\n".join(parts)


def _ropes(found: list[Record]) -> list[str | None]:
    return sorted({r["rope"] for r in found}, key=lambda rope: rope or "")


def differences(
    found: list[Record], rope: str | None, context: int, base: str | None
) -> list[float]:
    """Loss at this context minus that of `base` at POSITIONS tokens, for each text that has
    both.
    """
    loss = {(r["rope"], r["context"], r["text_sha256"]): r["loss"] for r in found}
    texts = unique(r["text_sha256"] for r in found)
    both = [t for t in texts if (rope, context, t) in loss and (base, POSITIONS, t) in loss]
    return [loss[rope, context, t] - loss[base, POSITIONS, t] for t in both]


def _signed(values: list[float], texts: int) -> str:
    """Mean and standard error; how many texts it is of, if these are not all."""
    from longdraft.bench.averages import mean_and_errors

    mean, error, _ = mean_and_errors([values])
    return f"{mean:+.3f}{'' if error is None else f' ± {error:.3f}'}{_few(len(values), texts)}"


def _few(count: int, texts: int) -> str:
    return "" if count == texts else f" [{count}]"


def _loss_row(found: list[Record], rope: str | None, contexts: list[int]) -> list[str]:
    texts = len({r["text_sha256"] for r in found})
    here = [r["loss"] for r in found if r["rope"] == rope and r["context"] == POSITIONS]
    mean = f"{sum(here) / len(here):.3f}{_few(len(here), texts)}" if here else ""
    cells = [[] if rope is None else differences(found, rope, POSITIONS, None)]
    cells += [differences(found, rope, c, rope) for c in contexts if c != POSITIONS]
    return [f"`{rope}`" if rope else "none", mean, *(_signed(x, texts) if x else "" for x in cells)]


def verdict(found: list[Record]) -> str:
    """How far each rope may be used: both limits, and contexts that too few texts were measured
    at.
    """
    lines = []
    for rope in _ropes(found):
        measured = {c for c in (r["context"] for r in found) if c >= POSITIONS}
        enough = sorted(c for c in measured if len(differences(found, rope, c, rope)) >= FEWEST)
        own, plain = (_longest(found, rope, enough, base) for base in (rope, None))
        name = f"`--rope {rope}`" if rope else "the unchanged model"
        if not enough:
            lines.append(f"- {name}: measured on fewer than {FEWEST} texts, so nothing is claimed.")
            continue
        line = (
            f"- {name}: more context does not hurt up to {own:,} tokens (enough texts up to "
            f"{enough[-1]:,})"
        )
        also = f"up to {plain:,} tokens" if plain else "nowhere"
        lines.append(
            line
            + (
                f"; no worse than the unscaled model at {POSITIONS:,} tokens: {also}."
                if rope
                else "."
            )
        )
    return "\n".join(lines)


def _longest(found: list[Record], rope: str | None, contexts: list[int], base: str | None) -> int:
    """The last context of the unbroken run from POSITIONS whose loss is no worse than that of
    `base`; 0: none.
    """
    from longdraft.bench.averages import mean_and_errors

    last = 0
    for c in contexts:
        mean, error, _ = mean_and_errors([differences(found, rope, c, base)])
        if mean > (error or 0.0):
            break
        last = c
    return last


def facts(found: list[Record]) -> str:
    """A row per rope, a column per context: how many facts were found, and at which depths."""
    contexts = sorted({r["context"] for r in found})
    rows = []
    for rope in _ropes(found):
        cells = []
        for c in contexts:
            here = [r["found"] for r in found if (r["rope"], r["context"]) == (rope, c)]
            at = [sum(column) for column in zip(*here, strict=True)]
            cells.append(
                f"{sum(at)} of {sum(map(len, here))} ({' '.join(map(str, at))})" if here else ""
            )
        rows.append([f"`{rope}`" if rope else "none", *cells])
    depths = ", ".join(f"{d:.0%}" for d in found[0]["depths"])
    return (
        FACTS.format(depths=depths)
        + "\n"
        + table(["rope", *(f"{c:,}" for c in contexts)], rows)
        + "\n"
    )


def origin(found: list[Record]) -> str:
    """Machines, revisions, versions and commands, once each."""
    lines = []
    for r in {r["run"]: r for r in found}.values():
        versions = ", ".join(f"{name} {value}" for name, value in r["versions"].items())
        lines.append(
            f"- {r['time']}, {r['git_sha'][:12]}, {r['device']}, {r['kernels']}, "
            f"{versions}: `{r['command']}`"
        )
    return "\n".join(lines)


def page() -> str:
    free = records(FREE) + records(MORE)
    given = records(GIVEN) + records(GIVEN_MORE)
    long = records(LONG)
    output = records(OUTPUT)
    trained = records(DRAFTED)
    head = HEAD.format(
        free=FREE, given=GIVEN, given_more=GIVEN_MORE, long=LONG, more=MORE, trained=DRAFTED
    )
    runs = (
        free
        + trained
        + given
        + output
        + list({r["command"]: r for r in reversed(long)}.values())[::-1]
    )
    parts = [
        head,
        own_text(free),
        own_text(trained, DRAFTERS),
        given_text(given),
        long_output(output),
        long_text(long),
    ]
    return "\n".join([*parts, "## Origin\n", origin(runs), ""])


def main(arguments: list[str]) -> int:
    return write_or_check({PAGE: page()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
