"""The errors that a user is meant to read."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input, described in one line, which also says what would be right.

    The command line exits with 2.
    """


class FieldError(InputError):
    """Bad input in one field of a request, which `field` names as clients know it."""

    def __init__(self, message: str, field: str):
        super().__init__(message)
        self.field = field


class TemplateRefusal(InputError):
    """A conversation that the model's chat template refuses."""


class Busy(RuntimeError):
    """There is no room for another request now, and there may be later."""
