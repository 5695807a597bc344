"""The one error a user is meant to read."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: one clear line that says what is wrong and what would be right; the command line exits with 2."""
