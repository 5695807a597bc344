"""A separate small language model as the drafter."""

from __future__ import annotations
