"""Drafting that adapts to measured or counted costs."""

from __future__ import annotations
