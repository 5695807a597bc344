"""The errors that a user is meant to read."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: one clear line that says what is wrong and what would be right; the command line exits with 2."""


class Busy(RuntimeError):
    """There is no room for another request now, and there may be later."""
