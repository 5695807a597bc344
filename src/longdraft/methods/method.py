"""The record of a named method.

The signature of the function that builds its drafter declares its options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, create_model

from longdraft.core.options import declared
from longdraft.methods.family import MethodFamily
from longdraft.models.lm import LM

# Method.needs of a method that uses whatever drafter weights there are, given as {kind: weights}
ANY = "any"


@dataclass(frozen=True)
class Trial:
    """A method that `auto` may use, if it needs no drafter weights or there are some.

    place: of equal forecasts, that of the lower place counts. options: of the method; a CPU
    verifies about ten nodes at little extra cost. named: its weights are used only if they are
    named, and it then comes before the others.
    """

    place: int
    options: Mapping[str, Any] = field(default_factory=dict)
    named: bool = False


@dataclass(frozen=True, kw_only=True)
class Method:
    """A named method, from which methods are listed, documented, drawn and built.

    build(target, **options) -> Drafter, or build(target, weights, **options) if it needs drafter
    weights. drafts: what drafts come from, for the table in the documentation. paper: where it was
    published, with year. family: its color in plots and its label on the page. needs: the kind of
    drafter weights, or ANY. trial: how `auto` uses it; None: it does not. adaptive: AdaptiveDraft
    may make its drafts shorter and narrower. copy: for a method without an option draft_weights,
    the kind of quantized copy of a target that it drafts by, if any (`fill`: without weights).
    """

    build: Callable[..., Any]
    drafts: str
    paper: str
    family: MethodFamily
    needs: str | None = None
    trial: Trial | None = None
    adaptive: bool = True
    copy: Callable[[LM], str | None] | None = None

    @property
    def options(self) -> type[BaseModel]:
        """The options on the command line: those of `build`, and `pace`.

        `pace=off` is for drafts of fixed size.
        """
        own = declared(self.build)
        if not self.adaptive:
            return own
        pace: Any = (Literal["on", "off"], "on")
        return create_model(own.__name__, __base__=own, pace=pace)
