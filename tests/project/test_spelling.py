"""Documents, code and messages are in American spelling: a word of the list below, also inside a
name, is caught.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = {
    ".py",
    ".md",
    ".cpp",
    ".h",
    ".js",
    ".mjs",
    ".css",
    ".html",
    ".toml",
    ".yml",
    ".yaml",
    ".sh",
    ".cff",
}
TEXTS = re.compile(r"benchmarks/models/|src/longdraft/assets/text/")  # as others wrote them
STEMS = (  # before ise, ised, ising, isation ...
    "amort|author|categor|character|discret|emphas|final|general|initial|local|maxim|minim|modern|modular|neutral|normal|"
    "optim|organ|parallel|parametr|penal|priorit|quant|random|real|recogn|serial|special|stabil|standard|summar|symbol|"
    "synchron|token|util|vector|visual"
)
WORDS = (
    "afterwards|analyse|analysed|analyser|artefact|behaviour|catalogue|centre|centred|colour|defence|favour|fibre|fulfil|"
    "grey|honour|judgement|labelled|labelling|learnt|licence|metre|misspelt|modelled|modelling|neighbour|offence|programme|"
    "sceptical|signalled|signalling|spelt|towards|travelled|unlabelled|whilst"
)
BRITISH = re.compile(
    rf"(?:un|de|re|pre)?(?:{STEMS})is(?:e[drs]?|ers|ing|ations?|able)|"
    rf"(?:{WORDS})(?:s|ed|ing|able|s?hood|al|less|ly)?",
    re.IGNORECASE,
)
# a file of version 0.1.0, which is still read, and a former name
KEPT = {
    "optimisers.pt",
    "LM.quantised",
}
# _, digits and an inner capital (CamelCase) separate the words of a name
WORD = re.compile("[A-Z]+[a-z]*|[a-z]+")


@cache  # the repository has far fewer different words than words
def is_british(word: str) -> bool:
    return BRITISH.fullmatch(word) is not None


def british(text: str) -> list[str]:
    """The British words of a text, with repetitions."""
    for name in KEPT:
        text = text.replace(name, "")
    return [word for word in WORD.findall(text) if is_british(word)]


def test_every_file_is_in_american_spelling():
    try:
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout of git")
    files = [
        n
        for n in names.split("\0")
        if Path(n).suffix in KINDS and not TEXTS.match(n) and (ROOT / n).is_file()
    ]
    assert len(files) > 500
    files = [n for n in files if ROOT / n != Path(__file__).resolve()]
    faults = {n: words for n in files if (words := british((ROOT / n).read_text(encoding="utf-8")))}
    assert not faults, f"British spellings: {faults}"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("A quantised copy.", "quantised"),
        ("def dequantised(self)", "dequantised"),
        ("made._tokenised_text", "tokenised"),
        ("class OptimiserState:", "Optimiser"),
        ("MOST_NEIGHBOURS = 3", "NEIGHBOURS"),
        ("drawn in grey", "grey"),
        ("Synchronisation", "Synchronisation"),
    ],
)
def test_british_spellings_are_caught(text, word):
    assert british(text) == [word]


def test_words_of_both_spellings_pass():
    assert (
        british(
            "otherwise precise noise promise raised; four hours; labels, centers; "
            "aria-labelledby; cancelled"
        )
        == []
    )
