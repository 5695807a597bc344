"""EAGLE-2 and EAGLE-3: a layer on the target's states grows a dynamic tree."""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.core import (
    PAD,
    Captures,
    CaptureSpec,
    DraftLimits,
    KVCache,
    PromptSpec,
    Sequences,
    Tree,
    Verdict,
    without,
)
from longdraft.costs.passes import PassCosts
from longdraft.drafters.base import Drafter
from longdraft.drafters.block_costs import block_seconds
from longdraft.drafters.eagle.block import EagleBlock
from longdraft.drafters.rereading import reread_seconds
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import head_size, size_of

CANDIDATES = 4096  # nodes of a level-by-level tree, limited by the size of its mask
CHUNK = 128  # tokens that the target reads again in one pass


def chosen(tree: Tree, nodes: Tensor) -> Tree:
    """The subtree of the root and nodes [B,N], which are ascending and include their parents."""
    nodes = torch.cat([torch.zeros_like(nodes[:, :1]), nodes], 1)
    B, N = nodes.shape
    place = torch.full_like(tree.parent, PAD).scatter(1, nodes, torch.arange(N, device=nodes.device).expand(B, N))
    parent = tree.parent.gather(1, nodes)
    parent = torch.where(parent >= 0, place.gather(1, parent.clamp(min=0)), parent)
    mask = tree.mask.gather(1, nodes[..., None].expand(-1, -1, tree.size)).gather(2, nodes[:, None].expand(-1, N, -1))
    return Tree(tree.tokens.gather(1, nodes), parent, tree.depth.gather(1, nodes), mask)


class Eagle(Drafter):
    """Before a draft, its cache holds one pair (feature of t, token t+1) per token in the target's cache, and all
    features are computed from the target's states.

    Each of `levels` levels adds the `topk` best children of the `topk` best nodes of the level above, and the best
    `nodes` of all candidates are verified (EAGLE-2 sec. 4). The prefill keeps the states of the prompt's last `reach`
    tokens. Where it did not, and after steps that were not passed to `update`, the target reads the missing tokens
    again before a draft, at most the last `reach`. A node's value is its cumulative log-probability (at a temperature,
    that of being sampled given the noise), so it never exceeds its parent's. Not for use inside a hierarchy, which
    verifies under a view.
    """

    name = "block"
    rough = True
    usual = (0.5, 0.4)

    def __init__(
        self, target: LM, block: EagleBlock, topk: int = 10, levels: int = 7, nodes: int = 60, reach: int = 512
    ):
        if block.known < topk:
            raise InputError(f"option topk is {topk}: give at most {block.known}, the number of tokens it can draft")
        if topk + levels * topk**2 > CANDIDATES:
            raise InputError(f"{topk} children of {topk} nodes a level, {levels} times: give a smaller topk or levels")
        self.target, self.block, self.reach = target, block, reach
        self.topk, self.levels, self.nodes = topk, levels, nodes
        self.max_depth = min(levels + 1, nodes - 1)
        self.layers, self.tokens = block.captured_layers(target.depth), block.tokens
        self._text: Tensor | None = None  # tokens [1,N] of the only row since `start`

    def captures(self) -> CaptureSpec:
        return CaptureSpec(hidden=tuple(sorted(set(self.layers))))

    def prompt_captures(self) -> PromptSpec:
        return PromptSpec(self.captures().hidden, self.reach)

    def _features(self, states: dict[int, Tensor]) -> Tensor:
        return self.block.feature(self.target, [states[n] for n in self.layers])

    def start(self, seqs: Sequences) -> None:
        shared, self._text = seqs.shared(self._text), seqs.tokens
        if not self._continue(seqs, shared):
            self._begin(seqs)
        for b in range(len(seqs.length)):
            self._take(seqs, b)

    def _continue(self, seqs: Sequences, shared: int) -> bool:
        """Keep the pairs within `reach` of the first `shared` tokens of the text before; False if there are none."""
        if shared < 2:
            return False
        first, n = int(self.first[0]), int(seqs.cache.length[0])
        low, end = max(first, n - self.reach), min(first + int(self.own.length[0]), shared - 1)
        if low >= end:
            return False
        k, v = (x[None, :, low - first : end - first].clone() for x in self.own.read(0, 0))
        self.own.write(0, k, v, [0])
        self.first[0], self.own.length[0] = low, end - low
        return True

    def _begin(self, seqs: Sequences) -> None:
        """No pairs yet."""
        B, cache = len(seqs.length), seqs.cache
        room = seqs.tokens.shape[1] - max(min(cache.length.tolist(), default=0) - self.reach, 0)
        self._whole = KVCache(seqs.capacity, room + self.topk * self.levels, cache.length.device)
        self.own = self._whole.first(B)
        self.first = (cache.length - self.reach).clamp(min=0)  # position of each row's first pair
        self.output = torch.zeros_like(self._embed(seqs.last))[:, None]  # of each row's last pair

    def enter(self, seqs: Sequences, row: int) -> None:
        self._whole.length[row], self._text = 0, None
        self.own = self._whole.first(row + 1)
        self.first = torch.cat([self.first, (seqs.cache.length[row:] - self.reach).clamp(min=0)])
        self.output = torch.cat([self.output, self.output.new_zeros(1, *self.output.shape[1:])])
        self._take(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        last, self._text = len(seqs.length), None
        if row != last:
            self._whole.move(last, row)
        self.own, self.first, self.output = self._whole.first(last), without(self.first, row), without(self.output, row)

    def ready(self, seqs: Sequences) -> None:
        """Compute missing pairs of rows that are not done."""
        lacking = (seqs.cache.length - self.first - self.own.length).masked_fill(seqs.done, 0)
        for b in lacking.nonzero()[:, 0].tolist():
            self._read(seqs, b)

    def _take(self, seqs: Sequences, b: int) -> None:
        """Compute the missing pairs of a row if its prefill has kept the states."""
        first, n = int(self.first[b] + self.own.length[b]), int(seqs.cache.length[b])
        if states := seqs.states_from(b, first):
            self._feed(self._features(states), seqs.tokens[b : b + 1, first + 1 : n + 1], slice(b, b + 1), [n - first])

    def _read(self, seqs: Sequences, b: int) -> None:
        """Run a row's committed tokens without pairs through the target again; its cache keeps its contents."""
        row, n = seqs.cache.row(b), int(seqs.cache.length[b])
        if n - int(self.first[b] + self.own.length[b]) > self.reach:  # older pairs are left out to bound the cost
            self.first[b], self.own.length[b] = n - self.reach, 0
        fed = n - int(self.first[b] + self.own.length[b])
        with row.reopen(fed):
            passes = self.target.extend_cache(seqs.tokens[b : b + 1, n - fed : n], row, self.captures(), CHUNK)
        features = torch.cat([self._features(captured.states) for captured in passes], 1)
        self._feed(features, seqs.tokens[b : b + 1, n - fed + 1 : n + 1], slice(b, b + 1), [fed])

    def _feed(self, features: Tensor, tokens: Tensor, rows: slice, count: list[int], chunk: int = 512) -> None:
        """Append the first `count` of the pairs features [B',A,d], tokens [B',A] to the cache of these rows."""
        own = self.own.row(rows.start) if rows.stop - rows.start == 1 else self.own
        taken = torch.tensor(count, device=tokens.device)
        for begin in range(0, tokens.shape[1], chunk):
            part, W = tokens[:, begin : begin + chunk], len(tokens[0, begin : begin + chunk])
            tree = Tree.chain(part)
            position = self._next[rows] + tree.depth
            out = self.block(features[:, begin : begin + W], self._embed(part), position, tree.mask, own, 0)
            real = (taken - begin).clamp(0, W)
            last = out.gather(1, (real - 1).clamp(min=0)[:, None, None].expand(-1, 1, out.shape[-1]))
            self.output[rows] = torch.where(real[:, None, None] > 0, last, self.output[rows])
            own.length += real

    @property
    def _next(self) -> Tensor:
        """[B,1] position of the next pair."""
        return (self.first + self.own.length)[:, None]

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.target.hf.get_input_embeddings()(tokens).to(self.block.o.weight.dtype)

    def most_nodes(self, depth: int, width: int) -> int:
        depth = min(depth, self.max_depth)
        return min(depth * min(width, self.topk) if width < self.topk else depth * self.topk**2, self.nodes - 1)

    def seconds(self, costs: PassCosts, seqs: Sequences, depth: int, width: int) -> float:
        """Without the layer's keys, which are few. EAGLE-2 also reads the target's output matrix."""
        weights = size_of(self.block) + (0 if hasattr(self.block, "head") else head_size(self.target))
        rows, topk, itemsize = len(seqs.length), min(self.topk, width), self.target.dtype.itemsize
        drawn = float(rows * topk * (self.target.vocab if self.tokens is None else len(self.tokens)))
        levels = [block_seconds(costs, rows, topk if d else 0, weights, itemsize, drawn=drawn) for d in (0, 1)]
        return levels[0] + (depth - 1) * levels[1] + costs.tree * self.most_nodes(depth, width)

    def ready_seconds(self, costs: PassCosts, seqs: Sequences) -> float:
        lacking = (seqs.cache.length - self.first - self.own.length).clamp(max=self.reach)
        return reread_seconds(costs, self.target, seqs, lacking.tolist(), CHUNK)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        features = self._features(captured.states)
        features = features.gather(1, verdict.path[..., None].expand(-1, -1, features.shape[-1]))
        count = seqs.cache.length - self.first - self.own.length  # new tokens of each row; 0 if it was done
        count = count.where(count <= verdict.count, 0)  # rows that missed steps or were never read are left to `ready`
        self._feed(features, verdict.emitted, slice(0, len(count)), count.tolist())

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if tree.size != 1:
            raise ValueError("this drafter can only grow from the root: put it first")
        depth = min(self.levels + 1, limits.depth)
        if depth < 1 or self.nodes < 2:
            return tree
        self.ready(seqs)
        B, device = len(tree.tokens), tree.tokens.device
        rows = torch.arange(B, device=device)[:, None]
        value = torch.zeros(B, 1, device=device)  # of every candidate
        run = torch.zeros(B, 0, dtype=torch.long, device=device)  # candidates that the layer has run, in order
        here, output = torch.zeros_like(tree.tokens), self.output
        outputs = output  # of the root's pair, then of the candidates in `run`
        topk = min(self.topk, limits.width)
        for level in range(depth):
            small, start = tree, 0
            if level:
                start, run = 1 + run.shape[1], torch.cat([run, here], 1)
                small = chosen(tree, run)
                token, position = small.tokens[:, start:], small.depth[:, start:] - 1 + self._next
                feature = outputs[rows, small.parent[:, start:]]
                mask = small.mask[:, start:, 1:]
                output = self.block(feature, self._embed(token), position, mask, self.own, start - 1)
                outputs = torch.cat([outputs, output], 1)
            chances, tokens = self._children(output, small, seqs, start, topk)
            new = (value.gather(1, here)[..., None] + chances).flatten(1)
            first, tree = tree.size, tree.grow(here.repeat_interleave(topk, 1), tokens.flatten(1))
            value = torch.cat([value, new], 1)
            best = new.topk(min(topk, new.shape[1]))
            here = first + best.indices.sort(-1).values
            if topk == self.topk and self._complete(value, best.values):
                break
        if topk < self.topk:  # a level may not be wider than the nodes that were run
            return chosen(tree, torch.cat([run, here], 1)[:, : self.nodes - 1])
        return self._best(tree, value)

    def _complete(self, value: Tensor, newest: Tensor) -> bool:
        """Whether no child of the newest level's best nodes can be chosen: none is worth more than its parent."""
        if value.shape[1] <= self.nodes:
            return False
        least = value[:, 1:].topk(self.nodes - 1).values[:, -1]
        return bool((newest[:, 0] < least).all())

    def _children(self, output: Tensor, tree: Tree, seqs: Sequences, start: int, topk: int) -> tuple[Tensor, Tensor]:
        """The best children of nodes [start, size): their log-probabilities and tokens [B,W,topk]."""
        if self.tokens is None or not seqs.sampler.bare:
            logits = self.block.scores(self.target, output)
            best = seqs.sampler.scores(logits, tree, seqs, start).log_softmax(-1).topk(topk, -1)
            return best.values, best.indices
        logits = self.block.known_scores(self.target, output)  # a vocabulary of the target's size takes longer
        scores = seqs.sampler.scores(logits, tree, seqs, start, tokens=self.tokens)
        best = scores.log_softmax(-1).topk(topk, -1)
        return best.values, self.tokens[best.indices]

    def _best(self, tree: Tree, value: Tensor) -> Tree:
        """The root and the best other nodes; a stable sort puts a parent before a child of equal value."""
        order = value[:, 1:].sort(stable=True, dim=1, descending=True).indices[:, : self.nodes - 1] + 1
        return chosen(tree, order.sort(1).values)
