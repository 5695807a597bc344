"""The drafters among which a session's requests choose."""

from __future__ import annotations

from collections.abc import Mapping

from longdraft.core import Verifier
from longdraft.drafters.base import Drafter
from longdraft.drafters.forced import Forced
from longdraft.drafters.plain import PlainDecoding
from longdraft.engine.generate import check_pair
from longdraft.engine.requests import Request
from longdraft.engine.row_pool import RowPool
from longdraft.errors import InputError


class SessionDrafters:
    """Drafters by name, the session's own as "". One of them is in use at a time.

    Rows that may have no drafts run beside any of them. A request for another drafter waits until
    no row is drafted for. now: the drafter in use; steps: the same with forced tokens in front, as
    decoding steps use it.
    """

    def __init__(self, own: Drafter, others: Mapping[str, Drafter], verify: Verifier):
        self._named = {**others, "": own}
        for drafter in self._named.values():
            check_pair(drafter, verify)
        self._plain = own if own.never_drafts else PlainDecoding()
        self._name: str | None = None  # of the drafter in use; None: of plain decoding
        self.now: Drafter = self._plain
        self.steps: Drafter = self._plain

    def deepest(self, method: str, most: int) -> int:
        """How deep the drafts of a request may be: 0 with a method that never drafts.

        Raises InputError for an unknown name.
        """
        if method not in self._named:
            raise InputError(f"this session has no drafter {method!r}")
        return 0 if self._named[method].never_drafts else most

    def may_enter(self, request: Request, rows: RowPool) -> bool:
        """Whether a request can run beside these rows."""
        return request.deepest == 0 or request.method == self._name or not rows.is_drafted

    def choose(self, request: Request, rows: RowPool) -> bool:
        """Use the drafter of a request whose prompt is about to be read, unless rows use another.

        Returns whether that changes the drafter in use, which must then start.
        """
        return not rows.is_drafted and self._use(request.method if request.deepest else None)

    def rest(self, rows: RowPool) -> bool:
        """Decode plainly if no row may have drafts. Returns whether that is a change."""
        return not rows.is_drafted and self._use(None)

    def _use(self, name: str | None) -> bool:
        if name == self._name:
            return False
        self._name = name
        self.now = self._plain if name is None else self._named[name]
        self.steps = self._plain if name is None else Forced(self.now)
        return True
