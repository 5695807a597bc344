"""vLLM's trained drafters read the first and the latest keys only, if the user gives a window."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import VOCAB
from engine import COUNT, Report, engine, mixed, run, serve
from longdraft_vllm.window import Window
from test_drafters import exported, random_drafter, target  # noqa: F401
from transformers import Glm4MoeConfig
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.utils import AttentionGroup

PAGE = 32
SMALL = {"drafter_window": 8, "drafter_sink": 4}
LARGE = {"drafter_window": 1024}


def common(lengths: list[int], queries: int, pages: int = 8) -> CommonAttentionMetadata:
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32) * queries
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        num_reqs=len(lengths),
        num_actual_tokens=queries * len(lengths),
        max_query_len=queries,
        max_seq_len=max(lengths),
        block_table_tensor=torch.arange(pages * len(lengths), dtype=torch.int32).view(
            len(lengths), -1
        ),
        slot_mapping=torch.zeros(queries * len(lengths), dtype=torch.long),
        seq_lens_cpu_upper_bound=torch.tensor(lengths, dtype=torch.int32),
    )


def read(shown: CommonAttentionMetadata, row: int, page: int, pages: int = 8) -> list[int]:
    """The positions in the text that a row's last query reads."""
    blocks = (shown.block_table_tensor[row] - row * pages).tolist()
    return [blocks[i // page] * page + i % page for i in range(int(shown.seq_lens[row]))]


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("size", [1, 8, 40])
def test_the_first_and_the_latest_are_read(queries, size):
    lengths = [3 + queries, 40, 100, 255]
    shown = Window(size, sink=4).shown(common(lengths, queries), PAGE)
    for row, length in enumerate(lengths):
        found = read(shown, row, PAGE)
        assert found == sorted(set(found)) and found[-1] == length - 1
        assert set(range(min(4, length))) <= set(found)
        assert set(range(max(length - queries - size, 0), length)) <= set(found)
        assert len(found) <= 4 + size + queries + 2 * PAGE
    assert shown.max_seq_len >= shown.seq_lens.max()
    assert (shown.seq_lens_cpu_upper_bound >= shown.seq_lens).all()


def test_no_sink_and_a_short_text():
    assert read(Window(1, 0).shown(common([100], 1), PAGE), 0, PAGE)[0] == 96
    whole = common([100, 3], 1)
    shown = Window(100, 4).shown(whole, PAGE)
    assert torch.equal(shown.block_table_tensor, whole.block_table_tensor)
    assert torch.equal(shown.seq_lens, whole.seq_lens)


@pytest.fixture
def passes(monkeypatch) -> dict[str, Any]:
    """The drafts of each step, and how many keys the drafter's passes read."""
    found: dict[str, Any] = {"drafts": [], "keys": 0}
    propose = SpecDecodeBaseProposer.propose
    build = AttentionGroup.build_metadata_for_drafting

    def proposing(self, *args, **given):
        drafts = propose(self, *args, **given)
        found["drafts"].append(drafts.tolist())
        return drafts

    def building(self, common_attn_metadata, draft_index):
        found["keys"] += int(common_attn_metadata.seq_lens.sum())
        return build(self, common_attn_metadata, draft_index)

    monkeypatch.setattr(SpecDecodeBaseProposer, "propose", proposing)
    monkeypatch.setattr(AttentionGroup, "build_metadata_for_drafting", building)
    return found


def speculate(
    model: str, spec: dict[str, Any], passes: dict[str, Any], options: Any = None, **given: Any
) -> Report:
    passes.update(drafts=[], keys=0)
    llm = engine(
        model,
        None,
        speculative_config=spec,
        additional_config={"longdraft": options or {}},
        **given,
    )
    try:
        return serve(llm, mixed(VOCAB, 256))
    finally:
        del llm
        gc.collect()


@pytest.fixture(scope="module")
def plain(target) -> Report:  # noqa: F811
    return run(target.name, None, mixed(VOCAB, 256))


def drafter(kind: str, target: Any, folder: Any) -> dict[str, Any]:  # noqa: F811
    """A drafter without a window of its own."""
    spec = exported(kind, random_drafter(kind, target), target, folder)
    path = Path(spec["model"]) / "config.json"
    config = json.loads(path.read_text())
    if kind == "dflash":
        layers = config["transformer_layer_config"]
        layers |= {
            "layer_types": ["full_attention"] * len(layers["layer_types"]),
            "use_sliding_window": False,
        }
        path.write_text(json.dumps(config))
    return spec


@pytest.mark.parametrize("kind", ["dflash", "eagle3"])
def test_a_window(tmp_path, target, plain, passes, kind):  # noqa: F811
    spec = drafter(kind, target, tmp_path)
    whole = speculate(target.name, spec, passes)
    drafts = passes["drafts"]
    keys = passes["keys"]
    large = speculate(target.name, spec, passes, LARGE)
    assert (passes["drafts"], passes["keys"]) == (drafts, keys)
    small = speculate(target.name, spec, passes, SMALL)
    assert passes["drafts"] != drafts and passes["keys"] < 0.7 * keys
    assert whole.outputs == large.outputs == small.outputs == plain.outputs
    assert small.drafted > 100 and small.accepted > 10
    packed = speculate(target.name, spec, passes, SMALL, num_gpu_blocks_override=11)
    assert packed.preempted > 0 and packed.outputs == plain.outputs


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory) -> str:
    """The shape of a tiny GLM-4.5 with one MTP layer, for which vLLM makes up the weights."""
    folder = tmp_path_factory.mktemp("glm")
    config = Glm4MoeConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        max_position_embeddings=1024,
        num_nextn_predict_layers=1,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    config.architectures = ["Glm4MoeForCausalLM"]
    config.save_pretrained(folder)
    return str(folder)


def test_a_window_for_mtp(with_mtp, passes):
    made_up = {"load_format": "dummy"}
    outputs = run(with_mtp, None, mixed(VOCAB, 256), **made_up).outputs
    spec = {"method": "mtp", "num_speculative_tokens": COUNT}
    whole = speculate(with_mtp, spec, passes, **made_up)
    drafts = passes["drafts"]
    keys = passes["keys"]
    large = speculate(with_mtp, spec, passes, LARGE, **made_up)
    assert (passes["drafts"], passes["keys"]) == (drafts, keys)
    small = speculate(with_mtp, spec, passes, SMALL, **made_up)
    assert passes["keys"] < 0.7 * keys and small.drafted > 100
    assert outputs == whole.outputs == large.outputs == small.outputs


def test_pages_in_the_wrong_place_are_caught(tmp_path, target, plain, passes, monkeypatch):  # noqa: F811
    """The planted fault: with a window of everything, each page is read in another one's place.
    Outputs stay.
    """
    spec = drafter("eagle3", target, tmp_path)
    speculate(target.name, spec, passes)
    drafts = passes["drafts"]
    shown = Window.shown

    def faulty(self, common, page):
        found = shown(self, common, page)
        return replace(found, block_table_tensor=found.block_table_tensor.roll(1, 1))

    monkeypatch.setattr(Window, "shown", faulty)
    assert speculate(target.name, spec, passes, LARGE).outputs == plain.outputs
    assert passes["drafts"] != drafts


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drafter_sink": 4}, "drafter_sink needs drafter_window"),
        ({"drafter_window": 0}, "drafter_window is 0: give a number of tokens, at least 1"),
        (
            {"drafter_window": 8, "drafter_sink": -1},
            "drafter_sink is -1: give a number of tokens, at least 0",
        ),
        ({"drafter_window": 8}, "drafter_window is for vLLM's methods eagle, eagle3, mtp, dflash"),
    ],
)
def test_wrong_options_are_refused(target, options, says):  # noqa: F811
    with pytest.raises(ValueError, match=says):
        engine(target.name, None, additional_config={"longdraft": options})


def test_a_drafter_that_has_a_window_is_refused(tmp_path, target):  # noqa: F811
    spec = exported("dflash", random_drafter("dflash", target), target, tmp_path)
    with pytest.raises(ValueError, match="read a part already"):
        engine(target.name, None, speculative_config=spec, additional_config={"longdraft": SMALL})
