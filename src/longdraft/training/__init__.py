"""Training a target, and the parts that drafters' training objectives share. Knows no drafter."""

from __future__ import annotations
