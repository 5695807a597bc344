"""Methods without drafter weights and extra passes, which draft from the text and past outputs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from longdraft.core.options import Depth, Nodes, NotNegative, Share
from longdraft.drafters import Drafter, Lookup, Recycle, Suffix
from longdraft.models.lm import LM


def plain(target: LM) -> Drafter:
    """Decodes one token per step: the baseline of every figure."""
    return Drafter()


def lookup(target: LM, n: Depth = 3, count: Depth = 10) -> Drafter:
    """Drafts the `count` tokens after the latest earlier occurrence of the last tokens.

    n: how many last tokens, at most.
    """
    return Lookup(n, count)


def suffix(
    target: LM,
    nodes: Nodes = 16,
    factor: Annotated[float, Field(gt=0)] = 2.0,
    min_probability: Share = 0.1,
    earlier: NotNegative = 0,
) -> Drafter:
    """Drafts a tree of the commonest continuations of the longest suffix that occurred before.

    The tree has up to factor * suffix length nodes, at most `nodes`. earlier: how many tokens of
    earlier outputs are searched too.
    """
    return Suffix(nodes, factor, min_probability, earlier=earlier)


def recycle(target: LM, nodes: Nodes = 24) -> Drafter:
    """Fills a fixed tree with the tokens that the target last ranked highest after each token.

    Published: 80 nodes.
    """
    return Recycle(nodes)
