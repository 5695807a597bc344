"""What each kind of drafter learns, with its options: build(frozen, corpus, **options) -> Objective."""

from __future__ import annotations

from longdraft.core.options import Method, at_least, one_of, typed
from longdraft.drafters.eagle.objective import EagleObjective, layer_for
from longdraft.drafters.glide.block import Glide
from longdraft.drafters.glide.objective import GlideObjective
from longdraft.drafters.heads.objective import HeadsObjective, chained, medusa
from longdraft.drafters.small_model.objective import BudgetObjective
from longdraft.errors import InputError
from longdraft.models.loading import load_lm
from longdraft.training.data import Corpus
from longdraft.training.drafter import Objective
from longdraft.training.frozen import Frozen

LABELS = ("target", "text")


def glide(
    frozen: Frozen,
    corpus: Corpus,
    labels: str = "target",
    lags: int = 5,
    anchors: int = 4,
    window: int = 512,
    norm: int = 1,
) -> Objective:
    """labels=law: the target's probabilities. lags=1: no flash noisy training; anchors=0: no anchor-offset indices;
    norm=0: no final norm, as published."""
    one_of((*LABELS, "law"), labels=labels)
    at_least(1, lags=lags, window=window)
    at_least(0, anchors=anchors, norm=norm)
    return GlideObjective(frozen, Glide(frozen.lm, window, with_norm=bool(norm)), labels, lags, anchors)


def heads(frozen: Frozen, corpus: Corpus, labels: str = "target", count: int = 3) -> Objective:
    one_of(LABELS, labels=labels)
    at_least(1, count=count)
    return HeadsObjective(frozen, chained(frozen.lm, count), labels)


def medusa_heads(frozen: Frozen, corpus: Corpus, labels: str = "target", count: int = 4) -> Objective:
    one_of(LABELS, labels=labels)
    at_least(1, count=count)
    return HeadsObjective(frozen, medusa(frozen.lm, count), labels)


def eagle(frozen: Frozen, corpus: Corpus, labels: str = "target", depth: int = 5, vocab: int = 32000) -> Objective:
    one_of(LABELS, labels=labels)
    at_least(1, depth=depth, vocab=vocab)
    return EagleObjective(frozen, layer_for(frozen.lm, corpus, vocab), labels, depth)


def budget(
    frozen: Frozen, corpus: Corpus, small: str = "", labels: str = "target", share: float = 0.5, tail: int = 256
) -> Objective:
    """small: the folder of the model to teach. share=0: without the sparse branch."""
    one_of(LABELS, labels=labels)
    at_least(1, tail=tail)
    if not small:
        raise InputError("option small names no model: give -o small=FOLDER, a small model with the target's tokenizer")
    if not share >= 0:
        raise InputError(f"option share is {share}: give 0 or more")
    lm = load_lm(small, "float32", str(frozen.lm.device))
    if lm.vocab != frozen.lm.vocab:
        raise InputError(f"{small} has {lm.vocab} tokens and the target {frozen.lm.vocab}: use one of its tokenizer")
    return BudgetObjective(frozen, lm, labels, share, tail)


# command -> (objective, the kind of part that it makes)
KINDS = {
    "glide": (Method(glide, "LongSpec", needs="corpus"), "glide"),
    "heads": (Method(heads, "TokenSwift", needs="corpus"), "heads"),
    "medusa": (Method(medusa_heads, "Medusa", needs="corpus"), "medusa"),
    "eagle": (Method(eagle, "EAGLE-3", needs="corpus"), "eagle3"),
    "budget": (Method(budget, "BudgetDraft", needs="corpus"), "budget"),
}


def objective(command: str, frozen: Frozen, corpus: Corpus, options: dict[str, str]) -> tuple[Objective, dict]:
    """-> what is learnt, and every option as it was taken."""
    method, _ = KINDS[command]
    given = {k: typed(f"train {command}", method, k, v) for k, v in options.items()}
    taken = {k: default for k, (_, default) in method.options.items()} | given
    learns = method.build(frozen, corpus, **given)
    learns.part.to(frozen.lm.device)
    return learns, taken
