"""Families of methods, with the color of their points and lines, the same in all plots."""

from __future__ import annotations

from typing import NamedTuple


class MethodFamily(NamedTuple):
    """Methods that draft alike. They share a color, and in one plot differ by marker and line.

    label: what drafts, by which the page groups methods. color: #rrggbb, safe for color-blind
    readers on white. control: plots draw it thinner, as what a guided selection of keys must beat.
    """

    label: str
    color: str
    control: bool = False


PLAIN = MethodFamily("nothing", "#000000")
NGRAMS = MethodFamily("n-grams of the text", "#e69f00")
SMALL_MODEL = MethodFamily("a small model", "#cc79a7")
UNGUIDED = MethodFamily("the target under a view that ignores the text", "#7f7f7f", control=True)
FIXED_VIEW = MethodFamily("the target under a view of the prompt or of pages", "#332288")
GUIDED = MethodFamily("the target under a guided view", "#0072b2")
COPY = MethodFamily("a quantized copy of the target", "#d55e00")
PAIR = MethodFamily("the target and another drafter", "#56b4e9")
STATES = MethodFamily("heads or layers on the target's hidden states", "#8c6d31")
BLOCK = MethodFamily("a block on the target's cache", "#009e73")
AUTO = MethodFamily("the text and the best of several drafters", "#882255")
