"""Drafters without weights: drafts from tokens seen earlier."""

from __future__ import annotations
