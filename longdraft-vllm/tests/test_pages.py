"""Which pages a draft reads, and the tables that say so."""

from __future__ import annotations

import pytest
import torch
from longdraft_vllm.pages import Table, best_pages, kept, scores_of, sink_and_latest


@pytest.mark.parametrize(
    ("covered", "ratio", "least", "pages"),
    [(1000, 0.07, 256, 16), (1000, 0.5, 0, 32), (40, 0.1, 256, 2), (9, 1, 0, 0)],
)
def test_the_budget_is_rounded_up_to_pages(covered, ratio, least, pages):
    assert kept(covered, 16, ratio, least) == pages


def test_the_pages_with_the_most_score_are_kept():
    scores = torch.zeros(2, 70)
    scores[0, [5, 33]] = 1.0
    scores[1, [16, 17, 69]] = torch.tensor([0.3, 0.3, 9.0])  # slot 69 lies in no whole page
    assert best_pages(scores, 16, 2, 0, 0).tolist() == [[0, 2], [0, 1]]
    scores[0, 15] = 1.0
    assert best_pages(scores, 16, 1, 0, 0)[0].tolist() == [0]
    # page 1 passes on what page 0 keeps
    scores[0, 15] = 0
    scores[0, 31] = 1.0
    assert best_pages(scores, 16, 2, 8, 0.25)[0].tolist() == [0, 2]


def test_sink_and_latest():
    assert sink_and_latest(9, 4, 1).tolist() == [[0, 6, 7, 8]]
    assert sink_and_latest(9, 4, 0).tolist() == [[5, 6, 7, 8]]
    assert sink_and_latest(3, 3, 1).tolist() == [[0, 1, 2]]
    assert sink_and_latest(9, 2, 3).tolist() == [[0, 1]]


def test_scores_are_mean_attention_weights():
    g = torch.Generator().manual_seed(0)
    q = torch.randn(3, 4, 8, generator=g)
    k = torch.randn(2, 10, 8, generator=g)
    weights = [(q[t, h] @ k[h // 2].T * 0.3).softmax(-1) for t in range(3) for h in range(4)]
    assert torch.allclose(scores_of(q, k, 0.3), torch.stack(weights).mean(0), atol=1e-6)


def test_a_table_has_the_selected_pages_then_the_tail():
    """Slots of a row at true length n are the first `lengths(n)` of its table."""
    blocks = torch.tensor([[7, 3, 9, 4, 8, 5], [10, 11, 12, 13, 0, 0]], dtype=torch.int32)
    pages = torch.tensor([[0, 2], [1, 2]])
    table = Table(
        [
            (blocks[0], pages, 3, 21),
            (blocks[1], torch.zeros(1, 0, dtype=torch.long).expand(2, 0), 0, 14),
        ],
        4,
    )
    assert table.blocks.tolist() == [
        [[7, 9, 4, 8, 5], [10, 11, 12, 13, 0]],
        [[3, 9, 4, 8, 5], [10, 11, 12, 13, 0]],
    ]
    assert table.lengths([14, 9]) == [10, 9]


def test_a_table_lies_where_the_block_tables_do():
    blocks = torch.zeros(6, dtype=torch.int32, device="meta")
    pages = torch.zeros(1, 2, dtype=torch.long, device="meta")
    assert Table([(blocks, pages, 3, 21)], 4).blocks.device == blocks.device
