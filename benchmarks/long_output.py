r"""Acceptance and repetition along a long output: how both change with the number of tokens that were generated.

    python benchmarks/long_output.py -m smollm2 --rope yarn:4 --method tokenswift --drafter FOLDER \
        --prompt-file FILE --out FILE

Decodes plainly and with the method, compares the outputs, and appends one record per `--part` tokens.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from longdraft.core import Sampler
from longdraft.core.provenance import relative
from longdraft.drafters import Drafter
from longdraft.engine.decode_session import DecodeSession
from longdraft.engine.measure import distinct
from longdraft.engine.records import provenance
from longdraft.methods import build
from longdraft.models.loading import load


def decoded(session: DecodeSession, drafter: Drafter | None) -> tuple[list[int], list[tuple[int, float]]]:
    """The tokens, and after each step how many there are and the seconds since the first step began."""
    tokens: list[int] = []
    marks: list[tuple[int, float]] = []
    begin = perf_counter()
    for step in session.decode(drafter):
        tokens += step.tokens[0]
        marks.append((len(tokens), perf_counter() - begin))
    return tokens, marks


def part(marks: list[tuple[int, float]], low: int, high: int) -> tuple[float, float]:
    """Tokens per step and tokens per second of the steps that ended after token `low` and by token `high`."""
    before = [m for m in marks if m[0] <= low]
    (n, at), inside = before[-1] if before else (0, 0.0), [m for m in marks if low < m[0] <= high]
    return (inside[-1][0] - n) / len(inside), (inside[-1][0] - n) / (inside[-1][1] - at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--rope")
    parser.add_argument("--method", default="tokenswift")
    parser.add_argument("--drafter", help="a folder; it may have been trained for other rotations than those of --rope")
    parser.add_argument("--prompt-file", type=Path, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--max-new-tokens", type=int, default=20_000)
    parser.add_argument("--part", type=int, default=2_000)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--penalty", type=float, default=1.2)
    parser.add_argument("--min-p", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    lm, tokenizer = load(given.model, rope=given.rope)
    drafter = build(given.method, lm, given.drafter, any_target=given.drafter is not None)
    prompt = tokenizer(given.prompt_file.read_text(encoding="utf-8"))["input_ids"][: given.prompt_tokens]
    sampler = Sampler(given.temperature, min_p=given.min_p, penalty=given.penalty)
    session = DecodeSession(lm, [prompt], given.max_new_tokens, sampler, given.seed, ())
    plain, plain_marks = decoded(session, None)
    tokens, marks = decoded(session, drafter)
    shared: dict[str, Any] = provenance(lm, given.seed) | {
        "task": "long-output",
        "command": shlex.join(["python", "benchmarks/long_output.py", *map(relative, sys.argv[1:])]),
        "method": given.method,
        "text_name": given.prompt_file.name,
        "prompt_tokens": len(prompt),
        "temperature": given.temperature,
        "penalty": given.penalty,
        "min_p": given.min_p,
        "equal": tokens == plain,
    }
    with given.out.open("a", encoding="utf-8") as out:
        for low in range(0, given.max_new_tokens, given.part):
            high = min(low + given.part, given.max_new_tokens)
            length, speed = part(marks, low, high)
            record = {"from": low, "to": high, "mean_acceptance_length": length, "tokens_per_s": speed}
            record["plain_tokens_per_s"] = part(plain_marks, low, high)[1]
            record |= {f"distinct_{n}": distinct([tokens[low:high]], n) for n in (1, 2, 3, 4)}
            record |= {f"distinct_{n}_so_far": distinct([tokens[:high]], n) for n in (1, 2, 3, 4)}
            out.write(json.dumps(shared | record) + "\n")
            print(json.dumps(record | {"equal": shared["equal"]}), flush=True)


if __name__ == "__main__":
    main()
