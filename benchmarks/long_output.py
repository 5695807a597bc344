"""How acceptance and repetition change along a long output.

    python benchmarks/long_output.py -m smollm2 --method tokenswift --drafter D --prompt-file FILE

Decodes plainly and with the method, compares the outputs, and appends one record per `--part`
tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from arguments import Arguments, at_least, status

from longdraft.core import Sampler
from longdraft.drafters import Drafter
from longdraft.engine.decode_session import DecodeSession
from longdraft.methods import build
from longdraft.models.loading import load
from longdraft.recording.measure import distinct
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance


def decoded(
    session: DecodeSession, drafter: Drafter | None
) -> tuple[list[int], list[tuple[int, float]]]:
    """The tokens, and after each step how many there are and the seconds since the first step
    began.
    """
    tokens: list[int] = []
    marks: list[tuple[int, float]] = []
    begin = perf_counter()
    for step in session.decode(drafter):
        tokens += step.tokens[0]
        marks.append((len(tokens), perf_counter() - begin))
    return tokens, marks


def part(marks: list[tuple[int, float]], low: int, high: int) -> tuple[float, float]:
    """Tokens per step and tokens per second of the steps that ended after token `low` and by token
    `high`.
    """
    before = [m for m in marks if m[0] <= low]
    (n, at), inside = before[-1] if before else (0, 0.0), [m for m in marks if low < m[0] <= high]
    return (inside[-1][0] - n) / len(inside), (inside[-1][0] - n) / (inside[-1][1] - at)


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.change("model", "smollm2", "for tokenswift, give heads trained for it with --drafter")
    parser.change("context", 512, "the output is what grows")
    parser.change("max-new-tokens", 20_000, "a long output is the question")
    parser.share("rope", "temperature", "seed", "out")
    parser.add_argument("--method", default="tokenswift", help="the method")
    parser.add_argument(
        "--drafter",
        help="a folder; it may have been trained for other rotations than those of --rope",
    )
    parser.add_argument(
        "--prompt-file",
        type=Path,
        required=True,
        help="a UTF-8 text file; its beginning is the prompt",
    )
    parser.add_argument("--part", type=at_least(1), default=2_000, help="tokens of a record")
    parser.add_argument("--penalty", type=at_least(1.0), default=1.2, help="repetition penalty")
    parser.add_argument(
        "--min-p",
        type=at_least(0.0),
        default=0.0,
        help="least share of the best token's probability",
    )
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    log = RecordFile(given.out)
    lm, tokenizer = load(given.model, rope=given.rope)
    drafter = build(given.method, lm, given.drafter, any_target=given.drafter is not None)
    prompt = tokenizer(given.prompt_file.read_text(encoding="utf-8"))["input_ids"][: given.context]
    sampler = Sampler(given.temperature, min_p=given.min_p, penalty=given.penalty)
    session = DecodeSession(lm, [prompt], given.max_new_tokens, sampler, given.seed, ())
    plain, plain_marks = decoded(session, None)
    tokens, marks = decoded(session, drafter)
    shared: dict[str, Any] = provenance(lm, given.seed) | {
        "task": "long-output",
        "command": given.command,
        "method": given.method,
        "text_name": given.prompt_file.name,
        "prompt_tokens": len(prompt),
        "temperature": given.temperature,
        "penalty": given.penalty,
        "min_p": given.min_p,
        "equal": tokens == plain,
    }
    for low in range(0, given.max_new_tokens, given.part):
        high = min(low + given.part, given.max_new_tokens)
        length, speed = part(marks, low, high)
        record = {"from": low, "to": high, "mean_acceptance_length": length, "tokens_per_s": speed}
        record["plain_tokens_per_s"] = part(plain_marks, low, high)[1]
        record |= {f"distinct_{n}": distinct([tokens[low:high]], n) for n in (1, 2, 3, 4)}
        record |= {f"distinct_{n}_so_far": distinct([tokens[:high]], n) for n in (1, 2, 3, 4)}
        log.append(shared | record)
        print(json.dumps(record | {"equal": shared["equal"]}), flush=True)


if __name__ == "__main__":
    sys.exit(status(main))
