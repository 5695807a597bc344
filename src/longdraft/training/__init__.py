"""Training: what made the bundled models, and the commands that make them again."""

from __future__ import annotations
