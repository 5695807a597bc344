"""LongSpec's draft block: one layer that reads the target's KV cache (LongSpec sec. 3.1)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longdraft.core.draft_layers import DraftLayer, DraftLayers
from longdraft.core.tree import Tree
from longdraft.drafters.sizes import mlp_width
from longdraft.drafters.vocabulary import draft_logits, draft_vocabulary, known_tokens
from longdraft.errors import InputError
from longdraft.models.lm import LM

Rotation = tuple[Tensor, Tensor]  # cosines and sines of some positions
# q [B,H,W,D], k, v [B,K,W,D] of the nodes -> [B,W,H,D]
Own = Callable[[Tensor, Tensor, Tensor], Tensor]
Cross = Callable[[Tensor], Tensor]  # q [B,H,W,D] -> [B,W,H,Dv]


class Host:
    """The parts that a block shares with its target: embeddings, head, rotation, and the layer
    whose keys it reads.

    layer: of the target's layers with their own keys, the last with full attention, or the last if
    all have windows. keys, dim, value_dim: the number of its KV heads, and the width of a cached
    key and of a value. Raises InputError if no layer has keys, or if they are rotated in a way that
    cannot be repeated.
    """

    def __init__(self, target: LM):
        self.target = target
        own = set(target.architecture.with_keys) - set(target.sources)
        if not own:
            fault = "has no layers with keys, of which longspec reads one"
            raise InputError(f"{target.config.model_type} {fault}: use another method")
        self.layer = max(own - set(target.windows), default=max(own))
        self.window = target.windows.get(self.layer)
        module = sys.modules[type(target.hf).__module__]
        self._layout = target.architecture.layout
        self._rotary = self._layout.rotary
        self._apply: Any = getattr(module, "apply_rotary_pos_emb", None)
        by_type = (
            self._rotary is not None
            and "layer_type" in inspect.signature(self._rotary.forward).parameters
        )
        self._kind = (self._rotated_type(target.config.layer_types[self.layer]),) if by_type else ()
        # most models' function rotates queries and keys, some models' a single tensor
        self._alone = (
            self._apply is not None and list(inspect.signature(self._apply).parameters)[1] == "cos"
        )
        start, later = (self._key(position) for position in (0, 11))
        if not self.value_dim:
            kind = target.config.model_type
            raise InputError(
                f"{kind} caches latents, and longspec reads keys and values: use another method"
            )
        self.rotated = not bool(torch.allclose(start, later, rtol=0.01, atol=1e-6))
        if not self._rotates(start, later if self.rotated else start, 11 * self.rotated):
            kind = target.config.model_type
            raise InputError(
                f"{kind} rotates keys in a way that longspec does not support: use another method"
            )

    def _rotated_type(self, kind: str) -> str:
        """The type of layers whose rotation the block has: this one, or another if its layers do
        not rotate.
        """
        rotated = getattr(self._rotary, "rope_type", None)
        return kind if not isinstance(rotated, dict) or kind in rotated else next(iter(rotated))

    @torch.no_grad()
    def _key(self, position: int) -> Tensor:
        """[1,K,1,D] the layer's key of a token without context: it depends on the position only
        through rotation.
        """
        ones = torch.ones(1, 1, dtype=torch.long, device=self.target.device)
        cache = self.target.new_cache(1, 1)
        self.target(Tree(ones, -ones, ones * position, ones[..., None].bool()), cache)
        k, v = cache.read(self.layer, 0)
        self.keys = len(k) * self.target.team.size
        self.dim = k.shape[-1]
        self.value_dim = v.shape[-1]
        return k[None]

    def _rotates(self, start: Tensor, later: Tensor, position: int) -> bool:
        """Whether `rotate` maps the key at position 0 to the key at `position`, [1,K,1,D] each."""
        try:
            positions = torch.tensor([[0, position]], device=start.device)
            first, turned = self.rotate(start.repeat(1, 1, 2, 1), self.rotation(positions)).split(
                1, 2
            )
        except (
            AttributeError,
            RuntimeError,
            TypeError,
        ):  # the functions are missing, or take other shapes
            return False
        turned = turned * (start.norm() / first.norm())  # yarn also scales what it rotates
        return float((turned - later).norm()) < 0.05 * float(later.norm())

    def rotation(self, position: Tensor) -> Rotation:
        """position [B,W] -> the target's cosines and sines."""
        like = torch.empty(0, dtype=self.target.dtype, device=position.device)
        return self._layout.rotations(like, position.clamp(max=self.target.reach - 1), *self._kind)

    def rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        """x [B,H,W,D] -> x rotated as the target rotates its queries and keys."""
        return self._apply(x, *rotation) if self._alone else self._apply(x, x[:, :1], *rotation)[0]


class Glide(nn.Module):
    """One layer; embedding, head and rotation are the target's and are not in its state dict.

    z = c + SwiGLU(N3(c)),  c = s + Oc Cross(Qc N2(s)),  s = e + Os Self(Qs N1(e), Ks N1(e), Vs
    N1(e)),  e = E[token]. Self attends to a node's ancestors up to `window` positions back; Cross
    attends to the cached keys and values of one of the target's layers. The caller provides both:
    from a drafter's ring, or with a trainer's masks. Logits are G z, or G N(z) with_norm, where G
    is the target's output matrix and N its final norm. vocab: the number of tokens that it can
    draft (0: all).
    """

    def __init__(self, target: LM, window: int = 512, with_norm: bool = False, vocab: int = 0):
        super().__init__()
        host = Host(target)
        c = target.layer_config
        self.host = host
        self.window = window
        self.with_norm = with_norm
        self.vocabulary = draft_vocabulary(target, vocab)
        d = c.hidden_size
        mlp = mlp_width(c)
        eps = float(getattr(c, "rms_norm_eps", None) or 1e-6)
        self.eps = eps
        self.heads = c.num_attention_heads
        self.self_norm, self.cross_norm, self.mlp_norm = (nn.RMSNorm(d, eps) for _ in range(3))
        self.q_proj = nn.Linear(d, self.heads * host.dim)
        self.k_proj = nn.Linear(d, host.keys * host.dim)
        self.v_proj = nn.Linear(d, host.keys * host.dim)
        self.o_proj = nn.Linear(self.heads * host.dim, d, bias=False)
        self.cross_q_proj = nn.Linear(d, self.heads * host.dim)
        self.cross_o_proj = nn.Linear(self.heads * host.value_dim, d, bias=False)
        self.gate_proj, self.up_proj = (nn.Linear(d, mlp, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(mlp, d, bias=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.q_proj.weight.dtype

    def compilable(self) -> DraftLayers | None:
        """The block as backends see it: a layer over its ring, then one over the host's keys. None
        if these are not plain, rotated keys of all slots.
        """
        host = self.host
        if host.window is not None or not host.rotated or host.value_dim != host.dim:
            return None
        own = DraftLayer(
            q=self.q_proj, k=self.k_proj, v=self.v_proj, o=self.o_proj, input_norm=self.self_norm
        )
        cross = DraftLayer(
            q=self.cross_q_proj,
            o=self.cross_o_proj,
            gate=self.gate_proj,
            up=self.up_proj,
            down=self.down_proj,
            input_norm=self.cross_norm,
            mlp_norm=self.mlp_norm,
        )
        known = self.vocabulary
        return DraftLayers(
            [own, cross],
            heads=self.heads,
            key_heads=host.keys,
            dim=host.dim,
            mlp=self.gate_proj.out_features,
            eps=self.eps,
            starts="embedding",
            target_norm=self.with_norm,
            head=None if known is None else known.linear(host.target),
            tokens=known_tokens(known),
            ring=True,
            host=host.layer,
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [B,W] -> [B,W,d]."""
        return self.host.target.hf.get_input_embeddings()(tokens).to(self.dtype)

    def _split(self, x: Tensor) -> Tensor:
        """[B,W,heads*D] -> [B,heads,W,D]."""
        return x.unflatten(-1, (-1, self.host.dim)).transpose(1, 2)

    def queries(self, normed: Tensor, rotation: Rotation) -> Tensor:
        """N1(e) [B,W,d] -> self-attention's q [B,H,W,D]."""
        return self.host.rotate(self._split(self.q_proj(normed)), rotation)

    def keys(self, normed: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """N1(e) [B,W,d] -> self-attention's k, v [B,K,W,D]: functions of token and position
        only.
        """
        return self.host.rotate(self._split(self.k_proj(normed)), rotation), self._split(
            self.v_proj(normed)
        )

    def keys_of(self, tokens: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """tokens, position [B,W] -> k, v [B,K,W,D]."""
        return self.keys(self.self_norm(self.embed(tokens)), self.host.rotation(position))

    def hidden(self, tokens: Tensor, position: Tensor, own: Own, cross: Cross) -> Tensor:
        """tokens, position [B,W] -> z [B,W,d], the input of `head`."""
        x = self.embed(tokens)
        rotation = self.host.rotation(position)
        normed = self.self_norm(x)
        x = x + self.o_proj(
            own(self.queries(normed, rotation), *self.keys(normed, rotation)).flatten(2)
        )
        q = self._split(self.cross_q_proj(self.cross_norm(x)))
        q = self.host.rotate(q, rotation) if self.host.rotated else q
        x = x + self.cross_o_proj(cross(q).flatten(2))
        normed = self.mlp_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))

    def head(self, hidden: Tensor) -> Tensor:
        """[B,W,d] -> logits [B,W,V] of the target's output matrix, after its final norm if
        with_norm.
        """
        target = self.host.target
        return draft_logits(
            target, self.vocabulary, target.norm(hidden) if self.with_norm else hidden
        )

    def forward(self, tokens: Tensor, position: Tensor, own: Own, cross: Cross) -> Tensor:
        """tokens, position [B,W] -> logits [B,W,V]."""
        return self.head(self.hidden(tokens, position, own, cross))


def random_glide(target: LM, seed: int = 0, **options: Any) -> Glide:
    """An untrained block in the target's dtype and on its device; a function of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        block = Glide(target, **options)
    return block.to(target.device, target.dtype).eval()
