"""Every method says what plain decoding says, token for token; plain decoding says what
Transformers says.
"""

from __future__ import annotations

import pytest
import torch
from support import checks, tiny
from support.checks import PENALTY, SAMPLERS, SEED, check_full_acceptance, check_lossless, plain
from support.listed import (
    BUILD,
    FROM_TEXT,
    FULL_BUDGET,
    ROWS,
    each_method,
    each_rows,
    each_sampler,
    every_method_on,
    full,
    of_each_kind,
)

from longdraft import InputError, Sampler, Stats, generate, reject, row_seed, stream
from longdraft.drafters import Lookup, Oracle, PlainDecoding, SelfDrafter, SmallModelDrafter
from longdraft.methods import CONTROLS, METHODS
from longdraft.views import Chunks, Guided, RandomSlots, SinkWindow, SnapKV


@pytest.mark.product
@every_method_on(*tiny.MAIN, "llama-kv8", "llama-a8", "qwen3.5")
@each_sampler
@each_rows
def test_output_is_plain_decoding(model, rows, sampler, method):
    check_lossless(BUILD[method], model, sampler, rows)


def test_every_named_method_is_on_the_list():
    """Plain decoding is not: it is what the others are compared with."""
    assert (METHODS | CONTROLS).keys() - BUILD.keys() == {"plain"}


@each_method
def test_the_matrix_is_not_vacuous(method):
    """Over the samplers some drafts are accepted and, where the view is sparse, some are refused at
    every depth.
    """
    model = "llama-loops" if method in FROM_TEXT else "llama"
    # text must repeat first; auto tries single drafts first
    new = 64 if method in (*FROM_TEXT, "auto") else 16
    runs = [check_lossless(BUILD[method], model, s, ROWS["3 rows"], new) for s in SAMPLERS.values()]
    first, second = (sum(s.accepted[i] for s in runs if len(s.accepted) > i) for i in range(2))
    steps = sum(s.steps for s in runs)
    assert first > 0.1 * steps and second > 0
    assert first < 0.9 * steps or method == "full view"


@pytest.mark.each_value
@pytest.mark.parametrize(
    "model",
    of_each_kind([*sorted(set(tiny.CONFIGS) - set(tiny.MAIN)), *tiny.KV8, *tiny.A8]),
)
@pytest.mark.parametrize("method", [pytest.param("vegas", marks=full), "vegas tree, then lookup"])
@pytest.mark.parametrize("sampler", [SAMPLERS["greedy"], PENALTY], ids=["greedy", "penalty"])
def test_other_shapes_and_architectures(model, method, sampler):
    """Head sizes, grouped heads, soft caps, windows in some layers, norms in other places."""
    check_lossless(BUILD[method], model, sampler, (70, 31))


@pytest.mark.parametrize("model", of_each_kind(tiny.CONFIGS))
def test_plain_is_transformers_greedy(model):
    lengths = (70, 31)  # those of the test above, so that plain decoding is computed once
    new = 16
    for prompt, row in zip(
        tiny.prompts(*lengths), plain(model, Sampler(), lengths, new), strict=True
    ):
        found = tiny.eager(model).generate(
            torch.tensor([prompt]), max_new_tokens=new, do_sample=False
        )
        assert found[0, len(prompt) :].tolist() == row


@pytest.mark.full
@each_sampler
@pytest.mark.parametrize("model", ["llama", "gpt-oss"])
@pytest.mark.parametrize("method", [None, "vegas tree", "lookup"])
def test_a_row_does_not_know_its_neighbors(model, sampler, method):
    lm = tiny.target(model)
    lengths = ROWS["3 rows"]
    together = plain(model, sampler, lengths, 24)
    for b, prompt in enumerate(tiny.prompts(*lengths)):
        drafter = BUILD[method](lm) if method else None
        alone = generate(
            lm, [prompt], drafter, max_new_tokens=24, sampler=sampler, seed=row_seed(SEED, b)
        )
        assert alone[0] == together[b]


@pytest.mark.each_value
@pytest.mark.parametrize("method", FULL_BUDGET)
@each_sampler
def test_a_budget_of_the_context_accepts_everything(method, sampler):
    lengths = (31,) if method == "all but one row's" else (70, 31)
    check_full_acceptance(FULL_BUDGET[method], 5, "llama", sampler, lengths)


@pytest.mark.parametrize("model", tiny.MAIN)
def test_a_budget_of_the_context_accepts_everything_on_every_model(model):
    check_full_acceptance(FULL_BUDGET["vegas"], 5, model)


def test_a_sliding_window_model_drafts_exactly():
    """Layers with a window of their own keep it and take no view: nothing is left to
    approximate.
    """
    check_full_acceptance(BUILD["vegas"], 4, "mistral-window")


def test_seeds_differ_and_repeat():
    lm = tiny.target("llama")
    prompts = tiny.prompts(40)
    texts = [
        generate(lm, prompts, sampler=SAMPLERS["T=1"], max_new_tokens=12, seed=s)
        for s in (0, 1, 0, 1 << 60)
    ]
    assert texts[0] == texts[2]
    assert texts[0] != texts[1] != texts[3] != texts[0]


def test_rows_of_neighboring_seeds_say_other_things():
    """Four texts of one prompt at seed 0 and four at seed 1 are eight texts."""
    lm = tiny.target("llama")
    prompts = tiny.prompts(40) * 4
    rows = [
        generate(lm, prompts, sampler=SAMPLERS["T=1"], max_new_tokens=12, seed=s) for s in (0, 1)
    ]
    assert len({tuple(row) for run in rows for row in run}) == 8


@pytest.mark.parametrize("accept", [0, 1.5, 4])
def test_an_oracle_accepts_what_it_was_told(accept):
    """The oracle's drafts change the speed and never the text."""
    lengths = (70, 31)
    sampler = SAMPLERS["T=1"]
    new = 1 + int(10 * (accept + 1))
    rows = plain("llama", sampler, lengths, new)
    stats = check_lossless(
        lambda t: Oracle(BUILD["vegas"](t), rows, accept), "llama", sampler, lengths, new
    )
    assert stats.mean_acceptance_length == 1 + accept


def test_an_oracles_rows_do_not_move_in_lockstep():
    """At 1.5 of 4 a step the rows round up at different steps, and every row keeps its average."""
    lengths = (70, 31, 50, 44)
    sampler = SAMPLERS["T=1"]
    new = 41
    lm = tiny.target("llama")
    rows = plain("llama", sampler, lengths, new)
    steps = []
    oracle = Oracle(BUILD["vegas"](lm), rows, 1.5)
    for out in stream(lm, tiny.prompts(*lengths), oracle, new, sampler, SEED):
        steps.append([len(tokens) for tokens in out.tokens])
    taken = [list(row) for row in zip(*steps[1:15], strict=True)]  # the first drafts nothing
    assert len({tuple(row) for row in taken}) > 1
    assert all(abs(sum(row) - 2.5 * len(row)) < 1 for row in taken)


@torch.inference_mode()
def test_any_chunking_of_the_prompt_gives_the_same_text():
    lm = tiny.target("gpt-oss")
    prompt = tiny.prompts(90)[0]
    want = plain("gpt-oss", Sampler(), (90,), 8)
    for chunk in (1, 7, 64, 1024):
        cache = lm.new_cache(1, 128)
        lm.prefill(prompt[:-1], cache, chunk)
        seqs = checks.Sequences.of([prompt], 8, cache, Sampler())
        while not bool(seqs.done.all()):
            tree = checks.Tree.root(seqs.last)
            seqs.commit(checks.verify.match(tree, lm(tree, cache), seqs.sampler, seqs))
        assert seqs.tokens[0, 90:].tolist() == want[0]


REJECTING = {
    "vegas": lambda t: SelfDrafter(t, Guided(0.07, 16), [1] * 4),
    "tree": lambda t: SelfDrafter(t, SinkWindow(4, 0.07, 16), [3, 6]),
    "random-picks": lambda t: SelfDrafter(t, RandomSlots(0.07, 16), [2, 4]),
    "recents": lambda t: SelfDrafter(t, SinkWindow(0, 0.07, 16), [1, 1]),
    "snapkv": lambda t: SelfDrafter(t, SnapKV(0.07, 16), [1] * 4),
    "budgetdraft": lambda t: SmallModelDrafter(t, Chunks(40), [1] * 4),
    "budgetdraft tree": lambda t: SmallModelDrafter(t, Chunks(40), [2, 4]),
}


@pytest.mark.parametrize("method", REJECTING)
def test_reject_is_plain_decoding_when_greedy(method):
    """Sampled, it keeps the law and not the tokens: test_laws.py."""
    lm = tiny.target("llama")
    lengths = (70, 31)
    found = generate(
        lm, tiny.prompts(*lengths), REJECTING[method](lm), max_new_tokens=24, verify=reject
    )
    assert found == plain("llama", Sampler(), lengths, 24)


@pytest.mark.parametrize("method", REJECTING)
def test_reject_runs_sampled_and_repeats(method):
    lm = tiny.target("llama")
    options = {"max_new_tokens": 12, "verify": reject, "sampler": PENALTY}
    runs = []
    for _ in range(2):
        stats = Stats()
        runs.append(
            generate(lm, tiny.prompts(70, 31), REJECTING[method](lm), stats=stats, **options)
        )
        assert [len(r) for r in runs[-1]] == [12, 12]
        assert sum(stats.accepted) > 0
    assert runs[0] == runs[1]


def test_reject_wants_a_drafter_that_keeps_its_law():
    lm = tiny.target("llama")
    with pytest.raises(InputError, match="use verify=match"):
        generate(lm, tiny.prompts(9), Lookup(), verify=reject)
    assert generate(lm, tiny.prompts(9), PlainDecoding(), verify=reject, max_new_tokens=2)
