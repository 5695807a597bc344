"""Deliberately broken twins: each is the good version with one fault, most of them found in
published code.

A plant replaces something for the length of a test; test_broken.py says which check must fail then.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from pytest import MonkeyPatch

from longdraft.core import verify
from longdraft.core.cache import KVCache
from longdraft.core.rows import Rows
from longdraft.core.sampling import Sampler
from longdraft.core.sequences import Sequences
from longdraft.core.tree import PAD, Tree
from longdraft.core.verify import Verdict
from longdraft.drafters import DFlash, Drafter, Fill, Hierarchical, Mtp, SelfDrafter
from longdraft.drafters.fill.calibration import Calibration
from longdraft.drafters.fill.growth import Growth
from longdraft.models.lm import LM
from longdraft.ops import ACCEPT, RESIDUAL, gumbel, uniform
from longdraft.views import View

# fault: checks that failed, filled by the tests for the table at the end of a run
CAUGHT: dict[str, list[str]] = {}


def caught(fault: str, check: str) -> None:
    """Note that a check failed as it should."""
    CAUGHT.setdefault(fault, []).append(check)


# Verifiers ----------------------------------------------------------------------------------------


def per_path_draws(tree: Tree, logits, sampler: Sampler, rows: Rows) -> Verdict:
    """One draw of the target per leaf and depth, the leaf with the longest match wins (TokenSwift
    as released).
    """
    law = sampler.processed(logits, tree, rows).log_softmax(-1)
    found = []
    for b, parent in enumerate(tree.parent.tolist()):
        best: tuple[list[int], list[int]] = ([], [])
        for leaf in (n for n in range(tree.size) if n not in parent and parent[n] != PAD):
            path = [leaf]
            while parent[path[0]] >= 0:
                path.insert(0, parent[path[0]])
            position = (rows.length[b] + tree.depth[b, path])[None]
            noise = gumbel(rows.seed[b : b + 1] + 1_000_003 * leaf, position, law.shape[-1])[0]
            drawn = (law[b, path] + noise).argmax(-1).tolist()
            good = 0
            while good + 1 < len(path) and drawn[good] == int(tree.tokens[b, path[good + 1]]):
                good += 1
            if good + 1 > len(best[0]):
                best = (path[: good + 1], drawn[: good + 1])
        found.append(best)
    return verdict_of(found)


def unverified(tree: Tree, logits, sampler: Sampler, rows: Rows) -> Verdict:
    """A drafted chain is said as it is, and only the token after it is the target's own: what a
    level verified under a view counts as verified.
    """
    steps = torch.arange(tree.size)
    said = sampler.scores(logits, tree, rows).argmax(-1)
    emitted = torch.where(steps < tree.last[:, None], tree.tokens.roll(-1, 1), said)
    return Verdict(steps.expand_as(emitted), tree.last + 1, emitted)


def lenient(tree: Tree, logits, sampler: Sampler, rows: Rows) -> Verdict:
    """Any draft that scores within 0.25 of the best is accepted: in bfloat16 it looks like
    rounding.
    """
    scores = sampler.scores(logits, tree, rows)
    chosen = scores.argmax(-1)
    least = scores.amax(-1) - 0.25
    for b, parents in enumerate(tree.parent.tolist()):
        for node in range(tree.size - 1, 0, -1):
            above = parents[node]
            token = tree.tokens[b, node]
            if above >= 0 and scores[b, above, token] >= least[b, above]:
                chosen[b, above] = token
    return verify.walk(tree, chosen)


def verdict_of(rows: list[tuple[list[int], list[int]]]) -> Verdict:
    """[(path, emitted)] of unequal lengths -> a Verdict padded with its last entries."""
    most = max(len(path) for path, _ in rows)
    path, emitted = (
        torch.tensor([r[i] + [r[i][-1]] * (most - len(r[i])) for r in rows]) for i in (0, 1)
    )
    return Verdict(path, torch.tensor([len(r[0]) for r in rows]), emitted)


def reject_with(fault: str | None):
    """Speculative sampling by p/q written a second time, with one fault or (None) with none."""

    def verifier(tree: Tree, logits, sampler: Sampler, rows: Rows) -> Verdict:
        target = sampler.processed(logits, tree, rows).softmax(-1)
        return verdict_of([_reject(tree, target[b], rows, b, fault) for b in range(len(target))])

    return verifier


def _reject(
    tree: Tree, target, rows: Rows, b: int, fault: str | None
) -> tuple[list[int], list[int]]:
    here = 0
    path = [0]
    emitted = []
    seed = rows.seed[b : b + 1]
    parent = tree.parent[b].tolist()
    tokens = tree.tokens[b].tolist()
    while True:
        position = (rows.length[b] + tree.depth[b, here]).view(1, 1)
        p = target[here].double()
        q = tree.draft_probs[b, here].double()
        accepted = None
        for rank, child in enumerate(n for n, at in enumerate(parent) if at == here):
            x = tokens[child]
            if q[x] == 0 and fault != "tests a child that is no draw":
                continue
            at = child if fault == "ratio by tree slot" else x
            bound = 1.0 if fault == "q forced to 1" else q[at]
            coin = verify.uniform(seed ^ ACCEPT, position, torch.tensor([rank])).view(())
            if coin * bound < p[at] or (
                fault == "coin 0 accepts anything" and coin * bound <= p[at]
            ):
                accepted = child
                break
            if fault != "redraws from p":
                left = (p - q).clamp(min=0)
                p = left / left.sum() if left.sum() > 0 else p
            if fault != "q keeps a refused token":
                q = q.scatter(0, torch.tensor(x), 0.0)
                q = q / q.sum().clamp(min=1e-300)
        if accepted is None:
            drawn = int((p.log() + gumbel(seed ^ RESIDUAL, position, len(p)).view(-1)).argmax())
            return path, [*emitted, drawn]
        emitted.append(tokens[accepted])
        path.append(accepted)
        here = accepted


def plant_verifier(name: str, twin):
    return lambda mp: mp.setattr(verify, name, twin)


# Trees, cache, rows -------------------------------------------------------------------------------


def wrong_position(mp: MonkeyPatch) -> None:
    """Nodes of the first level claim the root's own position, and so on down."""
    good = Tree.grow

    def grow(self, parent, tokens):
        tree = good(self, parent, tokens)
        late = (tree.parent == 0) & (torch.arange(tree.size) >= self.size)
        return replace(tree, depth=tree.depth - late.long())

    mp.setattr(Tree, "grow", grow)
    # node by node
    mp.setattr("longdraft.backends.native.NativeBackend.chain_drafter", lambda *_: None)


def sees_sibling(mp: MonkeyPatch) -> None:
    """A node also sees the node before it: right for a chain, stale scratch in a tree."""
    good = Tree.grow

    def grow(self, parent, tokens):
        tree = good(self, parent, tokens)
        return replace(
            tree, mask=tree.mask | torch.eye(tree.size, dtype=torch.bool).roll(-1, 1).tril(-1)
        )

    mp.setattr(Tree, "grow", grow)


def keep_shifted(mp: MonkeyPatch) -> None:
    """The last kept node's slot comes from its neighbor: an off-by-one in the compaction."""
    good = KVCache.keep

    def keep(self, path, count):
        last = torch.arange(path.shape[1]) == count[:, None] - 1
        good(self, torch.where(last & (path > 0), path - 1, path), count)

    mp.setattr(KVCache, "keep", keep)


def keep_in_place(mp: MonkeyPatch) -> None:
    """Accepted nodes are not moved together: right for a chain alone."""

    def keep(self, path, count):
        self.length += count

    mp.setattr(KVCache, "keep", keep)


def length_off(mp: MonkeyPatch) -> None:
    """A step that accepted drafts commits one slot too many: a refused draft's keys stay."""
    good = KVCache.keep

    def keep(self, path, count):
        good(self, path, count)
        self.length += (count > 1).long()

    mp.setattr(KVCache, "keep", keep)


def rollback_off(mp: MonkeyPatch) -> None:
    """A rollback leaves the first speculative slot committed."""

    @contextmanager
    def rollback(self):
        saved = self.length.clone()
        try:
            yield
        finally:
            self.length.copy_(saved + 1)

    mp.setattr(KVCache, "rollback", rollback)


def corrupting_draft(mp: MonkeyPatch) -> None:
    """The drafter's pass starts one slot too low and overwrites the last committed keys."""
    good = SelfDrafter.grow

    def grow(self, tree, seqs, limits):
        with seqs.cache.rollback():
            seqs.cache.length -= 1
            return good(self, tree, seqs, limits)

    mp.setattr(SelfDrafter, "grow", grow)


def _at_start(patch: MonkeyPatch, fault) -> None:
    """A drafter does this to the rows it is given before it starts."""
    good = SelfDrafter.start

    def start(self, seqs):
        fault(seqs)
        good(self, seqs)

    patch.setattr(SelfDrafter, "start", start)


def _zero(seqs: Sequences) -> None:
    for layer in seqs.cache.layers:
        for x in seqs.cache.read(layer, 0):
            x[:, 2:20] = 0


def zeroed_prompt(mp: MonkeyPatch) -> None:
    """The drafter zeroes slots of the prompt."""
    _at_start(mp, _zero)


def turned_prompt(mp: MonkeyPatch) -> None:
    """The drafter turns the values of every key one place on: none is lost, and their sum stays
    what it was.
    """

    def turn(seqs: Sequences) -> None:
        for layer in seqs.cache.layers:
            k, _ = seqs.cache.read(layer, 0)
            k.copy_(k.roll(1, -1))

    _at_start(mp, turn)


def zeroed_once(mp: MonkeyPatch) -> None:
    """The first drafter that starts zeroes slots of the prompt: where methods are warmed up,
    nothing is wrong later.
    """
    count = iter(range(1 << 30))
    _at_start(mp, lambda seqs: _zero(seqs) if next(count) == 0 else None)


def other_seeds(mp: MonkeyPatch) -> None:
    """The drafter draws with other seeds, and so does the target after it."""
    _at_start(mp, lambda seqs: seqs.seed.add_(1000))


def other_sampler(mp: MonkeyPatch) -> None:
    """The drafter drafts greedily by setting the rows' own sampler."""
    _at_start(
        mp, lambda seqs: setattr(seqs, "sampler", Sampler(0.0 if seqs.sampler.temperature else 1.0))
    )


def other_ends(mp: MonkeyPatch) -> None:
    """The drafter has end tokens of its own and gives them to the rows."""
    _at_start(mp, lambda seqs: setattr(seqs, "eos", [tuple(range(0, 400, 2))] * len(seqs.eos)))


def other_tokens(mp: MonkeyPatch) -> None:
    """The drafter edits what was said: penalties count it."""
    _at_start(mp, lambda seqs: seqs.tokens[:, :-1].copy_(seqs.tokens[:, 1:].clone()))


def middle_stays(mp: MonkeyPatch) -> None:
    """What the middle level committed to the target's cache is not taken back."""
    good = Hierarchical.grow

    def grow(self, tree, seqs, limits):
        with MonkeyPatch.context() as inside:
            inside.setattr(KVCache, "rollback", lambda cache: nullcontext())
            return good(self, tree, seqs, limits)

    mp.setattr(Hierarchical, "grow", grow)


def middle_keys_stay(mp: MonkeyPatch) -> None:
    """Accepted tokens keep the keys that the middle level computed, under its view, in place of the
    verification's.
    """
    grow = Hierarchical.grow
    update = Hierarchical.update

    def growing(self, tree, seqs, limits):
        drafted = grow(self, tree, seqs, limits)
        cache = seqs.cache
        ends = cache.length + drafted.last  # of the drafts, the deepest never ran
        self.old = [
            (x, slice(n, end), x[:, n:end].clone())
            for layer in cache.layers
            for b, (n, end) in enumerate(zip(cache.length.tolist(), ends.tolist(), strict=True))
            for x in cache.read(layer, b)
        ]
        return drafted

    def observing(self, seqs, tree, verdict, captured):
        for x, slots, old in getattr(self, "old", ()):
            x[:, slots] = old  # those of refused drafts are scratch again
        update(self, seqs, tree, verdict, captured)

    mp.setattr(Hierarchical, "grow", growing)
    mp.setattr(Hierarchical, "update", observing)


def late_end(mp: MonkeyPatch) -> None:
    """An end token is noticed only when it is the last of its step."""
    good = Sequences.commit

    def commit(self, verdict):
        eos = self.eos
        self.eos = [()] * len(self.eos)
        count = good(self, verdict)
        self.eos = eos
        self.done = self.done | torch.tensor(
            [t in e for t, e in zip(self.last.tolist(), eos, strict=True)]
        )
        return count

    mp.setattr(Sequences, "commit", commit)


def frozen_penalty(mp: MonkeyPatch) -> None:
    """Every node is penalized for what was said before the root, none for its own path."""
    good = Sampler._penalized

    def penalized(self, logits, tree, rows, start):
        alone = torch.eye(tree.size, dtype=torch.bool).expand_as(tree.mask).clone()
        alone[:, :, 1:] = False
        alone[:, :, 0] = True
        return good(
            self, logits, replace(tree, depth=torch.zeros_like(tree.depth), mask=alone), rows, start
        )

    mp.setattr(Sampler, "_penalized", penalized)


# Randomness ---------------------------------------------------------------------------------------


def _noise(patch: MonkeyPatch, fault) -> None:
    """Everything that is drawn is drawn by other uniform numbers."""
    patch.setattr("longdraft.ops.noise.uniform", fault)
    patch.setattr("longdraft.ops.native.library", lambda: None)


def noise_by_place(mp: MonkeyPatch) -> None:
    """Noise depends on the place in the tensor, as a generator's does: one seed for the batch,
    drawn in order.
    """
    _noise(mp, lambda s, p, t: _generator(s, (*p.shape, t)))


def _generator(seed, shape):
    return torch.rand(
        shape, generator=torch.Generator().manual_seed(int(seed[0])), dtype=torch.float64
    )


def noise_without_position(mp: MonkeyPatch) -> None:
    """The same noise at every position of a row."""
    _noise(mp, lambda s, p, t: uniform(s, torch.zeros_like(p), t))


def noise_additive(mp: MonkeyPatch) -> None:
    """Seed and position enter by their sum alone: row b+1 says at p what row b says at p+1."""
    _noise(mp, lambda s, p, t: uniform(torch.zeros_like(s), s[:, None] + p, t))


# Drafts and views ---------------------------------------------------------------------------------


def beam_of_top(step, tree: Tree, widths, seqs: Sequences, limits) -> Tree:
    """Children are the top of q, not draws from it, and are tested by p/q all the same (LongSpec as
    released).
    """
    start = 0
    for width in widths[: limits.depth]:
        law = step(tree, start).softmax(-1)
        tree = tree.with_draft_probs(start, law)
        tokens = law.topk(max(1, width // law.shape[1]), -1).indices
        parent = torch.arange(start, start + law.shape[1])[:, None].expand_as(tokens)
        tree, start = (
            tree.grow(parent.reshape(len(law), -1), tokens.reshape(len(law), -1)),
            tree.size,
        )
    return tree


def beam_reusing_noise(step, tree: Tree, widths, seqs: Sequences, limits) -> Tree:
    """A refused draft's noise draws the next round's draft too, though what it said may have chosen
    that round's q.
    """
    start = 0
    for width in widths[: limits.depth]:
        logits = step(tree, start)
        tree = tree.with_draft_probs(start, logits.softmax(-1))
        tokens = (
            seqs.sampler.scores(logits, tree, seqs, start)
            .topk(max(1, width // logits.shape[1]), -1)
            .indices
        )
        parent = torch.arange(start, start + logits.shape[1])[:, None].expand_as(tokens)
        tree, start = (
            tree.grow(parent.reshape(len(tokens), -1), tokens.reshape(len(tokens), -1)),
            tree.size,
        )
    return tree


def noise_of_one_depth(mp: MonkeyPatch) -> None:
    """Every depth of a tree from marginals is drawn with the noise of the first one's position."""

    def scores(step, depth: int, tree: Tree, seqs: Sequences):
        return torch.cat([seqs.sampler.scores(step(tree, d), tree, seqs) for d in range(depth)], 1)

    mp.setattr(Sampler, "bare", False)
    mp.setattr("longdraft.drafters.marginals.along_the_best", scores)


def features_of_all_nodes(mp: MonkeyPatch) -> None:
    """A block's context takes the features of a tree's first nodes in place of the accepted
    ones.
    """
    good = DFlash.update

    def update(self, seqs, tree: Tree, verdict: Verdict, captured):
        first = torch.arange(verdict.path.shape[1]).expand_as(verdict.path)
        good(self, seqs, tree, replace(verdict, path=first), captured)

    mp.setattr(DFlash, "update", update)


def favored(mp: MonkeyPatch) -> None:
    """A pass that verifies drafts adds 0.2 to the logits of what was drafted: it is chosen in that
    very pass.
    """
    good = LM.__call__

    def call(self, tree, cache, start=0, view=None, captured=None, logits=0):
        out = good(self, tree, cache, start, view, captured, logits)
        if view is None and start == 0 and not logits:
            for b, parents in enumerate(tree.parent.tolist()):
                for node, above in enumerate(parents):
                    if above >= 0:
                        out[b, above, tree.tokens[b, node]] += 0.2
        return out

    mp.setattr(LM, "__call__", call)


def double_counting(mp: MonkeyPatch) -> None:
    """A view that shows its picks a second time: `since` lies below some of them."""
    good = LM.__call__

    def call(self, tree, cache, start=0, view=None, captured=None, logits=0):
        if isinstance(view, View):
            view = View(view.indices, (view.tail_start - 8).clamp(min=0), view.layers)
        return good(self, tree, cache, start, view, captured, logits)

    mp.setattr(LM, "__call__", call)


def refused_pairs_stay(mp: MonkeyPatch) -> None:
    """An MTP layer's ring takes the pairs of everything that was drafted, accepted or not."""
    good = Mtp.update

    def update(self, seqs, tree, verdict, captured):
        if tree.size > 1:
            pair = self.fed[:, None] - 1 + tree.depth[:, 1:]
            for ring in self.rings:
                ring.keep(slice(0, len(pair)), pair, torch.ones_like(pair, dtype=torch.bool))
        good(self, seqs, tree, verdict, captured)

    mp.setattr(Mtp, "update", update)


def lost_features(mp: MonkeyPatch) -> None:
    """The pair of an accepted token does not get the target's own feature."""
    good = Mtp._feed

    def feed(self, features, tokens, rows, count=None):
        if count is not None:
            features = torch.cat([features[:, :1], torch.zeros_like(features[:, 1:])], 1)
        good(self, features, tokens, rows, count)

    mp.setattr(Mtp, "_feed", feed)


def late_states(mp: MonkeyPatch) -> None:
    """The states that a prefill keeps for drafters are those of the tokens before."""
    good = LM.prefill

    def prefill(self, *args, **given):
        return {layer: x.roll(1, 1) for layer, x in good(self, *args, **given).items()}

    mp.setattr(LM, "prefill", prefill)


def swapped_sources(mp: MonkeyPatch) -> None:
    """A copied node counts as one of the drafter, and a drafted one as one of the text."""
    good = Growth.fill

    def fill(self, *args):
        copying = self.copying
        self.copying = self.drafting
        self.drafting = copying
        return good(self, *args)

    mp.setattr(Growth, "fill", fill)


def chances_stay(mp: MonkeyPatch) -> None:
    """What verification shows of a source never changes what is expected of it."""
    mp.setattr(Calibration, "add", lambda self, guess, accepted: None)


def right_is_certain(mp: MonkeyPatch) -> None:
    """A source that was right more often than expected multiplies what is expected of it."""

    def chance(self, guess):
        seen = self._together
        return min(guess.prior * (seen.accepted + 8) / (seen.expected + 8), 0.99)

    mp.setattr(Calibration, "chance", chance)


def not_caught_up(mp: MonkeyPatch) -> None:
    """A drafter that was idle is asked again without an update for what was copied."""
    good = Fill.update

    def update(self, *args):
        idle = self._step is not None and self._step.draft is None
        with MonkeyPatch.context() as missed:
            if idle:
                missed.setattr(self.now.drafter, "update", Drafter().update)
            good(self, *args)

    mp.setattr(Fill, "update", update)
