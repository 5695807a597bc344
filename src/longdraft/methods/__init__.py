"""Named methods: each is one function that builds a drafter from the parts. A new one is a function and a line here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longdraft.core.options import declared, read
from longdraft.drafters import AdaptiveDraft, Drafter
from longdraft.drafters.kinds import load_weights, own_weights
from longdraft.errors import InputError
from longdraft.methods.drafter_weights import DrafterWeights, how_to_get
from longdraft.methods.method import ANY, Method
from longdraft.methods.model_free import lookup, plain, recycle, suffix
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
    auto,
    dflash,
    eagle,
    longspec,
    longspec_chain,
    longspec_guided,
    medusa,
    mtp,
    tokenswift,
)
from longdraft.models.lm import LM

LONGSPEC = "LongSpec: long-context lossless speculative decoding (Yang et al. 2025)"
METHODS = {
    "plain": Method(plain, "autoregressive decoding", adaptive=False),
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
    "quantspec": Method(quantspec, "QuantSpec (Tiwari et al. 2025), with the target's own keys"),
    "specextend": Method(specextend, "SpecExtend (Cha and Kim 2025)", needs="lm"),
    "triforce": Method(triforce, "TriForce (Sun et al. 2024)", needs="lm"),
    "medusa": Method(medusa, "Medusa (Cai et al. 2024), with lossless verification", needs="medusa"),
    "tokenswift": Method(tokenswift, "TokenSwift (Wu et al. 2025), with lossless verification", needs="heads"),
    "eagle2": Method(eagle, "EAGLE-2 (Li et al. 2024)", needs="eagle2"),
    "eagle3": Method(eagle, "EAGLE-3 (Li et al. 2025)", needs="eagle3"),
    "mtp": Method(mtp, "multi-token prediction (DeepSeek-AI 2024), with a window", needs="mtp"),
    "dflash": Method(dflash, "DFlash (2026) with trees as in DDTree (2026)", needs="dflash"),
    "vegas-reuse": Method(vegas_reuse, "ours: Vegas and TokenSwift's n-grams in one tree"),
    "longspec": Method(longspec, LONGSPEC, needs="glide"),
    "longspec-chain": Method(longspec_chain, LONGSPEC, needs="glide"),
    "longspec-guided": Method(longspec_guided, f"ours: {LONGSPEC} under a view as in Vegas", needs="glide"),
    "auto": Method(auto, "ours: whichever of the others measures best", needs=ANY, adaptive=False, copy=kind_of_copy),
}
# Methods that read as many cache slots as vegas, selected without looking at attention.
CONTROLS = {"random-picks": Method(random_picks, "control"), "recents": Method(recents, "control")}


def find(name: str) -> Method:
    """Raises InputError on an unknown name."""
    known = METHODS | CONTROLS
    if name not in known:
        raise InputError(f"unknown method {name!r}: choose one of {', '.join(known)}")
    return known[name]


def build(
    name: str, target: LM, drafter: Any = None, *, adaptive: bool = False, any_target: bool = False, **options: Any
) -> Drafter:
    """The drafter of a named method with these options (`longdraft methods` lists them). Raises InputError.

    drafter: the drafter weights of a method that needs some: a folder, a Hub id, or a loaded module. any_target: also
    accept weights that were trained for another target. adaptive: wrap the drafter in AdaptiveDraft.
    """
    method = find(name)
    given = dict(read(name, declared(method.build), options))
    if method.needs is None:
        made = method.build(target, **given)
    elif method.needs == ANY:
        if isinstance(drafter, str | Path):
            drafter = DrafterWeights(str(drafter), any_target=any_target).of(ANY, target)
        made = method.build(target, drafter or {}, **given)
    else:
        weights = own_weights(method.needs, target) if drafter is None else drafter
        if weights is None:
            raise InputError(f"{name} needs a drafter of kind {method.needs}: {how_to_get(method.needs, target.name)}")
        made = method.build(target, load_weights(method.needs, weights, target, any_target), **given)
    return AdaptiveDraft(made) if adaptive and method.adaptive else made
