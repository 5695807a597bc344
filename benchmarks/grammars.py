"""How fast and how right masks are: llguidance, which longdraft uses, beside xgrammar.

    python benchmarks/grammars.py -m smollm2 benchmarks/records/2026-11-26-structured.jsonl.gz

For each of the 200 schemas of schemas.py: whether an engine accepts it and how long compiling
takes; the time of each mask along the model's answer in a file of records of structured.py, with
none, 12 and 68 drafted nodes below the text, what was rolled back between nodes included; and
whether texts of random tokens that the masks allow are valid by the package jsonschema. Then the
time of applying masks to logits, beside torch's masked_fill. xgrammar is no dependency of
longdraft: pip install xgrammar, or give --engines llguidance.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from arguments import Arguments, at_least, several, status
from engines import ENGINES, Engine
from schemas import Case, cases
from validity import checker

from longdraft.constraints.masks import excluded
from longdraft.constraints.progress import Path, Progress
from longdraft.errors import InputError
from longdraft.models.loading import load, quiet
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance

SHAPES = {"text": 1, "chain": 13, "tree": 69}  # nodes below and at the end of a text
STEPS = 200  # of a walk
CLOSING = ('"', "}", "]", ",")  # what a token begins with that ends something


class Masks:
    """What one engine does with one schema, over the tokens of one model."""

    def __init__(self, engine: Engine, case: Case, tokenizer: Any, ends: tuple[int, ...]):
        self.case = case
        self.tokenizer = tokenizer
        self.ends = ends
        begin = perf_counter()
        self.new = engine.compiled(case.schema)
        self.compile_s = perf_counter() - begin
        bits = np.zeros(8 * len(self.new().compute_bitmask()), np.uint8)
        bits[list(ends)] = 1
        self.only_ends = np.packbits(bits, bitorder="little").tobytes()

    def progress(self) -> Progress:
        """With nothing known from before."""
        return Progress(self.new, self.ends, self.only_ends)

    def times(
        self, tokens: list[int], trees: dict[str, list[tuple[int, list[Path]]]]
    ) -> dict[str, dict[str, int]]:
        """{shape: {microseconds of a mask: how many took so long}}."""
        found = {}
        for shape, each in trees.items():
            progress = self.progress()
            taken = Counter[str]()
            for length, paths in each:
                progress.move_to(tokens[:length])
                for path in paths:
                    begin = perf_counter()
                    progress.mask(path)
                    taken[str(round(1e6 * (perf_counter() - begin)))] += 1
            found[shape] = dict(taken)
        return found

    def walk(self, seed: int, closing: np.ndarray) -> tuple[str, str]:
        """A text of random tokens that the masks allow: what became of it, and what is wrong with
        it.
        """
        r = random.Random(seed)
        progress = self.progress()
        tokens = list[int]()
        while len(tokens) < STEPS:
            progress.move_to(list(tokens))  # which keeps the list
            allowed = ids(progress.mask(()))
            inside = allowed[~np.isin(allowed, self.ends)]
            if not len(inside):
                text = self.tokenizer.decode(
                    tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
                )
                fault = checker(self.case.schema)(text)
                return ("invalid", f"{fault} in {text[:200]}") if fault else ("valid", "")
            short = inside[closing[inside]]
            tokens.append(int(r.choice(short if len(short) and r.random() < 0.3 else inside)))
        return "unfinished", ""


def ids(mask: bytes | None) -> np.ndarray:
    return np.unpackbits(np.frombuffer(mask or b"", np.uint8), bitorder="little").nonzero()[0]


def trees_along(
    masks: Masks, tokens: list[int], seed: int
) -> dict[str, list[tuple[int, list[Path]]]]:
    """For each shape: lengths of the text, and the paths below it whose masks are computed."""
    r = random.Random(seed)
    progress = masks.progress()
    end = len(tokens)
    chains = [(n, [tuple(tokens[n : n + i]) for i in range(13)]) for n in range(0, end - 12, 13)]
    trees = []
    for n in range(0, end - 8, 24):
        progress.move_to(tokens[:n])
        paths: list[Path] = [()]
        while len(paths) < SHAPES["tree"]:
            above = paths[-1] if r.random() < 0.5 else r.choice(paths)
            next_ = (
                tokens[n + len(above)]
                if list(above) == tokens[n : n + len(above)] != tokens[n:]
                else None
            )
            if next_ is None or (*above, next_) in paths:
                allowed = ids(progress.mask(above))
                next_ = (
                    int(r.choice(allowed))
                    if len(allowed) and r.random() < 0.9
                    else r.randrange(1000)
                )
            if (*above, next_) not in paths or r.random() < 0.1:
                paths.append((*above, next_))
        trees.append((n, paths))
    return {"text": [(n, [()]) for n in range(end)], "chain": chains, "tree": trees}


def applied(vocab: int, nodes: int, repeat: int = 30) -> dict[str, Any]:
    """Microseconds a node of applying masks, and of torch's masked_fill with the same masks
    unpacked.
    """
    mask = np.random.default_rng(0).integers(0, 256, -(-vocab // 8), dtype=np.uint8).tobytes()
    logits = torch.zeros(1, nodes, vocab)

    def filled() -> torch.Tensor:
        bits = np.unpackbits(
            np.frombuffer(mask * nodes, np.uint8).reshape(1, nodes, -1), axis=-1, bitorder="little"
        )
        return logits.masked_fill((torch.from_numpy(bits) == 0)[..., :vocab], float("-inf"))

    taken: dict[str, list[float]] = {"longdraft": [], "masked_fill": []}
    for _ in range(repeat):
        for name, apply in (
            ("longdraft", lambda: excluded(logits, [[mask] * nodes])),
            ("masked_fill", filled),
        ):
            begin = perf_counter()
            apply()
            taken[name].append(1e6 * (perf_counter() - begin) / nodes)
    return {name: median(each) for name, each in taken.items()}


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.change("model", "smollm2", "the records are of its answers")
    parser.share("every", "threads", "seed", "out")
    parser.add_argument(
        "--engines",
        type=several(),
        default="llguidance,xgrammar",
        help="engines, with commas between",
    )
    parser.add_argument(
        "--walks", type=at_least(0), default=4, metavar="N", help="texts of random tokens a schema"
    )
    parser.take_records()
    return parser


def measured(
    given: Any, engines: list[Engine], target: Any, tokenizer: Any
) -> list[dict[str, Any]]:
    """A record for each engine and schema."""
    ends = target.end_tokens
    found = []
    texts = {
        r["case"]: r["text"] for r in given.records if r.get("task") == "structured" and "text" in r
    }
    words = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    closing = np.zeros(8 * (target.vocab // 8 + 8), bool)
    closing[: len(words)] = [word.lstrip().startswith(CLOSING) for word in words]
    for case in cases()[:: given.every]:
        trees = None
        tokens = tokenizer(texts.get(case.name, ""), add_special_tokens=False)["input_ids"]
        for engine in engines:
            about: dict[str, Any] = {
                "engine": engine.name,
                "engine_version": engine.version,
                "case": case.name,
                "family": case.family,
            }
            about["enforceable"] = case.enforceable
            try:
                masks = Masks(engine, case, tokenizer, ends)
            except InputError as error:
                found.append(about | {"refused": str(error)})
                continue
            if tokens and trees is None:
                trees = trees_along(masks, tokens, given.seed)
            walks = [masks.walk(given.seed + i, closing) for i in range(given.walks)]
            about |= {
                "compile_s": masks.compile_s,
                "walks": dict(Counter(what for what, _ in walks)),
            }
            about |= {"faults": [fault for _, fault in walks if fault]}
            found.append(about | {"microseconds": masks.times(tokens, trees or {})})
    return found


def main(words: list[str] | None = None) -> int:
    given = options().parse(words)
    quiet(given.threads)
    checker(True)
    unknown = [name for name in given.engines if name not in ENGINES]
    if unknown:
        raise InputError(f"--engines has {unknown[0]}: give {' or '.join(ENGINES)}")
    log = RecordFile(given.out)
    before = os.getloadavg()[0]
    target, tokenizer = load(given.model)
    engines = [ENGINES[name](tokenizer, target.vocab, target.end_tokens) for name in given.engines]
    shared = provenance(target, given.seed) | {
        "task": "grammars",
        "command": given.command,
        "load_before": before,
        "vocab": target.vocab,
    }
    found = measured(given, engines, target, tokenizer)
    found += [{"nodes": n, "applied": applied(target.vocab, n)} for n in SHAPES.values()]
    for record in found:
        log.append(shared | record)
    for engine in engines:
        own = [r for r in found if r.get("engine") == engine.name]
        walks = sum((Counter(r.get("walks", {})) for r in own), Counter[str]())
        times = {shape: Counter[str]() for shape in SHAPES}
        for r in own:
            for shape, taken in r.get("microseconds", {}).items():
                times[shape].update(taken)
        print(
            f"{engine.name} {engine.version}: {sum('refused' in r for r in own)} refused; "
            f"walks {dict(walks)}"
        )
        print("  " + "; ".join(f"{shape}: {quantiles(taken)}" for shape, taken in times.items()))
    for r in found[-len(SHAPES) :]:
        print(f"applied to {r['nodes']} nodes: {r['applied']}")
    return 0


def quantiles(taken: Counter[str]) -> tuple[int, int, int]:
    """Median, 95th percentile and maximum."""
    each = sorted(int(us) for us in taken.elements())
    return (each[len(each) // 2], each[len(each) * 95 // 100], each[-1]) if each else (0, 0, 0)


if __name__ == "__main__":
    sys.exit(status(main))
