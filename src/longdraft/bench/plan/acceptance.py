"""How many drafted tokens are expected to be accepted: stated, measured in records, or usual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import log
from pathlib import Path
from statistics import median
from typing import Any

from longdraft.bench.fields import fault
from longdraft.bench.notes import LOOPS
from longdraft.bench.records import read_records
from longdraft.errors import InputError
from longdraft.methods.spec import MethodSpec

STATED = "stated"
RECORDS = "records"
USUAL = "usual"
# Of a chain's drafted tokens, the share that is accepted where the one before was: rounded from
# this project's records
# (real models, texts that do not repeat themselves, drafts of fixed depth), else from the methods'
# papers.
SHARES = {
    "lookup": 0.3,
    "suffix": 0.4,
    "recycle": 0.25,
    "sd": 0.75,
    "sd-sparse": 0.6,
    "budgetdraft": 0.6,
    "magicdec-stream": 0.85,
    "magicdec-snapkv": 0.9,
    "magicdec-quest": 0.9,
    "vegas": 0.9,
    "vegas-tree": 0.9,
    "vegas-reuse": 0.9,
    "quantspec": 0.85,
    "specextend": 0.7,
    "triforce": 0.85,
    "medusa": 0.4,
    "tokenswift": 0.6,
    "eagle2": 0.6,
    "eagle3": 0.65,
    "mtp": 0.75,
    "dflash": 0.65,
    "longspec": 0.6,
    "longspec-chain": 0.6,
    "longspec-guided": 0.6,
    "random-picks": 0.2,
    "recents": 0.8,
}
OTHER = 0.5  # of a method that is not among them
WIDER = 0.25  # n nodes of a level count as n ** WIDER independent tries, an assumption
# options of a draft's size, not of its quality
DEPTH = {
    "gamma",
    "widths",
    "nodes",
    "count",
    "levels",
    "topk",
}
Breadth = Sequence[int]  # nodes on each level of a draft


@dataclass(frozen=True)
class Acceptance:
    """share: of a chain's tokens whose predecessor was accepted, how many are. origin: STATED,
    RECORDS or USUAL.
    """

    share: float
    origin: str

    def tokens(self, breadth: Breadth) -> float:
        """Expected tokens of a step with such a draft."""
        return 1 + accepted(self.share, breadth)


def accepted(share: float, breadth: Breadth) -> float:
    """Levels of a draft that are accepted, on average; it ends at a level without nodes."""
    total = 0.0
    reached = 1.0
    for n in takewhile(bool, breadth):
        reached *= 1 - (1 - share) ** (n**WIDER)
        total += reached
    return total


def share_of(count: float, breadth: Breadth) -> float:
    """The share at which `count` levels of such drafts are accepted on average, at least 0 and at
    most 1.
    """
    low = 0.0
    high = 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if accepted(middle, breadth) < count else (low, middle)
    return high


def usual(method: str) -> Acceptance:
    return Acceptance(SHARES.get(method, OTHER), USUAL)


def stated(words: Iterable[str]) -> dict[str, float]:
    """`METHOD=TOKENS` -> tokens of a step by method. Raises InputError."""
    found = {}
    for word in words:
        method, equals, number = word.rpartition("=")
        try:
            tokens = float(number)
        except ValueError:
            tokens = 0.0
        if not equals or not method or not 1 <= tokens <= 1024:
            raise InputError(
                f"--acceptance {word[:60]!r}: give METHOD=TOKENS per step, 1 or more, like "
                "vegas=4.5"
            )
        found[method] = tokens
    return found


def from_statement(label: str, tokens: float, breadth: Breadth) -> Acceptance:
    """breadth: of a draft of full size. Raises InputError for more tokens than a step of this
    method can have.
    """
    if tokens > len(breadth) + 1:
        most = f"{label} drafts {len(breadth)} tokens, so give at most {len(breadth) + 1}"
        raise InputError(f"--acceptance {label}={tokens:g}: {most}")
    return Acceptance(share_of(tokens - 1, breadth), STATED)


def read_folder(path: Path) -> list[dict[str, Any]]:
    """The records of decoding and of acceptance in a file or in the files of a folder. Raises
    InputError.
    """
    place = path.expanduser()
    files = (
        sorted([*place.glob("*.jsonl"), *place.glob("*.jsonl.gz")]) if place.is_dir() else [place]
    )
    if not files:
        raise InputError(
            f"--records {path}: the folder has no .jsonl or .jsonl.gz files of longdraft bench"
        )
    records = [r for file in files for _, r in read_records(file)]
    return [r for r in records if fault(r) is None and r["task"] in ("speed", "suite", "anchored")]


def of_model(records: list[dict[str, Any]], model: str) -> list[dict[str, Any]]:
    """Records of a model of this name, of its own drafts, and without outputs that repeat
    themselves.
    """
    names = {model, Path(model).name}
    same = [r for r in records if names & {r["model"], Path(r["model"]).name}]
    return [
        r
        for r in same
        if "oracle" not in r and "peer" not in r and r.get("distinct_3", 1.0) >= LOOPS
    ]


def from_records(
    records: list[dict[str, Any]], spec: MethodSpec, context: int, breadth: Callable[[int], Breadth]
) -> Acceptance | None:
    """The median of a method's records at the context nearest to this one; None if there are none.

    breadth: of the method's drafts of a depth.
    """
    shares: dict[int, list[float]] = {}
    for r in records:
        if (
            r["method"] == spec.name
            and _alike(r.get("options"), spec.options)
            and (s := _share(r, breadth)) is not None
        ):
            shares.setdefault(r["context"], []).append(s)
    if not shares:
        return None
    nearest = min(shares, key=lambda n: abs(log(n / context)))
    return Acceptance(median(shares[nearest]), RECORDS)


def _alike(measured: Any, planned: dict[str, Any]) -> bool:
    """Whether options agree, but for the size of drafts; older records lack some."""
    known = measured if isinstance(measured, dict) else {}
    return all(
        known[key] == value for key, value in planned.items() if key in known and key not in DEPTH
    )


def _share(r: dict[str, Any], breadth: Callable[[int], Breadth]) -> float | None:
    """By the steps that drafted, where a record counts these; else of drafts of fixed depth."""
    metrics = r.get("metrics")
    counts = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if isinstance(counts, dict):
        steps, drafts, taken = (
            counts.get(name)
            for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
        )
        if not all(isinstance(n, int) for n in (steps, drafts, taken)) or not steps:
            return None
        return share_of(taken / steps, breadth(max(1, round(drafts / steps))))
    depth = len(r["acceptance_per_position"])
    if not depth or (r["task"] != "anchored" and r.get("pace") is not False):
        return None
    return share_of(sum(r["acceptance_per_position"]), breadth(depth))
