"""The methods among which requests choose, and the choice of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longdraft.core import UNBOUNDED
from longdraft.server.http.problems import Problem
from longdraft.server.openai.schema import SampledRequest

PLAIN = "plain"


@dataclass(frozen=True)
class ChosenMethod:
    """A request's method. session: its name in the session; deepest: how deep drafts may be."""

    name: str
    session: str = ""
    deepest: int = UNBOUNDED


OWN = ChosenMethod("")


@dataclass(frozen=True)
class MethodChoice:
    """The server's own method, and the names of those that requests may choose instead."""

    own: str
    others: Sequence[str] = (PLAIN,)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([self.own, *self.others]))

    def of(self, body: SampledRequest) -> ChosenMethod:
        """The method that a request asks for.

        Raises Problem for one that is not allowed here.
        """
        most = UNBOUNDED if body.most_drafted is None else body.most_drafted
        asked = body.speculative
        name = self.own if asked in (None, True) else str(asked)
        field = "speculative"
        if asked is False:
            name = PLAIN
        elif most == 0:
            field = "speculative.n_max"
            name = PLAIN
        if name not in self.names:
            allowed = ", ".join(self.names)
            why = f"{field}: {name[:80]!r} is not allowed here: use one of {allowed}"
            raise Problem(400, why, field, "method_not_allowed")
        if name == PLAIN:
            return ChosenMethod(PLAIN, deepest=0)
        return ChosenMethod(name, "" if name == self.own else name, most)
