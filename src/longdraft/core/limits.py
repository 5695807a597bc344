"""How much a drafter may add to a tree."""

from __future__ import annotations

from dataclasses import dataclass, replace

UNBOUNDED = 1 << 30


@dataclass(frozen=True)
class DraftLimits:
    """At most `depth` levels of drafted nodes below the root, and at most `width` drafted nodes on one level."""

    depth: int = UNBOUNDED
    width: int = UNBOUNDED

    def within(self, depth: int = UNBOUNDED, width: int = UNBOUNDED) -> DraftLimits:
        """The stricter of these limits and the given ones."""
        return replace(self, depth=min(self.depth, depth), width=min(self.width, width))
