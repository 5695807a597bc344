"""Compares a model's passes with Transformers' own forward."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from longdraft.backends.dense import lacks_interface
from longdraft.backends.features.experts import Experts
from longdraft.backends.features.scans.recurrent_layers import scans_in
from longdraft.core.tree import Tree
from longdraft.models.lm import LM

# of the largest logit: by how much passes in float32 and in other dtypes may differ
ROUNDING = 0.01
COARSE = 0.05

# Where experts are routed, rounding can give single tokens another expert.
TEXTS = 8
NOISE = 2.0**-7  # relative to an embedding's numbers: two steps of bfloat16 at most
DRAWS = 4
ODD = 0.125  # share of the tokens that may differ by more than this noise explains

# (model, text [T]) -> logits of the nodes [P,N,V]
Read = Callable[[LM, Tensor], Tensor]
# text [T] -> the texts [P,T] whose last tokens the nodes are
Paths = Callable[[Tensor], Tensor]


def disagreement(hf: Any, tokens: int) -> float | None:
    """The error of the logits of a text of this many tokens, if it is too large to be rounding.

    It is a share of the largest logit of Transformers' own.
    """
    limit = ROUNDING if hf.dtype == torch.float32 else COARSE
    for paths, read in _comparisons(hf):
        found = _errors(hf, _texts(hf, 1, tokens), paths, read, draws=0)[0]
        error = float(found.max())
        if error < limit:
            continue
        if hf.dtype == torch.float32 or Experts.of(hf) is None:
            return error
        if not _is_rounding(*_errors(hf, _texts(hf, TEXTS, tokens), paths, read, DRAWS)):
            return error
    return None


def _is_rounding(errors: Tensor, own: Tensor) -> bool:
    """Whether the errors of a mixture of experts are those of rounding.

    Most tokens must have the logits of a dense model's accuracy. Others have another expert, or
    attend to a token that has: nearly all of them must be such that Transformers' own logits move,
    too, when the embeddings move by rounding. own: by how much these move.
    """
    beyond = ~(errors < COARSE + 2 * own)  # true for NaN
    return bool(errors.median() < COARSE) and float(beyond.float().mean()) <= ODD


def _comparisons(hf: Any) -> list[tuple[Paths, Read]]:
    """Chains see windows and borders; branches see whether nodes are kept apart."""
    chain = (_as_it_is, _read_chain)
    branches = (_branches, _read_branches)
    if scans_in(hf):
        return [chain, branches]
    return [branches if lacks_interface(hf) else chain]


def _texts(hf: Any, count: int, tokens: int) -> list[Tensor]:
    """Texts of different tokens."""
    vocab = hf.config.get_text_config().vocab_size
    steps = torch.arange(tokens, device=hf.device)
    return [(3 + 7 * i + (1 + i) * steps) % vocab for i in range(count)]


def _errors(
    hf: Any, texts: list[Tensor], paths: Paths, read: Read, draws: int
) -> tuple[Tensor, Tensor]:
    """The errors of all nodes of all texts, and by how much noise changes Transformers' logits."""
    every = torch.cat([paths(text) for text in texts])
    if not lacks_interface(hf):
        hf.set_attn_implementation("eager")
    whole = _stock(hf, every, paths)
    noisy = list[Tensor]()
    for draw in range(draws):
        with _noise(hf, draw):
            noisy.append(difference(_stock(hf, every, paths), whole))
    lm = LM(hf)
    ours = torch.cat([read(lm, text) for text in texts])
    count = ours.shape[1]
    errors = difference(ours, whole[:, -count:])
    own = [moved[:, -count:] for moved in noisy]
    return errors.flatten(), torch.stack([torch.zeros_like(errors), *own]).amax(0).flatten()


def _stock(hf: Any, every: Tensor, paths: Paths) -> Tensor:
    mask = None if paths is _as_it_is else torch.ones_like(every)
    return hf(input_ids=every, attention_mask=mask, use_cache=False).logits


@contextmanager
def _noise(hf: Any, seed: int) -> Generator[None]:
    """Move every number of the embeddings by NOISE, up or down."""
    source = torch.Generator().manual_seed(seed)

    def moved(module: Any, given: Any, out: Tensor) -> Tensor:
        signs = torch.randint(0, 2, out.shape, generator=source).to(out.device) * 2 - 1
        return (out * (1 + NOISE * signs)).to(out.dtype)

    hook = hf.get_input_embeddings().register_forward_hook(moved)
    try:
        yield
    finally:
        hook.remove()


def _as_it_is(text: Tensor) -> Tensor:
    return text[None]


def _read_chain(lm: LM, text: Tensor) -> Tensor:
    """The second half of a text, read behind the first."""
    half = len(text) // 2
    cache = lm.new_cache(1, len(text))
    lm.prefill(text[:half].tolist(), cache)
    return lm(Tree.chain(text[None, half:]), cache)


def _branches(text: Tensor) -> Tensor:
    """Two texts, of which the last two tokens differ."""
    return torch.stack([text, torch.cat([text[:-2], text[:2]])])


def _read_branches(lm: LM, text: Tensor) -> Tensor:
    """The last three tokens of both, as a tree of two branches."""
    paths = _branches(text)
    cache = lm.new_cache(1, len(text) + 2)
    lm.prefill(text[:-3].tolist(), cache)
    root = Tree.root(text[-3:-2])
    tree = root.add_paths(torch.zeros_like(paths[None, :, 0]), paths[None, :, -2:])
    nodes = torch.tensor([[0, 1, 3], [0, 2, 4]], device=text.device)
    return lm(tree, cache)[0][nodes]


def difference(ours: Tensor, stock: Tensor) -> Tensor:
    """[P,N]: each node's largest difference, as a share of the largest of Transformers' logits."""
    moved = (ours.float() - stock.float()).abs().amax(-1)
    return moved / stock.float().abs().max()
