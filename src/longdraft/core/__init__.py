"""Trees, caches, sampling and verification: what a decoding step is made of, without any model or drafter."""

from __future__ import annotations
