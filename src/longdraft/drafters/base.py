"""The protocol of drafters: only `grow` has no useful default."""

from __future__ import annotations

from longdraft.core import (
    UNBOUNDED,
    Captures,
    CaptureSpec,
    DraftLimits,
    KVView,
    PromptSpec,
    Sequences,
    Tree,
    Verdict,
    Verifier,
)
from longdraft.costs.passes import Pass
from longdraft.drafters.price import DraftPrice


class Drafter:
    """Proposes tokens; never changes committed state. `grow` writes to scratch slots and to the
    drafter's own state.

    never_drafts: plain decoding says so. has_draft_probs: children are drawn without replacement
    from a distribution stored in the tree, as verify=reject needs. max_depth: the deepest level
    that a draft can have, if that is known. is_chain: unless limited, every draft is a chain of
    max_depth tokens. lasts: steps for which a view stays that attention scores have chosen. renews:
    whether `stay` changes that. forecast: the tokens per predicted second that it expects of the
    text that has begun, in plain decoding's; None: it does not predict.
    """

    never_drafts: bool = False
    has_draft_probs = False
    max_depth: int = UNBOUNDED
    is_chain: bool = False
    lasts: int = 1
    renews: bool = False
    forecast: float | None = None
    name: str = "drafter"  # of what proposes the nodes, in traces: a key of PROPOSERS

    def proposed_by(self, node: int) -> str:
        """The name of what proposed this node of the latest draft, also after its verification."""
        return self.name

    def view_read(self) -> KVView | None:
        """The view of the sequence's slots that the latest draft read under; None: it read all of
        them, or none.
        """
        return None

    def captures(self) -> CaptureSpec:
        """The states that the verify pass must capture for `update`."""
        return CaptureSpec()

    def prompt_captures(self) -> PromptSpec:
        """The states that a row's prefill should keep in seqs.prompt_states for `start` and
        `enter`, which may not find them.
        """
        return PromptSpec()

    def rewind(self, seqs: Sequences) -> None:
        """Remove from the drafter's own caches what seqs does not contain: a hierarchy takes back
        its inner drafts.
        """

    def ready(self, seqs: Sequences) -> None:
        """Read what a draft needs, such as the prompt, which may take long. `grow` does this if it
        was not called.
        """

    def verified_by(self, verify: Verifier) -> None:
        """Called before `start`: what will verify the drafts."""

    def start(self, seqs: Sequences) -> None:
        """Called once, after prefill; a session, whose rows enter later, calls it before there are
        any.
        """

    def price(self) -> DraftPrice:
        """The size and the seconds of a draft within limits, and what is expected of it, as far as
        they are known now.
        """
        return DraftPrice(max_depth=self.max_depth)

    def to_read(self, seqs: Sequences) -> list[Pass]:
        """The passes that `ready` would run now."""
        return []

    def choosing(self) -> CaptureSpec:
        """The requests of `captures` in a pass by which a view is chosen."""
        return self.captures()

    def stay(self, steps: int) -> None:
        """Let views that are chosen from now on stay for this many steps, where `renews` says that
        this can be set.
        """

    def enter(self, seqs: Sequences, row: int) -> None:
        """Row `row`, the last one, has been prefilled and joins the others, whose state stays.

        The next step drafts nothing, and `update` is called for it. By default, all rows start
        anew.
        """
        self.start(seqs)

    def leave(self, seqs: Sequences, row: int) -> None:
        """Row `row` has left; if it was not the last, the last one has taken its place. seqs: the
        rows that remain.

        The next step may draft if this is overridden, so the remaining rows' state must be kept or
        not be needed.
        """
        self.start(seqs)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        """The tree with drafted nodes added within the limits, or unchanged for no draft."""
        return tree

    def idle(self) -> None:
        """Something else has drafted in this step, in some rows or in all; `update` follows all the
        same.
        """

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        """Called after a step's commit. Steps may be left out, except the last one before a
        draft.
        """
