"""A grammar fails at its limit and where nothing can follow: for one path alone, and the row that
takes it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support import grammars, tiny
from support.grammars import END, rows_of
from support.sessions import Ends, finish

from longdraft import InputError, Sampler, Session, Stats, generate, stream
from longdraft.constraints import Grammar
from longdraft.constraints.progress import Progress
from longdraft.core import Tree
from longdraft.drafters import Drafter, PlainDecoding
from longdraft.drafters.forced import Forced

RULES = 120  # so many ways to read each letter that the sixth is the last which llguidance can read
LETTERS = 6


def tokens_of(text: str) -> list[int]:
    return grammars.tokenizer()(text, add_special_tokens=False)["input_ids"]


A, X, Y, COMMA = (tokens_of(c)[0] for c in "axy,")


def costly() -> Grammar:
    """A new grammar whose texts are "(aaa", then x and y; a row of LETTERS + 1 letters is beyond
    the limit.
    """
    letters = "".join(f't{i}: t{i} t{i} | "a"\n' for i in range(RULES))
    ways = " | ".join(f"t{i}" for i in range(RULES))
    made = grammars.constraints()
    made.forget()
    return made.grammar(f'start: "(" s rest\ns: {ways}\n{letters}rest: ("x" | "y")+\n')


@cache
def dead_end() -> Grammar:
    """JSON objects in which nothing can follow a comma: x is the only property, and it is written
    by then.
    """
    integer = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"type": "object", "properties": {"x": integer}, "patternProperties": {"^x$": integer}}
    return grammars.constraints().json_schema(schema | {"additionalProperties": False})


def masks(made: Grammar, text: list[int], tree: Tree) -> list[set[int]]:
    masked = made.masked(torch.zeros(1, tree.size, 96), tree, rows_of(tiny.prompts(20)[0], text))[0]
    return [set((row == 0).nonzero()[:, 0].tolist()) for row in masked]


def check_branches(pairs: list[tuple[int, int]]) -> None:
    """Every node is masked as on its own path alone, read by a grammar that has read nothing
    else.
    """
    text = tokens_of("(" + "a" * (LETTERS - 1))
    tree = Tree.root(torch.tensor([text[-1]])).plant([pairs])
    paths = list[tuple[int, ...]]([()])
    for parent, token in pairs:
        paths.append((*paths[parent], token))
    found = masks(costly(), text, tree)
    for path, allowed in zip(paths, found, strict=True):
        chain = Tree.root(torch.tensor([text[-1]])).plant([list(enumerate(path))])
        assert masks(costly(), text, chain)[-1] == allowed, path
    assert {END} in found and {END, X, Y} in found  # a branch failed, another did not


BEFORE = [(0, A), (1, A), (2, A), (0, X), (4, Y)]
AFTER = [(0, X), (0, A), (1, Y), (2, A), (4, X), (3, X)]


@pytest.mark.full
@pytest.mark.parametrize(
    "pairs", [BEFORE, AFTER], ids=["the others follow", "the others begin before"]
)
def test_a_branch_at_the_limit_leaves_the_others_as_they_are(pairs):
    check_branches(pairs)


class Both(Drafter):
    """Drafts letters, then x and y on a branch of their own, in each step."""

    max_depth = 3

    def grow(self, tree, seqs, limits):
        pairs = [(0, A), (1, A), (2, A), (0, X), (4, Y)]
        return tree.plant([pairs] * len(seqs.length)) if limits.depth >= 3 else tree


def ended(
    drafter: Drafter | None, sampler: Sampler, seed: int, new: int = 16
) -> tuple[list[int], str]:
    """A text, and why it failed if it did."""
    text = list[int]()
    steps = stream(tiny.target("llama"), tiny.prompts(20), drafter, new, sampler, seed, (END,))
    try:
        for step in steps:
            text += step.tokens[0]
    except InputError as error:
        return text, str(error)
    return text, ""


def likely(**numbers: float) -> tuple[tuple[int, float], ...]:
    return tuple((tokens_of(c)[0], n) for c, n in numbers.items())


def check_drafts() -> None:
    """Texts with drafts that reach the limit are plain decoding's, and fail where it fails."""
    failed = set[bool]()
    for seed in range(6):
        sampler = Sampler(1.0, bias=likely(a=10, x=3, y=3))
        plain = ended(None, replace(sampler, constraint=costly()), seed)
        assert ended(Both(), replace(sampler, constraint=costly()), seed) == plain
        failed.add(bool(plain[1]))
    assert failed == {True, False}


@pytest.mark.full
def test_drafts_that_reach_the_limit_do_not_change_the_text():
    check_drafts()


FAULTS = {
    "a matcher that is kept after an error": lambda mp: mp.setattr(
        Progress, "_renew", lambda self: None
    ),
    "an error that ends the row": lambda mp: mp.setattr(Progress, "_after", _for_ever),
    "a failed text that ends like any other": lambda mp: mp.setattr(
        Grammar, "failure", lambda self, rows, row: ""
    ),
}


def _for_ever(self, path, real=Progress._after):
    allowed = self._only_ends if getattr(self, "gone", False) else real(self, path)
    self.gone = bool(self._failed)
    return allowed


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault_is_caught(fault, monkeypatch):
    FAULTS[fault](monkeypatch)
    with pytest.raises(AssertionError):
        check_branches(BEFORE)
        check_drafts()


class Tiring:
    """A matcher that gives up after so many masks, whatever it has read, as one whose memory is
    full.
    """

    def __init__(self, matcher: Any, left: int):
        self.matcher = matcher
        self.left = left

    def compute_bitmask(self) -> bytes:
        self.left -= 1
        return self.matcher.compute_bitmask()

    def is_error(self) -> bool:
        return self.left < 0

    def rollback(self, count: int) -> bool:
        return not self.is_error() and self.matcher.rollback(count)

    def try_consume_tokens(self, tokens: list[int]) -> int:
        return 0 if self.is_error() else self.matcher.try_consume_tokens(tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.matcher, name)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_limit_that_depends_on_what_was_read_before_changes_nothing(most, monkeypatch):
    sampler = grammars.constrained(Sampler(1.0))
    real = Grammar.matcher
    expected = ended(None, sampler, 3, 40)
    monkeypatch.setattr(Grammar, "matcher", lambda self: Tiring(real(self), most))
    grammars.grammar()._rows.clear()
    try:
        assert ended(None, sampler, 3, 40) == expected and ended(Both(), sampler, 3, 40) == expected
    finally:
        grammars.grammar()._rows.clear()


@pytest.mark.parametrize("eos", [(END,), ()], ids=["end tokens", "none"])
@pytest.mark.parametrize(
    "drafter", [None, Both(), Forced(PlainDecoding())], ids=["plain", "drafts", "forced"]
)
def test_a_dead_end_fails_with_its_reason(drafter, eos):
    sampler = Sampler(bias=((COMMA, 50.0),), constraint=dead_end())
    steps = stream(tiny.target("llama"), tiny.prompts(20), drafter, 24, sampler, 0, eos)
    text = list[int]()
    with pytest.raises(
        InputError, match="the JSON schema could not be followed to its end: nothing can follow"
    ):
        for step in steps:
            text += step.tokens[0]
    said = grammars.said(text if eos else text[: text.index(END)])
    assert said.startswith('{"x": ') and said.endswith(", ")


def test_a_row_that_fails_fails_alone():
    lm = tiny.target("llama")
    prompts = tiny.prompts(20, 33, 27)
    failing = Sampler(bias=((COMMA, 50.0),), constraint=dead_end())
    well = grammars.constrained(Sampler())
    text, _ = ended(None, failing, 0)
    with Session(lm, Both(), 3, 256) as session:
        asked = [
            session.submit(prompt, 60, seed, (END,), sampler, logprobs=1)
            for seed, (prompt, sampler) in enumerate(
                zip(prompts, (failing, well, failing), strict=True)
            )
        ]
        ends = finish(session, Ends())
    assert [ends.how[id] for id in asked] == ["failed", "eos", "failed"]
    assert (
        "nothing can follow the text" in str(ends.errors[asked[0]]) and ends.texts[asked[0]] == text
    )
    expected = generate(lm, [prompts[1]], max_new_tokens=60, sampler=well, seed=1, eos=(END,))[0]
    assert ends.texts[asked[1]] == expected


def test_the_other_rows_of_a_batch_are_decoded_to_their_ends():
    """What follows the comma is sampled: some rows come to the dead end, and the error comes after
    the last row.
    """
    sampler = Sampler(1.0, bias=((COMMA, 1.0),), constraint=dead_end())
    rows = [list[int]() for _ in range(8)]
    failed = dict[int, InputError]()
    with pytest.raises(InputError, match=r"row \d: the JSON schema"):
        for step in stream(
            tiny.target("llama"), tiny.prompts(*[20] * 8), None, 24, sampler, 1, (END,)
        ):
            failed |= step.failed
            for row, tokens in zip(rows, step.tokens, strict=True):
                row += tokens
    assert 0 < len(failed) < 8
    for b, row in enumerate(rows):
        assert (row[-1] == END) == (b not in failed) and (grammars.said(row)[-1] == "}") == (
            b not in failed
        )


def test_a_text_that_only_reaches_its_limit_has_not_failed():
    sampler = Sampler(bias=((COMMA, 50.0),), constraint=dead_end())
    text, why = ended(None, sampler, 0, 4)
    assert len(text) == 4 and not why


def test_a_recursion_that_cannot_end_is_refused():
    child = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}
    schema = {"$ref": "#/$defs/n", "$defs": {"n": child | {"additionalProperties": False}}}
    with pytest.raises(InputError, match="the JSON schema cannot be used: "):
        grammars.constraints().json_schema(schema)


class Further(Drafter):
    """Drafts the end of the text, and letters after it."""

    max_depth = 4

    def grow(self, tree, seqs, limits):
        return tree.plant([[(0, END), (1, A), (2, A), (0, A)]]) if limits.depth >= 3 else tree


def check_after_the_end() -> None:
    made = grammars.grammar("regex")
    text = tokens_of("abc-end")
    tree = Tree.root(torch.tensor([text[-1]])).plant([[(0, END), (1, A), (2, A), (1, END)]])
    assert masks(made, text, tree) == [{END}] * 5
    sampler = Sampler(bias=((A, 50.0),), constraint=grammars.grammar("choice"))
    plain, drafted = (
        generate(
            tiny.target("llama"), tiny.prompts(30), d, max_new_tokens=12, sampler=sampler, eos=()
        )[0]
        for d in (None, Further())
    )
    assert drafted == plain and set(plain[plain.index(END) :]) == {END}


def test_after_an_end_token_inside_a_path_only_end_tokens_follow():
    check_after_the_end()


def test_a_path_that_goes_on_after_its_end_is_caught(monkeypatch):
    monkeypatch.setattr(
        Progress,
        "_after",
        lambda self, path: self._only_ends if self.over else self._allowed(path)[0],
    )
    grammars.grammar("regex")._rows.clear()
    with pytest.raises(AssertionError):
        check_after_the_end()


def check_equal_seeds(samplers: list[Sampler]) -> None:
    """Rows with equal seeds and lengths write different words, of which all but the first letter is
    forced.
    """
    lm = tiny.target("llama")
    stats = Stats()
    prompts = [tiny.prompts(n)[0][-20:] for n in (70, 72, 90)]
    with Session(lm, Forced(PlainDecoding()), 3, 256, stats=stats) as session:
        asked = [
            session.submit(p, 20, 7, (END,), s) for p, s in zip(prompts, samplers, strict=True)
        ]
        ends = finish(session, Ends())
    alone = [
        generate(lm, [p], max_new_tokens=20, sampler=s, seed=7, eos=(END,))[0]
        for p, s in zip(prompts, samplers, strict=True)
    ]
    assert [ends.texts[id] for id in asked] == alone and len({*map(tuple, alone)}) == 3
    assert stats.drafts.drafted == stats.drafts.accepted == sum(len(text) - 1 for text in alone)


WORDS = [chr(97 + i) + "".join(chr(97 + i * j % 26) for j in range(8)) for i in range(1, 26)]
SAME = [Sampler(constraint=grammars.constraints().choice(WORDS))] * 3
OWN = [replace(SAME[0], temperature=t, bias=((3, t),)) for t in (0.1, 0.2, 0.3)]


@pytest.mark.parametrize("samplers", [SAME, OWN], ids=["one sampler", "their own"])
def test_rows_with_equal_seeds_and_lengths_have_their_own_forced_drafts(samplers):
    check_equal_seeds(samplers)


def test_forced_drafts_of_another_row_are_caught(monkeypatch):
    def shared(self, rows):
        found = [
            None if text is None else self._at((5, 20), text) for text in self._generated(rows)
        ]
        return [[] if p is None else p.forced() for p in found]

    monkeypatch.setattr(Grammar, "forced", shared)
    monkeypatch.setattr(
        Grammar, "_kept", lambda self, *_: next((p for _, p in reversed(self._rows.values())), None)
    )
    with pytest.raises(AssertionError):
        check_equal_seeds(SAME)
