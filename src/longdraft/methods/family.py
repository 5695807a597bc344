"""Families of methods, with the color of their points and lines, the same in all plots."""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """Methods that draft alike. They share a color, and in one plot differ by marker and line.

    label: what drafts, by which the page groups methods. color: #rrggbb, safe for color-blind
    readers on white. control: plots draw it thinner, as what a guided selection of keys must beat.
    """

    label: str
    color: str
    control: bool = False


PLAIN = Family("nothing", "#000000")
NGRAMS = Family("n-grams of the text", "#e69f00")
SMALL_MODEL = Family("a small model", "#cc79a7")
UNGUIDED = Family("the target under a view that ignores the text", "#7f7f7f", control=True)
FIXED_VIEW = Family("the target under a view of the prompt or of pages", "#332288")
GUIDED = Family("the target under a guided view", "#0072b2")
COPY = Family("a quantized copy of the target", "#d55e00")
PAIR = Family("the target and another drafter", "#56b4e9")
STATES = Family("heads or layers on the target's hidden states", "#8c6d31")
BLOCK = Family("a block on the target's cache", "#009e73")
AUTO = Family("whichever method has the best forecast", "#882255")
