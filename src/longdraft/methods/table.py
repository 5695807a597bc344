"""The record of every named method, in the order of their listing.

A new method is a function and a record here.
"""

from __future__ import annotations

from typing import Any

from longdraft.core.options import Nodes
from longdraft.drafters import Drafter
from longdraft.methods import family
from longdraft.methods.method import ANY, Method, Trial
from longdraft.methods.model_free import lookup, plain, recycle, suffix
from longdraft.methods.prices import filled
from longdraft.methods.self_speculative import (
    kind_of_copy,
    magicdec_quest,
    magicdec_snapkv,
    magicdec_stream,
    quantspec,
    random_picks,
    recents,
    vegas,
    vegas_reuse,
    vegas_tree,
)
from longdraft.methods.small_models import budgetdraft, sd, specextend, triforce
from longdraft.methods.trained import (
    dflash,
    eagle,
    longspec,
    longspec_chain,
    longspec_guided,
    medusa,
    mtp,
    tokenswift,
)
from longdraft.methods.trials import candidates, model_drafter
from longdraft.models.lm import LM

LONGSPEC = "LongSpec: long-context lossless speculative decoding (Yang et al. 2025)"


def auto(target: LM, weights: dict[str, Any], nodes: Nodes = 48) -> Drafter:
    """Chooses among several model drafters, each filled as in fill.

    nodes: at most this many copied nodes. It chooses among a quantized copy, vegas and the methods
    that have their drafter weights, by predicted costs and by what was accepted so far.
    """
    return filled(candidates(METHODS.values(), target, weights), target, nodes)


def fill(target: LM, weights: dict[str, Any], nodes: Nodes = 48) -> Drafter:
    """Fills the tree of a model drafter with continuations of the text, or copies these alone.

    nodes: at most this many copied nodes. The drafter is a trained one if there are weights, else
    a quantized copy or vegas. Each step drafts what promises the most tokens per second.
    """
    return filled([model_drafter(METHODS.values(), target, weights)], target, nodes)


METHODS = {
    "plain": Method(
        build=plain,
        drafts="no drafting: one token per step",
        paper="autoregressive decoding",
        family=family.PLAIN,
        adaptive=False,
    ),
    "lookup": Method(
        build=lookup,
        drafts="the text: the tokens after the latest earlier occurrence of its last tokens",
        paper="Prompt Lookup Decoding (Saxena 2023)",
        family=family.NGRAMS,
    ),
    "suffix": Method(
        build=suffix,
        drafts="the text: a tree of the commonest continuations of the longest suffix that "
        "occurred before",
        paper="SuffixDecoding (Oliaro et al. 2024)",
        family=family.NGRAMS,
    ),
    "recycle": Method(
        build=recycle,
        drafts="a table of the tokens that the target last ranked highest after each token",
        paper="Token Recycling (Luo et al. 2024)",
        family=family.NGRAMS,
    ),
    "sd": Method(
        build=sd,
        drafts="a small model",
        paper="speculative decoding (Leviathan et al. 2023)",
        family=family.SMALL_MODEL,
        needs="lm",
        trial=Trial(0, named=True),
    ),
    "sd-sparse": Method(
        build=budgetdraft,
        drafts="a small model that reads the prompt chunks its last queries attended to",
        paper="BudgetDraft's baseline (2026): a small model not trained for it",
        family=family.SMALL_MODEL,
        needs="lm",
    ),
    "budgetdraft": Method(
        build=budgetdraft,
        drafts="the same, with a model trained to draft that way",
        paper="BudgetDraft (2026)",
        family=family.SMALL_MODEL,
        needs="budget",
        trial=Trial(5),
    ),
    "magicdec-stream": Method(
        build=magicdec_stream,
        drafts="the target, reading the first tokens and the latest",
        paper="MagicDec (Chen et al. 2024) with StreamingLLM (Xiao et al. 2023)",
        family=family.UNGUIDED,
    ),
    "magicdec-snapkv": Method(
        build=magicdec_snapkv,
        drafts="the target, reading what the prompt's last queries attended to",
        paper="MagicDec (Chen et al. 2024) with SnapKV (Li et al. 2024)",
        family=family.FIXED_VIEW,
    ),
    "magicdec-quest": Method(
        build=magicdec_quest,
        drafts="the target; each draft reads the pages with the highest score bounds for its own "
        "query",
        paper="MagicDec (Chen et al. 2024) with Quest (Tang et al. 2024)",
        family=family.FIXED_VIEW,
    ),
    "vegas": Method(
        build=vegas,
        drafts="the target, reading the keys that its last verification scored highest",
        paper="Vegas: verification-guided sparse attention (2026)",
        family=family.GUIDED,
        trial=Trial(2),
    ),
    "vegas-tree": Method(
        build=vegas_tree,
        drafts="as vegas, a tree",
        paper="ours: Vegas drafting a tree",
        family=family.GUIDED,
    ),
    "quantspec": Method(
        build=quantspec,
        drafts="a copy of the target with quantized weights, reading every key, quantized too",
        paper="QuantSpec (Tiwari et al. 2025), with the target's own keys",
        family=family.COPY,
    ),
    "specextend": Method(
        build=specextend,
        drafts="a small model that reads the chunks that the target's last accepted token "
        "attended to",
        paper="SpecExtend (Cha and Kim 2025)",
        family=family.PAIR,
        needs="lm",
    ),
    "triforce": Method(
        build=triforce,
        drafts="the target reading part of the prompt, with a small model drafting for it",
        paper="TriForce (Sun et al. 2024)",
        family=family.PAIR,
        needs="lm",
    ),
    "medusa": Method(
        build=medusa,
        drafts="independent heads on the last verified hidden state",
        paper="Medusa (Cai et al. 2024), with lossless verification",
        family=family.STATES,
        needs="medusa",
        trial=Trial(1, {"nodes": 8}, named=True),
    ),
    "tokenswift": Method(
        build=tokenswift,
        drafts="the target with a partial cache, chained heads, and n-grams of the text",
        paper="TokenSwift (Wu et al. 2025), with lossless verification",
        family=family.STATES,
        needs="heads",
        trial=Trial(4, {"widths": (1, 2, 2, 1)}),
    ),
    "eagle2": Method(
        build=eagle,
        drafts="a layer that continues the target's last hidden states",
        paper="EAGLE-2 (Li et al. 2024)",
        family=family.STATES,
        needs="eagle2",
        trial=Trial(2, {"topk": 4, "levels": 3, "nodes": 8}, named=True),
    ),
    "eagle3": Method(
        build=eagle,
        drafts="a layer that continues hidden states of three depths",
        paper="EAGLE-3 (Li et al. 2025)",
        family=family.STATES,
        needs="eagle3",
        trial=Trial(3, {"topk": 4, "levels": 3, "nodes": 8}, named=True),
    ),
    "mtp": Method(
        build=mtp,
        drafts="the multi-token-prediction layers in the target's own checkpoint",
        paper="multi-token prediction (DeepSeek-AI 2024), with a window",
        family=family.STATES,
        needs="mtp",
        trial=Trial(3),
    ),
    "dflash": Method(
        build=dflash,
        drafts="a block of masks on hidden states of several depths: all depths in one pass",
        paper="DFlash (2026) with trees as in DDTree (2026)",
        family=family.STATES,
        needs="dflash",
        trial=Trial(4, named=True),
    ),
    "vegas-reuse": Method(
        build=vegas_reuse,
        drafts="as vegas, with n-grams of the text below its first token",
        paper="ours: Vegas and TokenSwift's n-grams in one tree",
        family=family.PAIR,
    ),
    "longspec": Method(
        build=longspec,
        drafts="a block that attends to the target's own cache: a tree",
        paper=LONGSPEC,
        family=family.BLOCK,
        needs="glide",
    ),
    "longspec-chain": Method(
        build=longspec_chain,
        drafts="the same: a chain",
        paper=LONGSPEC,
        family=family.BLOCK,
        needs="glide",
    ),
    "longspec-guided": Method(
        build=longspec_guided,
        drafts="the same block, reading only the keys that the last verification scored highest",
        paper=f"ours: {LONGSPEC} under a view as in Vegas",
        family=family.BLOCK,
        needs="glide",
        trial=Trial(1, {"widths": (4, 2, 2, 2, 2)}),
    ),
    "auto": Method(
        build=auto,
        drafts="as fill, with the model drafter that promises most",
        paper="ours: copying from the text and the best of several drafters in one tree",
        family=family.AUTO,
        needs=ANY,
        adaptive=False,
        copy=kind_of_copy,
    ),
    "fill": Method(
        build=fill,
        drafts="a model drafter's tree, filled with continuations of the text, or these alone",
        paper="ours: copying from the text and a model drafter in one tree",
        family=family.PAIR,
        needs=ANY,
        adaptive=False,
        copy=kind_of_copy,
    ),
}
# Methods that read as many cache slots as vegas, selected without looking at attention.
CONTROLS = {
    "random-picks": Method(
        build=random_picks,
        drafts="the target, reading as many slots as vegas, chosen at random",
        paper="control",
        family=family.UNGUIDED,
    ),
    "recents": Method(
        build=recents,
        drafts="the target, reading as many of the latest slots as vegas",
        paper="control",
        family=family.UNGUIDED,
    ),
}
