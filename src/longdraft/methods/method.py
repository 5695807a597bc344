"""A named method: the function that builds its drafter, whose signature declares its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, create_model

from longdraft.core.options import declared
from longdraft.models.lm import LM

ANY = "any"  # Method.needs of a method that uses whatever drafter weights there are, given as {kind: weights}


@dataclass(frozen=True)
class Method:
    """build(target, **options) -> Drafter, or build(target, weights, **options) if it needs drafter weights.

    needs: the kind of drafter weights, or ANY. adaptive: AdaptiveDraft may make its drafts shorter and narrower. copy:
    for a method without an option draft_weights, the kind of quantised copy of a target that it drafts by, if any.
    """

    build: Callable[..., Any]
    paper: str
    needs: str | None = None
    adaptive: bool = True
    copy: Callable[[LM], str | None] | None = None

    @property
    def options(self) -> type[BaseModel]:
        """The options on the command line: those of `build`, and `pace=off` for drafts of fixed size."""
        own = declared(self.build)
        if not self.adaptive:
            return own
        pace: Any = (Literal["on", "off"], "on")
        return create_model(own.__name__, __base__=own, pace=pace)
