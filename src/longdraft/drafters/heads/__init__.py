"""Heads on the target's hidden state: chained ones (TokenSwift) and separate ones (Medusa)."""

from __future__ import annotations
