"""Named systems as expressions over the parts. Adding one: a file, a function and a line here, a line in the tests."""

from __future__ import annotations

from typing import Any

from longdraft.core.options import ANY, Method, above_zero, at_least, one_of, share, tree, typed
from longdraft.drafters import (
    Auto,
    Drafter,
    Eagle,
    Glide,
    GlideDrafter,
    Heads,
    Lookup,
    Medusa,
    Recycle,
    Reuse,
    SelfDrafter,
    Sequential,
    SmallModelDrafter,
    Suffix,
)
from longdraft.drafters.eagle.block import EagleBlock
from longdraft.drafters.heads.drafter import SPARSE, ChainedHeads, MedusaHeads, cartesian
from longdraft.errors import InputError
from longdraft.methods.controls import CONTROLS as CONTROLS
from longdraft.methods.small_models import budgetdraft, sd, triforce
from longdraft.models.lm import LM
from longdraft.views import Guided, Partial, Quest, Retrieval, SinkWindow, SnapKV
from longdraft.views.retrieval import last_layer


def plain(target: LM) -> Drafter:
    """One token per step: the baseline of every figure."""
    return Drafter()


def lookup(target: LM, n: int = 3, count: int = 10) -> Drafter:
    """Continue the latest earlier occurrence of the text's last tokens (up to n of them) by `count` tokens."""
    at_least(1, n=n, count=count)
    return Lookup(n, count)


def suffix(target: LM, nodes: int = 16, factor: float = 2.0, min_probability: float = 0.1, earlier: int = 0) -> Drafter:
    """A tree of what most often followed the longest suffix that occurred before: up to factor * its length, or nodes.

    earlier: how many tokens of earlier texts' outputs are searched too.
    """
    at_least(1, nodes=nodes)
    at_least(0, earlier=earlier)
    share(min_probability=min_probability)
    above_zero(factor=factor)
    return Suffix(nodes, factor, min_probability, earlier=earlier)


def recycle(target: LM, nodes: int = 24) -> Drafter:
    """A fixed tree filled with what the target last ranked highest after each token (published: 80 nodes)."""
    at_least(1, nodes=nodes)
    return Recycle(nodes)


def magicdec_stream(
    target: LM, gamma: int = 7, sink: int = 4, keep_ratio: float = 0.07, min_budget: int = 256
) -> Drafter:
    """The target drafts gamma tokens seeing the first `sink` tokens and the latest: ratio of the context in all."""
    at_least(1, gamma=gamma, min_budget=min_budget)
    at_least(0, sink=sink)
    share(keep_ratio=keep_ratio)
    return SelfDrafter(target, SinkWindow(sink, keep_ratio, min_budget), [1] * gamma)


def magicdec_snapkv(target: LM, gamma: int = 7, keep_ratio: float = 0.07, min_budget: int = 256) -> Drafter:
    """The target drafts gamma tokens seeing what the prompt's last queries attended to: ratio of the prompt in all."""
    at_least(1, gamma=gamma, min_budget=min_budget)
    share(keep_ratio=keep_ratio)
    return SelfDrafter(target, SnapKV(keep_ratio, min_budget), [1] * gamma)


def magicdec_quest(
    target: LM, gamma: int = 7, keep_ratio: float = 0.07, min_budget: int = 256, page: int = 16
) -> Drafter:
    """The target drafts gamma tokens, each seeing the pages its own query could like best: ratio of the context."""
    at_least(1, gamma=gamma, min_budget=min_budget, page=page)
    share(keep_ratio=keep_ratio)
    return SelfDrafter(target, Quest(keep_ratio, min_budget, page), [1] * gamma)


def vegas(
    target: LM,
    gamma: int = 7,
    keep_ratio: float = 0.07,
    min_budget: int = 256,
    score: str = "weights",
    rows: str = "mean",
    reach: int = 8,
) -> Drafter:
    """The target drafts gamma tokens seeing what the last verification's queries scored highest.

    As in the paper: score=logits, rows=ends, reach=0. The defaults measured better (docs/log.md).
    """
    at_least(1, gamma=gamma)
    at_least(0, reach=reach)
    one_of(("mean", "ends"), rows=rows)
    return SelfDrafter(target, _guided(keep_ratio, min_budget, score, rows, reach), [1] * gamma)


def _guided(keep_ratio: float, min_budget: int, score: str, rows: str = "mean", reach: int = 8) -> Guided:
    at_least(1, min_budget=min_budget)
    share(keep_ratio=keep_ratio)
    one_of(("logits", "weights"), score=score)
    return Guided(keep_ratio, min_budget, score, rows, reach)


def vegas_tree(
    target: LM, widths: str = "3,4,4,4", keep_ratio: float = 0.07, min_budget: int = 256, score: str = "weights"
) -> Drafter:
    """vegas drafting a tree, `widths` nodes per depth."""
    return SelfDrafter(target, _guided(keep_ratio, min_budget, score), tree(widths=widths))


def specextend(
    target: LM,
    small: LM,
    widths: str = "4,8,8,8",
    keep_ratio: float = 0.07,
    min_budget: int = 256,
    chunk: int = 32,
    every: int = 4,
) -> Drafter:
    """A small model that reads all drafts a tree, seeing chunks that the target's last accepted token attended to."""
    at_least(1, min_budget=min_budget, chunk=chunk, every=every)
    share(keep_ratio=keep_ratio)
    policy = Retrieval(keep_ratio, min_budget, chunk, every, last_layer(target))
    return SmallModelDrafter(small, policy, tree(widths=widths), target.vocab)


def longspec(target: LM, block: Glide, widths: str = "4,16,16,16,16", window: int = 0) -> Drafter:
    """A block that reads the target's cache drafts a tree, `widths` nodes per depth (window 0: as it was trained)."""
    at_least(0, window=window)
    return GlideDrafter(block, tree(widths=widths), window=window)


def longspec_chain(target: LM, block: Glide, gamma: int = 5, window: int = 0) -> Drafter:
    """A block that reads the target's cache drafts a chain of gamma tokens (window 0: as it was trained)."""
    at_least(1, gamma=gamma)
    at_least(0, window=window)
    return GlideDrafter(block, [1] * gamma, window=window)


def longspec_guided(
    target: LM,
    block: Glide,
    widths: str = "4,16,16,16,16",
    window: int = 0,
    keep_ratio: float = 0.01,
    min_budget: int = 1024,
    score: str = "weights",
) -> Drafter:
    """longspec whose block reads only what the last verification scored highest: its cost is that of floor slots."""
    at_least(0, window=window)
    return GlideDrafter(block, tree(widths=widths), _guided(keep_ratio, min_budget, score), window)


def vegas_reuse(
    target: LM,
    gamma: int = 4,
    keep_ratio: float = 0.07,
    min_budget: int = 256,
    score: str = "weights",
    n: int = 4,
    topk: int = 8,
) -> Drafter:
    """Vegas, and below its first token the `topk` n-grams that most often began with that token, in one tree."""
    at_least(1, topk=topk)
    at_least(2, n=n)
    return Sequential(vegas(target, gamma, keep_ratio, min_budget, score), Reuse(n, topk))


def medusa(target: LM, heads: MedusaHeads, widths: str = "sparse") -> Drafter:
    """Heads on the last verified state guess the tokens after the next; widths per depth, or the sparse tree of 63."""
    return Medusa(target, heads, SPARSE if widths == "sparse" else cartesian(tree(widths=widths)))


def tokenswift(
    target: LM,
    heads: ChainedHeads,
    budget: int = 4096,
    sink: int = 16,
    widths: str = "1,3,3,3",
    n: int = 4,
    topk: int = 20,
    choice: str = "count",
) -> Drafter:
    """The target under a partial cache of `budget` slots gives a token, chained heads the next; n-grams join below."""
    at_least(0, sink=sink)
    at_least(sink + 1, budget=budget)
    at_least(2, n=n)
    at_least(1, topk=topk)
    one_of(("count", "random"), choice=choice)
    return Sequential(Heads(target, heads, Partial(budget, sink), tree(widths=widths)), Reuse(n, topk, 1, choice))


def eagle(target: LM, block: EagleBlock, topk: int = 10, levels: int = 7, nodes: int = 60, reach: int = 512) -> Drafter:
    """A layer on the target's states grows a tree by its likeliest nodes and keeps the best, `nodes` with the root."""
    at_least(1, topk=topk, reach=reach)
    at_least(0, levels=levels)
    at_least(2, nodes=nodes)
    return Eagle(target, block, topk, levels, nodes, reach)


def auto(target: LM, parts: dict[str, Any], rounds: int = 16) -> Drafter:
    """What the target's folder offers, and what needs no part, each tried for `rounds` rounds; the best goes on."""
    at_least(1, rounds=rounds)
    built = {"glide": longspec_guided, "budget": budgetdraft, "heads": tokenswift}
    own = [build(target, parts[kind], **AUTO.get(kind, {})) for kind, build in built.items() if kind in parts]
    return Auto([*own, vegas(target), vegas_reuse(target), suffix(target)], rounds)


AUTO = {"glide": {"widths": "4,2,2,2,2"}}  # fewer nodes than its default: a CPU verifies some ten for little


LONGSPEC = "LongSpec: long-context lossless speculative decoding (Yang et al. 2025)"
METHODS = {
    "plain": Method(plain, "autoregressive decoding"),
    "lookup": Method(lookup, "Prompt Lookup Decoding (Saxena 2023)"),
    "suffix": Method(suffix, "SuffixDecoding (Oliaro et al. 2024)"),
    "recycle": Method(recycle, "Token Recycling (Luo et al. 2024)"),
    "sd": Method(sd, "speculative decoding (Leviathan et al. 2023)", needs="lm"),
    "sd-sparse": Method(budgetdraft, "BudgetDraft's baseline (2026): a small model not trained for it", needs="lm"),
    "budgetdraft": Method(budgetdraft, "BudgetDraft (2026)", needs="budget"),
    "magicdec-stream": Method(magicdec_stream, "MagicDec (Chen et al. 2024) with StreamingLLM (Xiao et al. 2023)"),
    "magicdec-snapkv": Method(magicdec_snapkv, "MagicDec (Chen et al. 2024) with SnapKV (Li et al. 2024)"),
    "magicdec-quest": Method(magicdec_quest, "MagicDec (Chen et al. 2024) with Quest (Tang et al. 2024)"),
    "vegas": Method(vegas, "Vegas: verification-guided sparse attention (2026)"),
    "vegas-tree": Method(vegas_tree, "ours: Vegas drafting a tree"),
    "specextend": Method(specextend, "SpecExtend (Cha and Kim 2025)", needs="lm"),
    "triforce": Method(triforce, "TriForce (Sun et al. 2024)", needs="lm"),
    "medusa": Method(medusa, "Medusa (Cai et al. 2024), with lossless verification", needs="medusa"),
    "tokenswift": Method(tokenswift, "TokenSwift (Wu et al. 2025), with lossless verification", needs="heads"),
    "eagle2": Method(eagle, "EAGLE-2 (Li et al. 2024)", needs="eagle2"),
    "eagle3": Method(eagle, "EAGLE-3 (Li et al. 2025)", needs="eagle3"),
    "vegas-reuse": Method(vegas_reuse, "ours: Vegas and TokenSwift's n-grams in one tree"),
    "longspec": Method(longspec, LONGSPEC, needs="glide"),
    "longspec-chain": Method(longspec_chain, LONGSPEC, needs="glide"),
    "longspec-guided": Method(longspec_guided, f"ours: {LONGSPEC} under a view as in Vegas", needs="glide"),
    "auto": Method(auto, "ours: whichever of the others measures best", needs=ANY),
}


def find(name: str) -> Method:
    """Raises InputError on an unknown name."""
    known = METHODS | CONTROLS
    if name not in known:
        raise InputError(f"unknown method {name!r}: choose one of {', '.join(known)}")
    return known[name]


def build(name: str, target: LM, options: dict[str, str] | None = None, part: Any = None) -> Drafter:
    """The drafter of a named method; options as text, typed by the method's own signature. Raises InputError.

    part: the weights of a method that needs some (Method.needs).
    """
    method = find(name)
    given = {k: typed(name, method, k, v) for k, v in (options or {}).items()}
    if method.needs is None:
        return method.build(target, **given)
    if part is None and method.needs == ANY:
        part = {}
    if part is None:
        raise InputError(f"{name} needs a drafter of kind {method.needs}: give --drafter FOLDER or --random-drafter")
    return method.build(target, part, **given)
