"""EAGLE-3: the layer is trained on its own outputs, as it reads them when drafting (training-time
test, sec. 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from longdraft.core.options import Positive
from longdraft.drafters.eagle.block import Eagle3Block
from longdraft.models.lm import LM
from longdraft.training.data import Corpus
from longdraft.training.frozen import Frozen, Labels, matches
from longdraft.training.losses import by_function, draft_ids
from longdraft.training.rows import IGNORE

DECAY = 0.8  # weight of each depth relative to the previous one


@dataclass
class EagleObjective:
    """Depth 1 reads the target's states; depth i+1 reads depth i's output at the previous position,
    as in drafting.

    Pair t is the feature of token t with the embedding of token t+1; its output predicts token t+2.
    """

    frozen: Frozen
    module: Eagle3Block
    labels: str = "target"
    depth: int = 5

    def _outputs(self, tokens: Tensor) -> tuple[list[Tensor], Tensor]:
        """tokens [B,S+1] -> the outputs [B,S,d] of every depth, and the labels [B,S]: the token
        after token t+1.
        """
        layers = self.module.captured_layers(self.frozen.last)
        seen = self.frozen.read(tokens, states=sorted(set(layers)), predict=self.labels == "target")
        states = seen.states
        if self.labels == "target":
            wanted = seen.predicted[:, 1:]
        else:
            wanted = F.pad(tokens[:, 2:], (0, 1), value=IGNORE)
        feature = self.module.feature(self.frozen.lm, [states[n][:, :-1] for n in layers])
        token = self.frozen.lm.hf.get_input_embeddings()(tokens[:, 1:]).to(feature.dtype)
        position = torch.arange(feature.shape[1], device=tokens.device).expand(feature.shape[:2])
        outputs = []
        keys = []
        values = []
        for _ in range(self.depth):
            residual, x = self.module.mix(feature, token)
            q, k, v = self.module.heads(x, position)
            keys.append(k)
            values.append(v)
            attended = over_depths(q, keys, values).transpose(1, 2).flatten(2)
            outputs.append(self.module.finish(residual, attended))
            feature = F.pad(outputs[-1][:, :-1], (0, 0, 1, 0))
        return outputs, wanted

    def loss(self, tokens: Tensor, rng: np.random.Generator) -> Tensor:
        outputs, wanted = self._outputs(tokens)
        labels = draft_ids(wanted, self.module.tokens, self.frozen.lm.vocab)
        total = outputs[0].new_zeros((), dtype=torch.float32)
        for i, output in enumerate(outputs):
            some = by_function(
                output[:, i:].flatten(0, 1), self._head, labels[:, i:].flatten(), self.module.known
            )
            total = total + DECAY**i * some
        return total / sum(DECAY**i for i in range(self.depth))

    def _head(self, output: Tensor) -> Tensor:
        return self.module.head(self.module.norm_out(output))

    def shares(self, tokens: Tensor) -> list[float]:
        outputs, wanted = self._outputs(tokens)
        firsts = [self.module.tokens[self._head(output).argmax(-1)] for output in outputs]
        return [matches(first[:, i:], wanted[:, i:]) for i, first in enumerate(firsts)]


def over_depths(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """q [B,H,S,D] of the deepest; keys, values [B,K,S,D] of every depth -> [B,H,S,D].

    At depth n, counted from 1, pair t attends to pairs 0..t-n+1 of depth 1 and to pair t-n+i of
    each depth 1 < i <= n.
    """
    deep = len(keys)
    size = q.shape[2]
    groups = q.shape[1] // keys[0].shape[1]
    keys, values = ([x.repeat_interleave(groups, 1) for x in kv] for kv in (keys, values))
    if deep == 1:
        return F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)

    def earlier(x: Tensor, i: int) -> Tensor:
        """Depth i's pair t-n+i at position t."""
        return F.pad(x[:, :, : size - deep + i], (0, 0, deep - i, 0))

    own = range(2, deep + 1)
    behind = torch.arange(size, device=q.device)[:, None] - torch.arange(size, device=q.device)
    scores = [(q @ keys[0].mT).masked_fill(behind < deep - 1, float("-inf"))]
    scores += [(q * earlier(keys[i - 1], i)).sum(-1, keepdim=True) for i in own]
    weights = (torch.cat(scores, -1).float() * q.shape[-1] ** -0.5).softmax(-1).to(q.dtype)
    out = weights[..., :size] @ values[0]
    for i in own:
        out = out + weights[..., size + i - 2, None] * earlier(values[i - 1], i)
    return out


def layer_for(target: LM, corpus: Corpus, vocab: int) -> Eagle3Block:
    """A new layer whose head has the `vocab` most frequent tokens of the text, initialized with the
    target's rows.
    """
    block = Eagle3Block(target.layer_config, vocab)
    tokens = torch.from_numpy(corpus.frequent(block.known, target.vocab))
    block.d2t.copy_(tokens - torch.arange(block.known))
    with torch.no_grad():
        block.head.weight.copy_(target.hf.get_output_embeddings().weight[tokens].float())
    return block


def objective(
    frozen: Frozen,
    corpus: Corpus,
    labels: Labels = "target",
    depth: Positive = 5,
    vocab: Positive = 32000,
) -> EagleObjective:
    return EagleObjective(frozen, layer_for(frozen.lm, corpus, vocab), labels, depth)
