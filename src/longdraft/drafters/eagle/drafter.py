"""EAGLE-2 and EAGLE-3: a layer on the target's states grows a dynamic tree."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from longdraft.core import (
    PAD,
    Captures,
    CaptureSpec,
    DraftLimits,
    PromptSpec,
    Sequences,
    Tree,
    Verdict,
)
from longdraft.costs.passes import Pass
from longdraft.drafters.base import Drafter
from longdraft.drafters.block_costs import Read
from longdraft.drafters.eagle.block import EagleBlock
from longdraft.drafters.eagle.pairs import Pairs, PairSpan
from longdraft.drafters.eagle.price import EaglePrice
from longdraft.drafters.rereading import States, kept_states, read_again, reread
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import head_size, size_of

CANDIDATES = 4096  # nodes of a level-by-level tree, limited by the size of its mask


def chosen(tree: Tree, nodes: Tensor) -> Tree:
    """The subtree of the root and nodes [B,N], which are ascending and include their parents."""
    nodes = torch.cat([torch.zeros_like(nodes[:, :1]), nodes], 1)
    B, N = nodes.shape
    place = torch.full_like(tree.parent, PAD).scatter(
        1, nodes, torch.arange(N, device=nodes.device).expand(B, N)
    )
    parent = tree.parent.gather(1, nodes)
    parent = torch.where(parent >= 0, place.gather(1, parent.clamp(min=0)), parent)
    mask = tree.mask.gather(1, nodes[..., None].expand(-1, -1, tree.size)).gather(
        2, nodes[:, None].expand(-1, N, -1)
    )
    return Tree(tree.tokens.gather(1, nodes), parent, tree.depth.gather(1, nodes), mask)


class Eagle(Drafter):
    """Before a draft, `pairs` has one pair (feature of t, token t+1) per token in the target's
    cache from its first one on, except those that recurrent layers could not take back, and all
    features are computed from the target's states.

    Each of `levels` levels adds the `topk` best children of the `topk` best nodes of the level
    above, and the best `nodes` of all candidates are verified (EAGLE-2 sec. 4). reach, window,
    sink: see Span. The prefill keeps the states of the prompt's last `reach` tokens. Where it did
    not, and after steps that were not passed to `update`, the target reads the missing tokens again
    before a draft, at most as many as Span.most. A node's value is its cumulative log-probability
    (at a temperature, that of being sampled given the noise), so it never exceeds its parent's. Not
    for use inside a hierarchy, which verifies under a view.
    """

    name = "block"
    usual: tuple[float, float] = (0.5, 0.4)

    def __init__(
        self,
        target: LM,
        block: EagleBlock,
        topk: int = 10,
        levels: int = 7,
        nodes: int = 60,
        reach: int = 512,
        window: int = 0,
        sink: int = 0,
    ):
        if block.known < topk:
            raise InputError(
                f"option topk is {topk}: give at most {block.known}, the number of tokens "
                "it can draft"
            )
        if topk + levels * topk**2 > CANDIDATES:
            raise InputError(
                f"{topk} children of {topk} nodes a level, {levels} times: give a smaller "
                "topk or levels"
            )
        self.target = target
        self.block = block
        self.span = PairSpan(reach, window, sink)
        self.topk = topk
        self.levels = levels
        self.nodes = nodes
        self.max_depth = min(levels + 1, nodes - 1)
        self.is_chain = topk == 1
        self.layers = block.captured_layers(target.depth)
        self.tokens = block.tokens
        self.compiled = target.backend.compile_layers(block.compilable())
        self.pairs = Pairs(target, block, self.compiled, self.span)
        self._text: Tensor | None = None  # tokens [1,N] of the only row since `start`

    def captures(self) -> CaptureSpec:
        return CaptureSpec(hidden=tuple(sorted(set(self.layers))))

    def prompt_captures(self) -> PromptSpec:
        return PromptSpec(self.captures().hidden, self.span.reach)

    def _features(self, states: States) -> Tensor:
        return self.pairs.features([states[n] for n in self.layers])

    def start(self, seqs: Sequences) -> None:
        shared = seqs.shared(self._text)
        self._text = seqs.tokens
        if shared < 2 or not self.pairs.keep(shared - 1, int(seqs.cache.length[0])):
            self.pairs.begin(seqs, self.topk * self.levels)
        for b in range(len(seqs.length)):
            self._take(seqs, b)

    def enter(self, seqs: Sequences, row: int) -> None:
        self._text = None
        self.pairs.enter(row)
        self._take(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        self._text = None
        self.pairs.leave(row)

    def ready(self, seqs: Sequences) -> None:
        """Compute missing pairs of rows that are not done."""
        lacking = (seqs.cache.length - self.pairs.next).masked_fill(seqs.done, 0)
        for b in lacking.nonzero()[:, 0].tolist():
            self._read(seqs, b)

    def _take(self, seqs: Sequences, b: int) -> None:
        """Compute the missing pairs of a row if its prefill has kept the states; `ready` reads what
        it has not.
        """
        begun = int(self.pairs.next[b])
        n = int(seqs.cache.length[b])
        first = begun or self.span.first(n)
        begin, states = kept_states(seqs, b, first)
        if states:
            begin = begin if begun else max(begin, first + self._begin(seqs, b, first))
            self._feed_row(
                seqs, b, begin, {layer: x[:, begin - n :] for layer, x in states.items()}
            )

    def _begin(self, seqs: Sequences, b: int, first: int) -> int:
        """Start a row at pair `first`; the sinks take the place of the pairs after it -> how many
        sinks there are.
        """
        sinks = self.pairs.skip(b, first)
        row = slice(b, b + 1)
        if sinks:  # the first tokens attend to nothing else: a small cache suffices
            tokens = seqs.tokens[row]
            cache = self.target.new_cache(1, sinks)
            [captured] = self.target.extend_cache(tokens[:, :sinks], cache, self.captures(), sinks)
            self.pairs.feed(
                self._features(captured.states), tokens[:, 1 : sinks + 1], row, [sinks], at=0
            )
        return sinks

    def _read(self, seqs: Sequences, b: int) -> None:
        """Run a row's committed tokens without pairs through the target again; its cache keeps its
        contents.
        """
        n = int(seqs.cache.length[b])
        first = int(self.pairs.next[b])
        if n - first > self.span.most:  # older pairs are left out to bound the cost
            first = n - self.span.most
            first += self._begin(seqs, b, first)
        self._feed_row(seqs, b, *read_again(self.target, seqs, b, first, self.captures()))

    def _feed_row(self, seqs: Sequences, b: int, first: int, states: States) -> None:
        """Append a row's pairs from `first` on, which have these states; missing ones before them
        are left out.
        """
        n = int(seqs.cache.length[b])
        row = slice(b, b + 1)
        self.pairs.leave_out(b, first)
        if first < n:
            self.pairs.feed(
                self._features(states), seqs.tokens[row, first + 1 : n + 1], row, [n - first]
            )

    def price(self) -> EaglePrice:
        block = self.block
        itemsize = self.target.dtype.itemsize
        head = getattr(block, "head", None)
        own = 0.0
        shared = 0.0
        if head is None:  # EAGLE-2 reads the target's output matrix
            shared = float(head_size(self.target))
        else:
            own = float(head.weight.nbytes)
        size = float(size_of(block))
        return EaglePrice(
            max_depth=self.max_depth,
            usual=self.usual,
            layer=Read(size - own, 0.0, itemsize),
            head=Read(own, shared, itemsize),
            both=Read(size, shared, itemsize),
            slot=2 * block.kv * block.dim * block.o.weight.dtype.itemsize,
            reach=self.span.reach,
            most=self.span.most,
            known=block.known,
            topk=self.topk,
            most_nodes=self.nodes,
            compiled=self.compiled is not None,
        )

    def to_read(self, seqs: Sequences) -> list[Pass]:
        firsts = torch.maximum(self.pairs.next, seqs.cache.length - self.span.most)
        return reread(self.target, seqs, firsts.tolist())

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        count = seqs.cache.length - self.pairs.next  # new tokens of each row; 0 if it was done
        # rows that missed steps or were never read are left to `ready`
        count = count.where(count <= verdict.count, 0)
        most = max(counts := count.tolist(), default=0)
        if most:
            path = verdict.path[:, :most, None]
            states = captured.states
            kept = {
                n: states[n].gather(1, path.expand(-1, -1, states[n].shape[-1]))
                for n in set(self.layers)
            }
            self.pairs.feed(
                self._features(kept), verdict.emitted[:, :most], slice(0, len(count)), counts
            )

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if tree.size != 1:
            raise ValueError("this drafter can only grow from the root: put it first")
        depth = min(self.levels + 1, limits.depth)
        if depth < 1 or self.nodes < 2:
            return tree
        self.ready(seqs)
        topk = min(self.topk, limits.width)
        return self._compiled(tree, seqs, depth, topk) or self._by_level(tree, seqs, depth, topk)

    def _compiled(self, tree: Tree, seqs: Sequences, depth: int, topk: int) -> Tree | None:
        """The whole draft in one call; None if it must be made level by level."""
        chain = topk == 1
        draws = None if self.compiled is None else seqs.sampler.chain(depth, seqs)
        if self.compiled is None or draws is None or not (chain or draws.recent is None):
            return None
        pairs = self.pairs
        roots = tree.tokens[:, 0]
        keys = pairs.keys(pairs.own, pairs.first, depth * topk)
        place = pairs.next
        if not chain:
            narrow = topk < self.topk  # a level may not be wider than the nodes that were run
            return self.compiled.grow(
                roots, pairs.output, place, keys, draws, topk, depth, self.nodes, narrow
            )
        draws = replace(draws, count=min(depth, self.nodes - 1))
        drawn = self.compiled.draft_chain(roots, pairs.output, place, keys, draws, None)
        return Tree.chain(torch.cat([tree.tokens, drawn], 1))

    def _by_level(self, tree: Tree, seqs: Sequences, depth: int, topk: int) -> Tree:
        B = len(tree.tokens)
        device = tree.tokens.device
        rows = torch.arange(B, device=device)[:, None]
        value = torch.zeros(B, 1, device=device)  # of every candidate
        # candidates that the layer has run, in order
        run = torch.zeros(B, 0, dtype=torch.long, device=device)
        here = torch.zeros_like(tree.tokens)
        output = self.pairs.output
        outputs = output  # of the root's pair, then of the candidates in `run`
        for level in range(depth):
            small = tree
            start = 0
            if level:
                start = 1 + run.shape[1]
                run = torch.cat([run, here], 1)
                small = chosen(tree, run)
                output = self.pairs.run(outputs[rows, small.parent[:, start:]], small, start)
                outputs = torch.cat([outputs, output], 1)
            chances, tokens = self._children(output, small, seqs, start, topk)
            new = (value.gather(1, here)[..., None] + chances).flatten(1)
            first = tree.size
            tree = tree.grow(here.repeat_interleave(topk, 1), tokens.flatten(1))
            value = torch.cat([value, new], 1)
            best = new.topk(min(topk, new.shape[1]))
            here = first + best.indices.sort(-1).values
            if topk == self.topk and self._complete(value, best.values):
                break
        if topk < self.topk:  # a level may not be wider than the nodes that were run
            return chosen(tree, torch.cat([run, here], 1)[:, : self.nodes - 1])
        return self._best(tree, value)

    def _complete(self, value: Tensor, newest: Tensor) -> bool:
        """Whether no child of the newest level's best nodes can be chosen: none is worth more than
        its parent.
        """
        if value.shape[1] <= self.nodes:
            return False
        least = value[:, 1:].topk(self.nodes - 1).values[:, -1]
        return bool((newest[:, 0] < least).all())

    def _children(
        self, output: Tensor, tree: Tree, seqs: Sequences, start: int, topk: int
    ) -> tuple[Tensor, Tensor]:
        """The best children of nodes [start, size): their log-probabilities and tokens
        [B,W,topk].
        """
        if self.tokens is None or not seqs.sampler.bare:
            logits = self.block.scores(self.target, output)
            best = seqs.sampler.scores(logits, tree, seqs, start).log_softmax(-1).topk(topk, -1)
            return best.values, best.indices
        # a vocabulary of the target's size takes longer
        logits = self.block.known_scores(self.target, output)
        scores = seqs.sampler.scores(logits, tree, seqs, start, tokens=self.tokens)
        best = scores.log_softmax(-1).topk(topk, -1)
        return best.values, self.tokens[best.indices]

    def _best(self, tree: Tree, value: Tensor) -> Tree:
        """The root and the best other nodes; a stable sort puts a parent before a child of equal
        value.
        """
        order = (
            value[:, 1:].sort(stable=True, dim=1, descending=True).indices[:, : self.nodes - 1] + 1
        )
        return chosen(tree, order.sort(1).values)
