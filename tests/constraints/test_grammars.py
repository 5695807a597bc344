"""Every node is masked by its own path, output is plain decoding's, and tokens that are forced cost
no pass.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from support import grammars, tiny
from support.grammars import END, after, by_hand, constrained, grammar, plain, rows_of, said
from support.listed import BUILD, each_method, full

from longdraft import InputError, Sampler, Session, Stats, generate
from longdraft.constraints import Constraints, Grammar
from longdraft.constraints.progress import Progress
from longdraft.core import Tree
from longdraft.drafters import Drafter
from longdraft.drafters.forced import Forced

KINDS = ["schema", "regex", "choice", "lark"]
SHORT = '{"name": "a", "kind": "red", "size": 1, "tags": []}'


def tokens_of(text: str) -> list[int]:
    return grammars.tokenizer()(text, add_special_tokens=False)["input_ids"]


def check_lossless(
    method, sampler, kind="schema", lengths=(70, 31), new=40, model="llama", check=True
) -> Stats:
    lm = tiny.target(model)
    stats = Stats()
    options = {
        "max_new_tokens": new,
        "sampler": constrained(sampler, kind),
        "seed": 11,
        "eos": (END,),
        "stats": stats,
    }
    found = generate(lm, tiny.prompts(*lengths), BUILD[method](lm), **options)
    assert found == plain(sampler, lengths, new, kind, model)
    return stats


@pytest.mark.each_value
@each_method
@pytest.mark.parametrize(
    "sampler", [Sampler(), Sampler(1.0, top_p=0.9)], ids=["greedy", "T=1 top-p"]
)
def test_output_is_plain_decoding_under_the_same_constraint(method, sampler):
    check_lossless(method, sampler)


@pytest.mark.each_value
@full
@each_method
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_with_every_method(method, kind):
    check_lossless(method, Sampler(1.0), kind, lengths=(70, 31, 90))


@pytest.mark.parametrize("kind", KINDS)
def test_plain_decoding_is_what_a_matcher_that_reads_the_whole_text_gives(kind):
    prompt = tiny.prompts(70)[0]
    assert plain(Sampler(), (70, 31), 40, kind)[0] == by_hand(grammar(kind), prompt, 40)


@pytest.mark.parametrize("kind", ["schema", "regex", "choice"])
def test_what_ends_is_valid_and_what_is_cut_can_go_on(kind):
    ended = 0
    for seed in range(6):
        sampler = constrained(Sampler(1.0), kind)
        options = {"max_new_tokens": 60, "sampler": sampler, "seed": seed, "eos": (END,)}
        (row,) = generate(
            tiny.target("llama"), tiny.prompts(40), BUILD["vegas"](tiny.target("llama")), **options
        )
        if row[-1] != END:
            assert after(grammar(kind), row)
            continue
        ended = ended + 1
        text = said(row)
        if kind == "schema":
            value = json.loads(text)
            assert list(value) == ["name", "kind", "size", "tags"] and value["kind"] in (
                "red",
                "green",
                "gray",
            )
            assert 0 <= value["size"] <= 999 and len(value["tags"]) <= 3
        elif kind == "regex":
            assert re.fullmatch("([a-m]{2,5}-)+end", text)
        else:
            assert text in ("red", "green", "gray")
    assert ended or kind == "regex"


def random_tree(seed: int, size: int, text: list[int]) -> Tree:
    """A tree below the text's last token. Half of its nodes can follow their parents; paths end at
    end tokens too.
    """
    g = np.random.default_rng(seed)
    pairs = []
    paths = [()]
    for _ in range(size):
        parent = int(g.integers(len(paths)))
        allowed = after(grammar(), [*text, *paths[parent]])
        token = (
            int(g.choice(sorted(allowed)))
            if allowed and g.random() < 0.7
            else int(g.integers(2, 96))
        )
        pairs.append((parent, token))
        paths.append((*paths[parent], token))
    return Tree.root(torch.tensor([text[-1]])).plant([pairs])


def check_masks(seed: int, size: int = 68, cut: int = 9) -> None:
    """Each node of a tree of 69 is masked as a matcher that has read its path alone says."""
    prompt = tiny.prompts(20)[0]
    text = tokens_of(SHORT)[:cut]
    rows = rows_of(prompt, text)
    tree = random_tree(seed, size, text)
    made = grammars.constraints().json_schema(grammars.SCHEMA | {"title": str(seed)})
    masked = made.masked(torch.zeros(1, tree.size, 96), tree, rows)[0]
    parents = tree.parent[0].tolist()
    tokens = tree.tokens[0].tolist()
    reached = 0
    paths: list[list[int]] = [[]]
    for node in range(tree.size):
        if node:
            paths.append([*paths[parents[node]], tokens[node]])
        allowed = after(grammar(), text + paths[node])
        found = set((masked[node] == 0).nonzero()[:, 0].tolist())
        reached += allowed is not None
        assert found == (set(range(96)) if allowed is None else allowed), (node, paths[node])
    assert 5 < reached < tree.size


@pytest.mark.parametrize("seed", range(6))
def test_each_node_of_a_tree_of_69_is_masked_by_its_own_path(seed):
    check_masks(seed, cut=6 + seed)


FAULTS = {
    "the root's mask for all nodes": lambda mp: mp.setattr(
        Progress, "mask", lambda self, path, real=Progress.mask: real(self, ())
    ),
    "a matcher that stays where a path led it": lambda mp: mp.setattr(
        Progress, "_back", lambda self, count: None
    ),
    "masks of the text before": lambda mp: mp.setattr(Progress, "move_to", _kept),
    "a text that is read again": lambda mp: mp.setattr(Progress, "move_to", _twice),
}


def _kept(self, tokens, real=Progress.move_to):
    masks = self.masks
    real(self, tokens)
    self.masks = masks


def _twice(self, tokens, real=Progress.move_to):
    real(self, tokens)
    self.consumed = 0


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault_is_caught(fault, monkeypatch):
    """By the masks of one tree, or by the output of a method that drafts trees."""
    grammars.grammar.cache_clear()
    FAULTS[fault](monkeypatch)
    try:
        with pytest.raises(AssertionError):
            check_masks(0)
            # the good version's output, known from before the fault
            lm = tiny.target("llama")
            sampler = constrained(Sampler())
            options = {"max_new_tokens": 40, "sampler": sampler, "seed": 11, "eos": (END,)}
            found = generate(lm, tiny.prompts(70), BUILD["vegas tree"](lm), **options)
            assert found[0] == by_hand(grammar(), tiny.prompts(70)[0], 40)
    finally:
        grammars.grammar.cache_clear()


def test_forced_tokens_are_drafted_for_nothing_and_always_accepted():
    """With a drafter that finds nothing, a key costs one pass instead of one for each of its
    tokens.
    """
    lm = tiny.target("llama")
    nothing = Forced(Drafter())
    stats = Stats()
    options = {"max_new_tokens": 60, "sampler": constrained(Sampler()), "seed": 11, "eos": (END,)}
    out = generate(lm, tiny.prompts(70, 31), nothing, stats=stats, **options)
    assert out == generate(lm, tiny.prompts(70, 31), **options)
    assert stats.drafts.drafted == stats.drafts.accepted > 30
    assert stats.emitted == sum(map(len, out)) and stats.steps < 0.7 * stats.emitted


def test_a_key_that_only_sounds_forced_would_be_refused(monkeypatch):
    """The check above can fail: tokens that are drafted without being forced are not all
    accepted.
    """
    monkeypatch.setattr(Grammar, "forced", lambda self, rows: [[5, 6, 7]] * len(rows.eos))
    with pytest.raises(AssertionError):
        test_forced_tokens_are_drafted_for_nothing_and_always_accepted()


def test_rows_of_a_session_have_their_own_constraints_or_none():
    lm = tiny.target("llama")
    prompts = tiny.prompts(40, 31, 50, 33)
    samplers = [
        constrained(Sampler()),
        Sampler(1.0),
        constrained(Sampler(1.0), "regex"),
        constrained(Sampler(), "choice"),
    ]
    with Session(lm, BUILD["vegas"](lm), 3, 256, queue=8) as session:
        asked = [
            session.submit(prompt, 30, seed, (END,), sampler)
            for seed, (prompt, sampler) in enumerate(zip(prompts, samplers, strict=True))
        ]
        found: dict[int, list[int]] = {id: [] for id in asked}
        while session.running or session.waiting:
            for event in session.step():
                assert event.error is None
                found[event.id] += event.tokens
    for seed, (prompt, sampler, id) in enumerate(zip(prompts, samplers, asked, strict=True)):
        assert (
            found[id]
            == generate(lm, [prompt], max_new_tokens=30, sampler=sampler, seed=seed, eos=(END,))[0]
        )


def test_a_row_that_goes_back_is_masked_as_at_first():
    """A row may be decoded again, and another may have its seed: what was read is found by its
    tokens alone.
    """
    made = grammar()
    prompt = tiny.prompts(20)[0]
    text = tokens_of(SHORT)
    for cut in (12, 3, 9, 12, 1, 30):
        rows = rows_of(prompt, text[:cut])
        root = Tree.root(torch.tensor([text[cut - 1]]))
        found = made.masked(torch.zeros(1, 1, 96), root, rows)[0, 0]
        assert set((found == 0).nonzero()[:, 0].tolist()) == after(made, text[:cut])


def test_only_the_rows_used_last_keep_masks():
    """Memory stays bounded, whatever was decoded before; a row that comes back is masked as
    before.
    """
    made = grammars.constraints().json_schema(grammars.SCHEMA | {"title": "many rows"})
    for seed in range(70):
        rows = rows_of(tiny.prompts(20)[0], tokens_of(SHORT)[:9])
        rows.seed = torch.tensor([seed])
        root = Tree.root(torch.tensor([tokens_of(SHORT)[8]]))
        found = made.masked(torch.zeros(1, 1, 96), root, rows)[0, 0]
        assert set((found == 0).nonzero()[:, 0].tolist()) == after(made, tokens_of(SHORT)[:9])
    kept = [bool(row.masks) for _, row in made._rows.values()]
    assert len(kept) == 70 and sum(kept) == 64 and all(kept[-64:])


def test_after_the_end_only_end_tokens_follow():
    lm = tiny.target("llama")
    prompt = tiny.prompts(30)
    (row,) = generate(
        lm, prompt, max_new_tokens=12, sampler=constrained(Sampler(), "choice"), eos=()
    )
    assert (
        said(row) in ("red", "green", "gray")
        and set(row[row.index(END) :]) == {END}
        and len(row) == 12
    )


def test_the_same_request_is_compiled_once():
    made = grammars.constraints()
    assert made.json_schema(grammars.SCHEMA) is made.json_schema(json.dumps(grammars.SCHEMA))
    assert made.json_object() is not made.json_object(compact=True)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda c: c.json_schema("{"), "the JSON schema is not JSON"),
        (lambda c: c.json_schema("[]"), "neither an object nor a boolean"),
        (
            lambda c: c.json_schema({"not": {}}),
            "the JSON schema cannot be used: Unimplemented keys",
        ),
        (
            lambda c: c.json_schema({"not": {}, "x-guidance": {"lenient": True}}),
            "Unimplemented keys",
        ),
        (lambda c: c.json_schema({"$ref": "https://example.org/x"}), "example.org"),
        (lambda c: c.json_schema({"type": "string", "pattern": "(?=a)"}), "look-around"),
        (lambda c: c.json_schema({"enum": []}), "Unsatisfiable"),
        (lambda c: c.regex("(a"), "the regular expression cannot be used: .*unclosed group"),
        (lambda c: c.grammar("start: ("), "the grammar cannot be used"),
        (lambda c: c.choice([]), "the choices must be a list of texts"),
        (lambda c: c.choice("ab" * 20_000), "too many"),
        (lambda c: c.grammar("start: /" + "a" * (1 << 20) + "/"), "give at most"),
    ],
)
def test_what_cannot_be_enforced_is_refused_in_one_line(ask, message):
    with pytest.raises(InputError, match=message) as refused:
        ask(grammars.constraints())
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


def test_a_tokenizer_without_a_file_is_refused():
    with pytest.raises(InputError, match=r"tokenizer.json"):
        Constraints(object(), 96, (END,))


def test_a_model_without_an_end_token_is_refused():
    with pytest.raises(InputError, match="no end token"):
        Constraints(grammars.tokenizer(), 96, ()).choice(["red"])


def test_gbnf_is_read_too():
    (row,) = generate(
        tiny.target("llama"),
        tiny.prompts(30),
        max_new_tokens=12,
        sampler=Sampler(constraint=grammars.constraints().grammar('root ::= "a" ("b" | "c")+ "d"')),
        eos=(END,),
    )
    assert re.match("a[bc]+", said(row))


def test_an_object_without_a_schema_may_have_line_breaks_but_not_for_ever():
    free, compact = (grammars.constraints().json_object(x) for x in (False, True))
    for text, allowed in (
        ('{ "a" : [ 1 , 2 ] }', (True, False)),
        ('{"a":[1,2]}', (True, True)),
        ("[1]", (False, False)),
    ):
        found = [after(made, tokens_of(text)) == {END} for made in (free, compact)]
        assert tuple(found) == allowed, text
    assert (
        after(free, tokens_of("{" + 20 * " ")) is not None
        and after(free, tokens_of("{" + 21 * " ")) is None
    )
