"""Answers under 200 JSON schemas: whether they are valid, and what drafts and forced tokens save.

    python benchmarks/structured.py -m smollm2

A model answers the question of each schema of schemas.py, through its chat template, under a
constraint: plainly, by each method, and without the constraint for as many tokens. The method
`forced` drafts the tokens that the schema forces, and nothing else. An answer that has ended must
be valid by the package jsonschema, one that reaches the limit must be the beginning of a text that
can go on, and every method's tokens must be plain decoding's: else the exit status is 1. With
--inline, each method runs again with its masks computed after each pass instead of beside it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

from arguments import Arguments, status
from schemas import Case, cases
from validity import checker

from longdraft import Sampler, Stats, generate
from longdraft.constraints import Constraints, Grammar
from longdraft.drafters import Drafter, PlainDecoding
from longdraft.drafters.forced import Forced
from longdraft.errors import InputError
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.spec import MethodSpec
from longdraft.models.chat import chat_tokens
from longdraft.models.lm import LM
from longdraft.models.loading import load, quiet
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance

PLAIN = "plain"
FORCED = "forced"
FREE = "unconstrained"
INLINE = ", masks in line"
VALID = "valid"
CUT = "cut"
WRONG = "wrong"


@contextmanager
def inline(active: bool) -> Iterator[None]:
    """Masks are not computed beside a pass, but when they are needed."""
    if not active:
        yield
        return
    with patch.object(Grammar, "prepare", lambda self, tree, rows: None):
        yield


def drafters(methods: list[str], target: LM, model: str) -> dict[str, Drafter | None]:
    """That of each method; those whose weights are missing are left out, with a line that says
    so.
    """
    made: dict[str, Drafter | None] = {PLAIN: None}
    weights = DrafterWeights(model=model)
    for method in methods:
        try:
            made[method] = (
                Forced(PlainDecoding()) if method == FORCED else _made(method, target, weights)
            )
        except InputError as error:
            print(f"{method} is left out: {error}")
    return made | {PLAIN: None}


def _made(method: str, target: LM, weights: DrafterWeights) -> Drafter:
    return MethodSpec(method, method, {}, weights).paced(target)


def judged(
    case: Case, grammar: Grammar, tokens: list[int], tokenizer: Any, ends: tuple[int, ...]
) -> tuple[str, str]:
    """What became of an answer, and what is wrong with it."""
    if tokens[-1] in ends:
        fault = checker(case.schema)(text_of(tokenizer, tokens))
        return (WRONG, fault) if fault else (VALID, "")
    matcher = grammar.matcher()
    consumed = matcher.try_consume_tokens(tokens)
    if consumed == len(tokens) and not matcher.is_error() and any(matcher.compute_bitmask()):
        return CUT, ""
    return WRONG, f"cut, and no beginning of a valid text after {consumed} of {len(tokens)} tokens"


def text_of(tokenizer: Any, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


class Answers:
    """Decodes the answers of one model, and describes them as records."""

    def __init__(self, target: LM, tokenizer: Any, methods: dict[str, Drafter | None], given: Any):
        self.target = target
        self.tokenizer = tokenizer
        self.methods = methods
        self.given = given
        begin = perf_counter()
        self.constraints = Constraints.of(target, tokenizer)
        self.vocabulary_s = perf_counter() - begin

    def record(self, case: Case) -> dict[str, Any]:
        """Of one schema: `refused` says why, else `runs` has what each method did."""
        begin = perf_counter()
        about = {"case": case.name, "family": case.family, "enforceable": case.enforceable}
        try:
            grammar = self.constraints.json_schema(case.schema)
        except InputError as error:
            return about | {"refused": str(error)}
        about |= {"compile_s": perf_counter() - begin, "vocabulary_s": self.vocabulary_s}
        prompt = chat_tokens(self.tokenizer, [{"role": "user", "content": case.question}])
        plain, runs = self._run(prompt, grammar, PLAIN)
        result, fault = judged(case, grammar, plain, self.tokenizer, self.target.end_tokens)
        for method in self.methods:
            for beside in (False, True) if self.given.inline and method != PLAIN else (False,):
                if method != PLAIN:
                    tokens, run = self._run(prompt, grammar, method, beside)
                    runs |= {method + INLINE * beside: run[method] | {"equal": tokens == plain}}
        runs |= self._run(prompt, None, FREE, new=len(plain))[1]
        told = {
            "result": result,
            "fault": fault,
            "text": text_of(self.tokenizer, plain),
            "prompt_tokens": len(prompt),
        }
        return about | told | {"runs": runs}

    def _run(
        self,
        prompt: list[int],
        grammar: Grammar | None,
        method: str,
        beside: bool = False,
        new: int = 0,
    ) -> tuple[list[int], dict[str, Any]]:
        """An answer's tokens, and {method: what it took}. new: this many tokens (0: up to the
        limit).
        """
        stats = Stats()
        sampler = Sampler(self.given.temperature, constraint=grammar)
        with inline(beside):
            (tokens,) = generate(
                self.target,
                [prompt],
                self.methods.get(method),
                max_new_tokens=new or self.given.max_new_tokens,
                sampler=sampler,
                seed=self.given.seed,
                eos=() if new else None,
                stats=stats,
            )
        drafts = {"accepted": stats.drafts.accepted, "drafted": stats.drafts.drafted}
        seconds = {"decode_s": stats.decode_s, "draft_s": stats.draft_s, "verify_s": stats.verify_s}
        return tokens, {
            method: {"tokens": len(tokens), "passes": stats.steps + 1} | drafts | seconds
        }


def summary(records: list[dict[str, Any]]) -> list[str]:
    """What was found, in a few lines; docs/structured_output.py has the tables."""
    answered = [r for r in records if "runs" in r]
    results = Counter(r["result"] for r in answered)
    lines = [
        f"{len(answered)} schemas: " + ", ".join(f"{results[x]} {x}" for x in (VALID, CUT, WRONG))
    ]
    refused = [r for r in records if "refused" in r]
    lines += [
        f"{len(refused)} schemas refused, {sum(r['enforceable'] for r in refused)} of them "
        "enforceable"
    ]
    lines += [f"{r['case']}: {r['fault']}" for r in answered if r["result"] == WRONG]
    for method in answered[0]["runs"] if answered else ():
        runs = [(r["runs"][method], r["runs"][PLAIN]) for r in answered]
        tokens, passes, seconds = (
            sum(run[x] for run, _ in runs) for x in ("tokens", "passes", "decode_s")
        )
        speedup = median(speed(run) / speed(plain) for run, plain in runs)
        unequal = sum(not run.get("equal", True) for run, _ in runs)
        lines += [
            f"{method}: {passes / tokens:.2f} passes a token, {tokens / seconds:.0f} "
            f"tokens/s, median {speedup:.2f}x"
            f" of plain, {unequal} unequal"
        ]
    return lines


def speed(run: dict[str, Any]) -> float:
    return run["tokens"] / run["decode_s"]


def is_good(record: dict[str, Any]) -> bool:
    """Whether a schema was enforced and every method agreed, or was refused for a reason."""
    if "refused" in record:
        return not record["enforceable"]
    return (
        record["enforceable"]
        and record["result"] != WRONG
        and all(r.get("equal", True) for r in record["runs"].values())
    )


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.change("model", "smollm2", "it has a chat template and is small")
    parser.change(
        "methods",
        ["plain", "forced", "suffix", "vegas", "auto", "eagle3"],
        "each drafts in its own way",
    )
    parser.change("temperature", 0.0, "answers that are read by programs are greedy as a rule")
    parser.change("max-new-tokens", 128, "most answers have ended by then")
    parser.share("every", "dtype", "weights", "threads", "seed", "out")
    parser.add_argument(
        "--inline", action="store_true", help="also run methods with masks computed in line"
    )
    return parser


def main(words: list[str] | None = None) -> int:
    given = options().parse(words)
    quiet(given.threads)
    checker(True)
    log = RecordFile(given.out)
    before = os.getloadavg()[0]
    target, tokenizer = load(given.model, given.dtype, weights=given.weights)
    answers = Answers(target, tokenizer, drafters(given.methods, target, given.model), given)
    shared = provenance(target, given.seed) | {
        "task": "structured",
        "command": given.command,
        "load_before": before,
    }
    shared |= {"temperature": given.temperature, "max_new_tokens": given.max_new_tokens}
    chosen = cases()[:: given.every]
    # so that nothing is run for the first time
    answers.record(next(case for case in chosen if case.enforceable))
    records = []
    for case in chosen:
        records.append(answers.record(case))
        log.append(shared | records[-1])
    print("\n".join(summary(records)))
    return int(not all(map(is_good, records)))


if __name__ == "__main__":
    sys.exit(status(main))
