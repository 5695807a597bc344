"""Cross-entropy under a frozen head: loss and gradient of the plain formula, whether the head is a
matrix or more.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import tiny
from support.structure import close

from longdraft import InputError
from longdraft.training import losses
from longdraft.training.frozen import Frozen
from longdraft.training.rows import IGNORE


@pytest.mark.parametrize("way", ["matrix", "function"])
def test_loss_and_gradient_are_those_of_cross_entropy(way, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS", 40 * 16)  # several parts, the last one short
    g = torch.Generator().manual_seed(0)
    x = torch.randn(50, 8, generator=g, requires_grad=True)
    matrix = torch.randn(40, 8, generator=g)
    wanted = torch.randint(0, 40, (50,), generator=g)
    wanted[::7] = IGNORE
    want = F.cross_entropy(x @ matrix.T, wanted, ignore_index=IGNORE)
    right = torch.autograd.grad(3 * want, x)[0]
    by = (
        losses.by_matrix
        if way == "matrix"
        else lambda x, m, y: losses.by_function(x, lambda z: z @ m.T, y, 40)
    )
    found = by(x, matrix, wanted)
    close(found.detach(), want.detach(), 1e-5)
    close(torch.autograd.grad(3 * found, x)[0], right, 1e-5)
    assert not by(x, matrix, torch.full_like(wanted, IGNORE)).any()


@pytest.mark.parametrize("way", ["matrix", "function"])
def test_a_law_as_label_is_cross_entropy_with_it(way, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS", 40 * 16)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(50, 8, generator=g, requires_grad=True)
    matrix = torch.randn(40, 8, generator=g)
    theirs = torch.randn(50, 8, generator=g)
    want = F.cross_entropy(x @ matrix.T, (theirs @ matrix.T).softmax(-1))
    right = torch.autograd.grad(3 * want, x)[0]
    by = (
        losses.distribution_by_matrix
        if way == "matrix"
        else lambda x, m, y: losses.distribution_by_function(x, lambda z: z @ m.T, y, 40)
    )
    found = by(x, matrix, theirs)
    close(found.detach(), want.detach(), 1e-5)
    close(torch.autograd.grad(3 * found, x)[0], right, 1e-5)


def test_a_head_that_is_more_than_a_matrix_is_noticed():
    assert Frozen(tiny.target("llama")).matrix is not None
    assert Frozen(tiny.target("cohere2")).matrix is None  # scales its logits
    capped = Frozen(tiny.target("gemma2-softcap"))
    x = torch.randn(5, 64, requires_grad=True)
    wanted = torch.arange(5)
    close(
        capped.head_loss(x, wanted).detach(),
        F.cross_entropy(capped.lm.project(x), wanted).detach(),
        1e-5,
    )


def test_a_loss_over_some_tokens_is_that_of_their_rows():
    lm = tiny.target("llama")
    some = torch.tensor([2, 5, 11, 40])
    # 7 is not one of them
    x = torch.randn(6, 64, requires_grad=True)
    wanted = torch.tensor([5, 2, 7, 40, IGNORE, 11])
    rows = lm.hf.get_output_embeddings().weight[some]
    want = F.cross_entropy(
        x @ rows.T, torch.tensor([1, 0, IGNORE, 3, IGNORE, 2]), ignore_index=IGNORE
    )
    close(Frozen(lm).head_loss(x, wanted, some).detach(), want.detach(), 1e-5)
    law = F.cross_entropy(x @ rows.T, (x.detach().flip(0) @ rows.T).softmax(-1))
    close(Frozen(lm).distribution_loss(x, x.detach().flip(0), some).detach(), law.detach(), 1e-5)
    with pytest.raises(InputError, match="leave out vocab"):
        Frozen(tiny.target("cohere2")).head_loss(x, wanted, some)
