"""What guides heads for the first steps, and what is measured of a model in training."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from support import tiny

from longdraft.training import guide, observed, probes, rows, target, trainer


@pytest.mark.full
def test_guidance_moves_the_shown_heads_and_leaves_the_model_as_it_was():
    model = target.build(vocab=64, layers=3, hidden=32, heads=2, mlp=32, positions=64, seed=0)
    made = trainer.optimizers(model, 0.02, 0.01)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 64, (4, 12), generator=generator).repeat(1, 2)
    sources = torch.full_like(tokens, rows.IGNORE)
    sources[:, 13:] = torch.arange(1, 12)
    wanted = guide.wanted_positions(sources, 3)
    assert sorted(wanted) == [1, 2]
    assert (
        wanted[1][0, :4].tolist() == [rows.IGNORE, 0, 1, 2]
        and (tokens[:, wanted[2][0, 12]] == tokens[:, 13]).all()
    )
    alone = target.loss(model, tokens, tokens, False).item()
    history = []
    for _ in range(40):
        plain, extra = guide.guided(
            model, lambda: target.loss(model, tokens, tokens, False), sources
        )
        history.append((plain.item(), extra.item()))
        extra.backward()
        for optimizer in made:
            optimizer.step()
            optimizer.zero_grad()
    assert history[0][0] == pytest.approx(alone, rel=1e-5) and 1.5 < history[0][1] < 3.5
    assert history[-1][1] < 0.5 * history[0][1]
    assert model.config._attn_implementation == "sdpa" and not observed._observers


class Copier:
    """Expects the token `span` places back plus one, else anything: what induction heads do. Counts
    what it reads.
    """

    def __init__(self, vocab: int, span: int, sure: float):
        self.vocab = vocab
        self.span = span
        self.sure = sure
        self.read = []
        self.lm_head = lambda hidden: hidden

    def model(self, input_ids, use_cache):
        self.read.append(input_ids)
        logits = torch.zeros(*input_ids.shape, self.vocab)
        if self.span and input_ids.shape[1] >= self.span:
            said = input_ids[:, : input_ids.shape[1] - self.span + 1]
            logits[:, self.span - 1 :].scatter_(-1, said[..., None], self.sure)
        return SimpleNamespace(last_hidden_state=logits)


def test_induction_probe_tells_a_copier_from_a_guesser():
    assert probes.induction(Copier(100, 0, 0), 100, span=16) == pytest.approx(
        math.log(100), abs=1e-3
    )
    assert probes.induction(Copier(100, 16, 30.0), 100, span=16) < 0.01
    assert probes.induction(Copier(100, 15, 30.0), 100, span=16) > 10


def test_context_probe_reads_the_same_last_tokens_each_time():
    reader = Copier(1000, 0, 0)
    found = probes.by_context(reader, tiny.corpus(), "book", [16, 64], count=3, last=8)
    assert found["rows"] == 3 and list(found["by_context"]) == ["16", "64"]
    assert found["by_context"]["64"]["change"] == pytest.approx(0, abs=1e-5)
    short = reader.read[:3]
    long = reader.read[3:]
    assert all(s.shape == (1, 16) and b.shape == (1, 64) for s, b in zip(short, long, strict=True))
    assert all(torch.equal(s[0], b[0, -16:]) for s, b in zip(short, long, strict=True))
    assert probes.by_context(reader, tiny.corpus(), "book", [16, 4096]) == {}


def test_largest_logit_is_what_attention_sees():
    model = target.build(vocab=64, layers=1, hidden=16, heads=2, mlp=16, positions=64, seed=0)
    tokens = torch.arange(1, 13)[None]
    kept = {}
    attention = model.model.layers[0].self_attn
    attention.q_norm.register_forward_hook(lambda _m, _i, out: kept.update(q=out.transpose(1, 2)))
    attention.k_norm.register_forward_hook(lambda _m, _i, out: kept.update(k=out.transpose(1, 2)))
    with torch.no_grad():
        attention.q_norm.weight.mul_(20)
        found = probes.largest_logit(model, tokens)
        bound = (kept["q"].norm(dim=-1).amax() * kept["k"].norm(dim=-1).amax() / 8**0.5).item()
        attention.q_norm.weight.mul_(2)
        assert 0.3 * bound < found <= bound * 1.01
        assert probes.largest_logit(model, tokens) == pytest.approx(2 * found, rel=0.02)
    assert model.config._attn_implementation == "sdpa"
