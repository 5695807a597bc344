"""Write the tables of docs/models.md from the records of benchmarks/coverage.py.

python docs/models.py            # after a run, whose records are put into
benchmarks/records/DATE-coverage.jsonl.gz python docs/models.py --check    # exit status 1 if the
page is not what the records say
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from typing import Any

from measured import ROOT, filled, listed, table, write_or_check

from longdraft.backends.features.indexer import INDEXED
from longdraft.families import FAMILIES
from longdraft.models.gguf.architectures import ARCHITECTURES
from longdraft.models.gguf.splitting import SPLITTINGS

PAGE = ROOT / "docs" / "models.md"
RECORDS = max((ROOT / "benchmarks" / "records").glob("*-coverage.jsonl.gz"))
WORKS = ("exact", "equal")
REFUSED = "refused: "  # what benchmarks/coverage.py writes before a method's refusal
TIED = {*INDEXED, "compressed_sparse_attention"}  # layers with an indexer whose scores may be equal
GROUPS = {"causal": "causal language models", "multimodal": "multimodal types, for text"}


def records() -> list[dict[str, Any]]:
    """The latest record of each kind."""
    with gzip.open(RECORDS, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return sorted({r["kind"]: r for r in lines}.values(), key=lambda r: r["kind"].lower())


def methods(record: dict[str, Any]) -> str:
    """All, or all but those that are refused."""
    refused = [f"`{name}`" for name, why in record["methods"].items() if why.startswith(REFUSED)]
    return f"all but {listed(refused)}" if refused else "all"


def words(name: str) -> str:
    return name.replace("_attention", "").replace("_", " ")


def numbers(record: dict[str, Any]) -> str:
    """The class of a kind that runs, as the page explains it."""
    return f"{record['class']} up to ties" if TIED & set(record["layers"]) else record["class"]


def works(of: list[dict[str, Any]]) -> str:
    rows = (
        (f"`{r['kind']}`", ", ".join(map(words, r["layers"])), r["backend"], numbers(r), methods(r))
        for r in of
        if r["class"] in WORKS
    )
    return table(("model_type", "layers", "backend", "a node's numbers", "methods"), rows).replace(
        "---:", "---"
    )


def refused(of: list[dict[str, Any]]) -> str:
    rows = ((f"`{r['kind']}`", r["why"].replace("|", "\\|")) for r in of if r["class"] not in WORKS)
    return table(("model_type", "why"), rows).replace("---:", "---")


def summary(every: list[dict[str, Any]]) -> str:
    """How many of each group became what, and where the numbers come from."""
    names = ("exact", "equal", "refused", "failed", "unbuilt")
    rows = []
    for group, words in GROUPS.items():
        counts = Counter(r["class"] for r in every if r.get("group", "causal") == group)
        if counts:
            rows.append((words, *(str(counts[name]) for name in names), str(sum(counts.values()))))
    first = every[0]
    runs = Counter(f"`{r['git_sha'][:7]}` ({r['time'][:10]})" for r in every)
    origin = (
        f"Transformers {first['versions']['transformers']}, torch "
        f"{first['versions']['torch']}, float32;"
        " kinds by revision: "
        f"{', '.join(f'{count} at {run}' for run, count in sorted(runs.items()))}."
    )
    return f"{table(('', *names, 'all'), rows)}\n\n{origin}"


def gguf_files() -> str:
    """The architectures that are read with packed weights, and the models that they contain."""
    rows = []
    families = {family.gguf: family for family in FAMILIES if family.gguf}
    for kind, architecture in ARCHITECTURES.items():
        family = families[architecture.like or kind]
        types = [f"`{name}`" for name in (family.model_type, *architecture.others)]
        rows.append((f"`{kind}`", ", ".join(types)))
    return table(("architecture", "model_type"), sorted(rows)).replace("---:", "---")


def gguf_rules() -> str:
    """The names of rules by which byte-level tokenizers split text, and what else they say."""
    facts = {
        "every name": [*SPLITTINGS],
        "a word that is a token stays whole, whatever the merges say": [
            name for name, rule in SPLITTINGS.items() if rule.whole
        ],
        "text begins with the begin-of-text token, unless the file states otherwise": [
            name for name, rule in SPLITTINGS.items() if rule.begins
        ],
        "text is normalized to NFC": [name for name, rule in SPLITTINGS.items() if rule.composed],
    }
    rows = (
        (fact, ", ".join(f"`{name}`" for name in sorted(names))) for fact, names in facts.items()
    )
    return table(("rule", "`tokenizer.ggml.pre`"), rows).replace("---:", "---")


def page(every: list[dict[str, Any]]) -> str:
    text = filled(PAGE.read_text(encoding="utf-8"), "summary", summary(every))
    for group in GROUPS:
        of = [r for r in every if r.get("group", "causal") == group]
        text = filled(text, f"{group} works", works(of))
        text = filled(text, f"{group} refused", refused(of))
    return filled(filled(text, "gguf", gguf_files()), "gguf rules", gguf_rules())


def main(arguments: list[str]) -> int:
    return write_or_check({PAGE: page(records())}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
