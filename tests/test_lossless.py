"""Every method says what plain decoding says, token for token; plain decoding says what Transformers says."""

from __future__ import annotations

import checks
import pytest
import tiny
import torch
from checks import PENALTY, SAMPLERS, SEED, check_eos, check_full_acceptance, check_lossless, plain

from longdraft import InputError, Sampler, Stats, build, generate, reject, stream
from longdraft.drafters import Drafter, GlideDrafter, Hierarchical, LMDrafter, Lookup, Oracle, Reuse, SelfDrafter, Then
from longdraft.methods import METHODS, PARTS
from longdraft.model import LM
from longdraft.views import Chunks, Full, Guided, Partial, Quest, RandomPicks, Recents, Retrieval, SinkWindow, SnapKV

SMALL = {"gamma": "4", "floor": "16"}  # a view of 16 slots leaves out most of a prompt of 70
WIDTHS = [3, 4, 4]
SWIFT = {"budget": "24", "sink": "4", "widths": "1,3,2,2", "n": "3", "topk": "4"}
EAGLE = {"topk": "12", "levels": "2", "nodes": "40"}
GLIDE = {"widths": "3,4,4", "window": "16"}


def untrained(name: str, target: LM, options: dict[str, str]) -> Drafter:
    """A method whose part has random weights."""
    return build(name, target, options, PARTS[METHODS[name].needs](target, 1))


# Adding a method: one line here.
METHODS_UNDER_TEST = [
    ("lookup", lambda t: build("lookup", t, {"n": "2", "count": "5"})),
    ("magicdec-stream", lambda t: build("magicdec-stream", t, SMALL)),
    ("vegas", lambda t: build("vegas", t, SMALL)),
    ("vegas as published", lambda t: build("vegas", t, SMALL | {"score": "logits", "rows": "ends", "reach": "0"})),
    ("random-picks", lambda t: build("random-picks", t, SMALL)),
    ("recents", lambda t: build("recents", t, SMALL)),
    ("vegas tree", lambda t: SelfDrafter(t, Guided(0.07, 16), WIDTHS)),
    ("vegas, then lookup", lambda t: Then(SelfDrafter(t, Guided(0.07, 16), [1, 1]), Lookup(2, 4))),
    ("vegas tree, then lookup", lambda t: Then(SelfDrafter(t, Guided(0.07, 16), [2, 2]), Lookup(1, 3))),
    ("suffix", lambda t: build("suffix", t, {"nodes": "6"})),
    ("suffix over texts", lambda t: build("suffix", t, {"nodes": "6", "earlier": "99"})),
    ("recycle", lambda t: build("recycle", t, {"nodes": "12"})),
    ("magicdec-quest", lambda t: build("magicdec-quest", t, SMALL | {"page": "4"})),
    ("quest tree", lambda t: SelfDrafter(t, Quest(0.07, 16, page=4, dense=0), [2, 3])),
    ("vegas-tree", lambda t: build("vegas-tree", t, {"widths": "3,4,4", "floor": "16"})),
    ("specextend", lambda t: untrained("specextend", t, {"widths": "2,3", "floor": "16", "chunk": "8", "every": "2"})),
    ("specextend by itself", lambda t: SelfDrafter(t, Retrieval(0.07, 16, chunk=8, every=2), [1] * 4)),
    ("triforce", lambda t: untrained("triforce", t, {"budget": "24", "window": "12", "sink": "2", "gamma": "5"})),
    ("triforce by itself", lambda t: Hierarchical(t, Guided(0.07, 24), SelfDrafter(t, SinkWindow(2, 0.07, 8), [2]), 4)),
    ("sd", lambda t: untrained("sd", t, {"gamma": "4"})),
    ("sd-sparse", lambda t: untrained("sd-sparse", t, {"gamma": "4", "budget": "40"})),
    ("budgetdraft by itself", lambda t: build("budgetdraft", t, {"gamma": "4", "budget": "40", "every": "2"}, t)),
    ("budgetdraft tree", lambda t: LMDrafter(t, Chunks(40, score="last_key"), WIDTHS)),
    ("budgetdraft tree, then lookup", lambda t: Then(LMDrafter(t, Chunks(40), [2, 2]), Lookup(1, 3))),
    ("magicdec-snapkv", lambda t: build("magicdec-snapkv", t, SMALL)),
    ("longspec", lambda t: build("longspec", t, GLIDE, tiny.taught_glide(t))),
    ("longspec-chain", lambda t: build("longspec-chain", t, {"gamma": "4", "window": "16"}, tiny.taught_glide(t))),
    ("longspec-guided", lambda t: build("longspec-guided", t, GLIDE | {"floor": "16"}, tiny.taught_glide(t))),
    ("longspec, then lookup", lambda t: Then(GlideDrafter(tiny.taught_glide(t), [2, 2]), Lookup(1, 3))),
    ("tokenswift", lambda t: untrained("tokenswift", t, SWIFT)),
    ("tokenswift by chance", lambda t: untrained("tokenswift", t, SWIFT | {"widths": "2,1,1,1", "choice": "random"})),
    ("medusa", lambda t: untrained("medusa", t, {"widths": "24,3"})),
    ("medusa, then lookup", lambda t: Then(untrained("medusa", t, {}), Lookup(1, 3))),
    ("eagle2", lambda t: untrained("eagle2", t, EAGLE)),
    ("eagle3", lambda t: untrained("eagle3", t, EAGLE | {"reach": "20"})),
    ("eagle3, then reuse", lambda t: Then(untrained("eagle3", t, EAGLE), Reuse(3, 2))),
    ("vegas-reuse", lambda t: build("vegas-reuse", t, {"gamma": "3", "floor": "16", "topk": "4"})),
    ("vegas tree, then reuse", lambda t: Then(SelfDrafter(t, Partial(20, 4), [2, 3]), Reuse(2, 2, below=2))),
    ("full view", lambda t: SelfDrafter(t, Full(), [1] * 3)),
]
BUILD = dict(METHODS_UNDER_TEST)
FROM_TEXT = {"lookup", "suffix", "suffix over texts", "recycle"}  # random text gives them next to nothing to find
ROWS = {"1 row": (70,), "3 rows": (70, 31, 90)}

each_method = pytest.mark.parametrize("method", BUILD)
each_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
each_rows = pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
each_model = pytest.mark.parametrize("model", tiny.MAIN)


@each_method
@each_sampler
@each_rows
@each_model
def test_output_is_plain_decoding(model, rows, sampler, method):
    check_lossless(BUILD[method], model, sampler, rows)


@each_method
def test_the_matrix_is_not_vacuous(method):
    """Over the samplers some drafts are accepted and, where the view is sparse, some are refused at every depth."""
    model = "llama-loops" if method in FROM_TEXT else "llama"
    runs = [check_lossless(BUILD[method], model, s, ROWS["3 rows"]) for s in SAMPLERS.values()]
    first, second = (sum(s.accepted[i] for s in runs if len(s.accepted) > i) for i in range(2))
    steps = sum(s.steps for s in runs)
    assert first > 0.1 * steps and second > 0
    assert first < 0.9 * steps or method == "full view"


@pytest.mark.parametrize("model", sorted(set(tiny.CONFIGS) - set(tiny.MAIN)))
@pytest.mark.parametrize("method", ["vegas", "vegas tree, then lookup"])
def test_other_shapes_and_architectures(model, method):
    """Head sizes, grouped heads, soft caps, windows in some layers, norms in other places."""
    for sampler in (SAMPLERS["greedy"], PENALTY):
        check_lossless(BUILD[method], model, sampler, (70, 31))


@pytest.mark.parametrize("model", tiny.CONFIGS)
def test_plain_is_transformers_greedy(model):
    lengths, new = (70, 31, 90), 24
    for prompt, row in zip(tiny.prompts(*lengths), plain(model, Sampler(), lengths, new), strict=True):
        found = tiny.eager(model).generate(torch.tensor([prompt]), max_new_tokens=new, do_sample=False)
        assert found[0, len(prompt) :].tolist() == row


@each_sampler
@pytest.mark.parametrize("model", ["llama", "gpt-oss"])
@pytest.mark.parametrize("method", [None, "vegas tree", "lookup"])
def test_a_row_does_not_know_its_neighbours(model, sampler, method):
    lm, lengths = tiny.target(model), ROWS["3 rows"]
    together = plain(model, sampler, lengths, 24)
    for b, prompt in enumerate(tiny.prompts(*lengths)):
        drafter = BUILD[method](lm) if method else None
        alone = generate(lm, [prompt], drafter, max_new_tokens=24, sampler=sampler, seed=SEED + b)
        assert alone[0] == together[b]


FULL_BUDGET = {
    "vegas": lambda t: build("vegas", t, {"gamma": "5", "floor": "999"}),
    "vegas by share": lambda t: build("vegas", t, {"gamma": "5", "ratio": "1.0", "floor": "1", "score": "weights"}),
    "magicdec-stream": lambda t: build("magicdec-stream", t, {"gamma": "5", "floor": "999"}),
    "no sink": lambda t: build("magicdec-stream", t, {"gamma": "5", "floor": "999", "sink": "0"}),
    "random-picks": lambda t: build("random-picks", t, {"gamma": "5", "floor": "999"}),
    "recents": lambda t: build("recents", t, {"gamma": "5", "floor": "999"}),
    "magicdec-snapkv": lambda t: build("magicdec-snapkv", t, {"gamma": "5", "floor": "999"}),
    "sd by itself": lambda t: build("sd", t, {"gamma": "5"}, t),
    "budgetdraft by itself": lambda t: build("budgetdraft", t, {"gamma": "5", "budget": "999"}, t),
    "full view": lambda t: SelfDrafter(t, Full(), [1] * 5),
    # room for all but a few slots of the far past, none of which a row of 31 has
    "all but one row's": lambda t: SelfDrafter(t, Guided(0.07, 64), [1] * 5),
}


@pytest.mark.parametrize("method", FULL_BUDGET)
@each_sampler
def test_a_budget_of_the_context_accepts_everything(method, sampler):
    lengths = (31,) if method == "all but one row's" else (70, 31)
    check_full_acceptance(FULL_BUDGET[method], 5, "llama", sampler, lengths)


@each_model
def test_a_budget_of_the_context_accepts_everything_on_every_model(model):
    check_full_acceptance(FULL_BUDGET["vegas"], 5, model)


def test_a_sliding_window_model_drafts_exactly():
    """Layers with a window of their own keep it and take no view: nothing is left to approximate."""
    check_full_acceptance(BUILD["vegas"], 4, "mistral-window")


@each_method
def test_an_end_token_inside_an_accepted_branch(method):
    check_eos(BUILD[method])
    check_eos(BUILD[method], "gpt-oss", (70, 31, 50))


def test_the_end_token_cases_do_end_inside_branches():
    """The full view accepts 3 drafts a step, so tokens 1-3, 5-7 and 9-11 of the output are accepted ones."""
    lm, full = tiny.target("llama"), plain("llama", SAMPLERS["T=1"], (70,), 24)[0]
    inside = 0
    for at in range(2, 12):
        options = {"max_new_tokens": 24, "sampler": SAMPLERS["T=1"], "seed": SEED, "eos": (full[at],)}
        steps = [s.tokens[0] for s in stream(lm, tiny.prompts(70), BUILD["full view"](lm), **options)]
        assert steps[-1][-1] == full[at]
        inside += len(steps[-1]) < 4
    assert inside > 3


@each_method
@pytest.mark.parametrize("new", [1, 2, 3])
def test_few_new_tokens(method, new):
    check_lossless(BUILD[method], "llama", PENALTY, (40, 20), new)


@each_method
@each_sampler
def test_short_prompts(method, sampler):
    """One token; as many as the budget; one more: alone and beside a long one."""
    check_lossless(BUILD[method], "llama", sampler, (1,))
    check_lossless(BUILD[method], "llama", sampler, (2, 1, 60))
    check_lossless(BUILD[method], "gpt-oss", sampler, (16, 17))


@each_method
@pytest.mark.parametrize("model", ["llama", "gpt-oss"])
def test_the_last_position_of_the_model(method, model):
    """Rows that end at the very last position, while branches would reach beyond it."""
    positions = tiny.target(model).positions
    check_lossless(BUILD[method], model, SAMPLERS["T=1"], (positions - 14, positions - 40), new=14)


def test_one_position_too_many_is_refused():
    lm = tiny.target("llama")
    with pytest.raises(InputError, match="give at most 14 new tokens"):
        generate(lm, tiny.prompts(lm.positions - 14), max_new_tokens=15)


def test_a_drafter_can_be_used_again():
    """What a drafter learnt of one text must not leak into the next one."""
    lm = tiny.target("llama")
    for method in BUILD:
        drafter = BUILD[method](lm)
        for lengths in ((70,), (31, 50), (20,)):
            check_lossless(lambda t, d=drafter: d, "llama", SAMPLERS["T=1"], lengths)


def test_seeds_differ_and_repeat():
    lm, prompts = tiny.target("llama"), tiny.prompts(40)
    texts = [generate(lm, prompts, sampler=SAMPLERS["T=1"], max_new_tokens=12, seed=s) for s in (0, 1, 0, 1 << 60)]
    assert texts[0] == texts[2]
    assert texts[0] != texts[1] != texts[3] != texts[0]


@pytest.mark.parametrize("accept", [0, 1.5, 4])
def test_an_oracle_accepts_what_it_was_told(accept):
    """The oracle's drafts change the speed and never the text."""
    lengths, sampler, new = (70, 31), SAMPLERS["T=1"], 1 + int(10 * (accept + 1))
    rows = plain("llama", sampler, lengths, new)
    stats = check_lossless(lambda t: Oracle(BUILD["vegas"](t), rows, accept), "llama", sampler, lengths, new)
    assert stats.mean_acceptance_length == 1 + accept


@torch.inference_mode()
def test_any_chunking_of_the_prompt_gives_the_same_text():
    lm, prompt = tiny.target("gpt-oss"), tiny.prompts(90)[0]
    want = plain("gpt-oss", Sampler(), (90,), 8)
    for chunk in (1, 7, 64, 1024):
        cache = lm.new_cache(1, 128)
        lm.prefill(prompt[:-1], cache, chunk)
        seqs = checks.Sequences.of([prompt], 8, cache, Sampler())
        while not bool(seqs.done.all()):
            tree = checks.Tree.root(seqs.last)
            seqs.commit(checks.verify.match(tree, lm(tree, cache), seqs))
        assert seqs.tokens[0, 90:].tolist() == want[0]


REJECTING = {
    "vegas": lambda t: SelfDrafter(t, Guided(0.07, 16), [1] * 4),
    "tree": lambda t: SelfDrafter(t, SinkWindow(4, 0.07, 16), [3, 6]),
    "random-picks": lambda t: SelfDrafter(t, RandomPicks(0.07, 16), [2, 4]),
    "recents": lambda t: SelfDrafter(t, Recents(0.07, 16), [1, 1]),
    "snapkv": lambda t: SelfDrafter(t, SnapKV(0.07, 16), [1] * 4),
    "budgetdraft": lambda t: LMDrafter(t, Chunks(40), [1] * 4),
    "budgetdraft tree": lambda t: LMDrafter(t, Chunks(40), [2, 4]),
}


@pytest.mark.parametrize("method", REJECTING)
def test_reject_is_plain_decoding_when_greedy(method):
    """Sampled, it keeps the law and not the tokens: test_laws.py."""
    lm, lengths = tiny.target("llama"), (70, 31)
    found = generate(lm, tiny.prompts(*lengths), REJECTING[method](lm), max_new_tokens=24, verify=reject)
    assert found == plain("llama", Sampler(), lengths, 24)


@pytest.mark.parametrize("method", REJECTING)
def test_reject_runs_sampled_and_repeats(method):
    lm, options = tiny.target("llama"), {"max_new_tokens": 12, "verify": reject, "sampler": PENALTY}
    runs = []
    for _ in range(2):
        stats = Stats()
        runs.append(generate(lm, tiny.prompts(70, 31), REJECTING[method](lm), stats=stats, **options))
        assert [len(r) for r in runs[-1]] == [12, 12]
        assert sum(stats.accepted) > 0
    assert runs[0] == runs[1]


def test_reject_wants_a_drafter_that_keeps_its_law():
    lm = tiny.target("llama")
    with pytest.raises(InputError, match="use match"):
        generate(lm, tiny.prompts(9), Lookup(), verify=reject)
    assert generate(lm, tiny.prompts(9), Drafter(), verify=reject, max_new_tokens=2)


BAD_INPUT = {
    "no new tokens": ({"max_new_tokens": 0}, [[3]], "give 1 or more"),
    "negative": ({"max_new_tokens": -4}, [[3]], "give 1 or more"),
    "huge": ({"max_new_tokens": 10**9}, [[3]], "give at most 511 new tokens"),
    "no prompt": ({}, [], "no tokens"),
    "empty prompt": ({}, [[3], []], "no tokens"),
    "long prompt": ({}, [[3] * 600], "a shorter prompt"),
    "token above the vocabulary": ({}, [[3, 96]], "prompt token 96"),
    "negative token": ({}, [[-1]], "prompt token -1"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line(case):
    options, prompts, words = BAD_INPUT[case]
    with pytest.raises(InputError, match=words) as error:
        next(stream(tiny.target("llama"), prompts, **options))
    assert "\n" not in str(error.value)
