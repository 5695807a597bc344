"""Plain decoding as a drafter that never drafts."""

from __future__ import annotations

from longdraft.drafters.base import Drafter


class PlainDecoding(Drafter):
    """Decodes one token per step, and needs nothing of a verification."""

    never_drafts = True
