"""MTP: layers read from checkpoints of several families against a plain computation, the ring
against recomputation.
"""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import mtp_files, tiny
from support.checks import SEED
from support.mtp_files import FAMILIES, plain_layer, write
from support.mtp_ring import Watched, watch
from support.structure import close
from test_start import Spy
from transformers import AutoModelForCausalLM, MellumConfig
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from longdraft import InputError, Sampler, Stats, build, generate
from longdraft.core.tree import DraftLimits, Tree
from longdraft.core.verify import match
from longdraft.drafters import Mtp, PlainDecoding
from longdraft.drafters.adaptive.decision import CAPTURE_ONLY, PLAIN, Draft
from longdraft.drafters.adaptive.pace import Pace
from longdraft.drafters.mtp.block import random_mtp
from longdraft.drafters.mtp.checkpoint import read_mtp
from longdraft.drafters.mtp.kind import MTP
from longdraft.engine.generate import prefill, step
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.models.loading import load_lm, quiet

quiet(None)
# Before MTP layers were part of Mellum's configuration, Transformers' own MTP failed on checkpoints
# like these.
COMPLETE = hasattr(MellumConfig(), "mtp_layer_types")
needs_mtp = pytest.mark.skipif(
    not COMPLETE, reason="this version of Transformers does not have all of its MTP layers"
)
CASES = [(family, 1) for family in FAMILIES if COMPLETE or family != "mellum"] + [
    ("deepseek_v3", 2),
    ("mimo_v2_flash", 3),
]
each_case = pytest.mark.parametrize(("family", "count"), CASES)


@torch.inference_mode()
def plain_draft(
    made, family, stock, text: list[int], depth: int
) -> tuple[list[int], list[torch.Tensor]]:
    """A greedy chain after the text and the logits of each level; every level computed from the
    text's start.
    """
    raw = []
    with stock.model.norm.register_forward_pre_hook(lambda module, args: raw.append(args[0])):
        states = stock.model(torch.tensor([text])).last_hidden_state  # after the final norm
    features = (raw[0] if FAMILIES[family].raw else states)[0, :-1]
    tokens = torch.tensor(text[1:])
    layers = len(made.joints)
    drafted = tokens[:0]
    found = []
    outputs = features
    for level in range(depth):
        if 0 < level < layers:  # a layer of its own, one token further on
            features = outputs
            tokens = torch.cat([tokens[1:], drafted[-1:]])
        elif level:  # the last layer again, on its own latest output
            features = torch.cat([features, outputs[-1:]])
            tokens = torch.cat([tokens, drafted[-1:]])
        outputs = plain_layer(made, family, min(level, layers - 1), features, tokens)
        found.append(stock.lm_head(outputs[-1]))
        drafted = torch.cat([drafted, found[-1].argmax()[None]])
    return drafted.tolist(), found


@pytest.mark.full
@each_case
def test_drafts_are_those_of_a_plain_computation(tmp_path, family, count):
    """The family's own names are found, and each level is what its layers say without a cache."""
    made = write(tmp_path / "model", family, count)
    lm = load_lm(str(made.folder), "float32")
    stock = AutoModelForCausalLM.from_pretrained(made.folder, attn_implementation="eager")
    seen = []

    class Compared(Mtp):
        def grow(self, tree, seqs, limits):
            tree = super().grow(tree, seqs, limits)
            if limits.depth >= 4 and len(seen) < 3:
                text = seqs.tokens[0, : int(seqs.length[0])].tolist()
                want, logits = plain_draft(made, family, stock, text, 4)
                if not self.compiled:  # a chain in one call leaves no logits
                    close(self.module.scores(self._below)[0, -1], logits[-1], 1e-4)
                assert tree.tokens[0, 1:].tolist() == want
                seen.append(want)
            return tree

    module = read_mtp(lm)
    assert len(module) == count
    drafter = Compared(module, [1] * 4)
    plain = generate(lm, tiny.prompts(20), max_new_tokens=12)
    for compiled in [drafter.compiled, []] if drafter.compiled else [[]]:
        drafter.compiled = compiled
        seen.clear()
        assert (
            generate(lm, tiny.prompts(20), drafter, max_new_tokens=12) == plain and len(seen) == 3
        )


@needs_mtp
@torch.inference_mode()
@pytest.mark.parametrize(("family", "count"), [("deepseek_v3", 2), ("glm4_moe", 1), ("mellum", 1)])
def test_the_first_drafts_are_those_of_transformers(tmp_path, monkeypatch, family, count):
    """Transformers' own MTP, which uses each layer once, says the same logits."""
    made = write(tmp_path / "model", family, count)
    text = tiny.prompts(15)[0]
    lm = load_lm(str(made.folder), "float32")
    stock = AutoModelForCausalLM.from_pretrained(made.folder, attn_implementation="eager")
    if family != "mellum":  # it looks for the layers of the released sizes only
        names = [rf"model\.layers\.{mtp_files.BODY + i}\..*" for i in range(count)]
        monkeypatch.setattr(stock, "_keys_to_ignore_on_load_unexpected", names)
    theirs = MtpModel.from_pretrained(stock).eval()
    ids = torch.tensor([text])
    states = stock.model(ids).last_hidden_state[:, :-1]
    cache = MtpCache(config=stock.config.get_mtp_config())
    place = torch.arange(1, len(text))[None]
    drafted, logits, _ = theirs(ids[:, 1:], states, None, place, cache)
    drafter = Mtp(read_mtp(lm), [1] * count)
    seqs = prefill(lm, [text], 8, Sampler(), SEED)
    drafter.start(seqs)
    tree = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
    assert tree.tokens[0, 1:].tolist() == drafted[0].tolist()
    close(drafter.module.scores(drafter._below)[0, -1], logits[0, -1], 1e-4)


# The ring -----------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("model", ["llama", "llama-torch"])
@pytest.mark.parametrize(
    ("layers", "sink", "window"), [(1, 3, 12), (1, 0, 5), (1, 9, 1), (2, 2, 40), (3, 0, 64)]
)
def test_the_ring_is_recomputation_from_scratch(layers, sink, window, model):
    drafter, stats = watch(layers, sink=sink, window=window, model=model)
    assert sum(stats.accepted) > 3 and drafter.checked > 20 * layers


def test_steps_that_were_left_out_are_caught_up(monkeypatch):
    """Also where more were missed than the window has room for: what was left out is not seen."""
    missed = [PLAIN] * 8
    decisions = cycle([*missed, CAPTURE_ONLY, Draft(2), Draft(1, 1), PLAIN, Draft(3, 2)])
    monkeypatch.setattr(Pace, "decide", lambda self, captured: next(decisions))
    drafter, _ = watch(window=5, adaptive=True)
    assert drafter.checked > 3 and int(drafter.since.max()) > 0


@torch.inference_mode()
def test_neither_memory_nor_reads_grow_with_the_text():
    lm = tiny.target("llama")
    sizes = []
    read = []
    for n in (40, 400):
        drafter = Watched(random_mtp(lm, 0), [1, 1], 4, 16)
        generate(lm, tiny.prompts(n), drafter, max_new_tokens=6)
        sizes.append(drafter.slots)
        read.append(
            drafter.rings[0]
            .over(slice(0, 1), drafter.fed[:, None], torch.ones(1, 1, 1))
            .held.shape[-1]
        )
    assert sizes[0] == sizes[1] and read == [20, 20]


@torch.inference_mode()
def test_only_the_ends_of_a_prompt_are_read_again_and_only_for_a_draft():
    lm = Spy(tiny.stock("llama"))
    drafter = Mtp(random_mtp(lm, 0), [1, 1], 4, 16)
    seqs = prefill(lm, tiny.prompts(200), 300, Sampler(), SEED)
    lm.passes.clear()
    drafter.start(seqs)
    step(lm, drafter, seqs, match, Stats(), draft=False)
    assert lm.read == 0
    drafter.ready(seqs)
    assert lm.read == 4 + 16
    for _ in range(50):
        step(lm, PlainDecoding(), seqs, match, Stats())
    lm.passes.clear()
    drafter.ready(seqs)
    assert lm.read == 16


# Finding the layers -------------------------------------------------------------------------------


def edited(folder, change) -> str:
    """The one line that reading gives after a change of the checkpoint's tensors."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    lm = load_lm(str(folder), "float32")
    change(weights)
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(InputError) as caught:
        build("mtp", lm)
    assert "\n" not in str(caught.value)
    return str(caught.value)


NAME = f"model.layers.{mtp_files.BODY}."
CHANGES = {
    "lacks model.layers.3.enorm.weight": lambda w: w.pop(NAME + "enorm.weight"),
    "lacks model.layers.3.mlp.experts.2.up_proj.weight": lambda w: w.pop(
        NAME + "mlp.experts.2.up_proj.weight"
    ),
    "eh_proj.weight is [64, 64], and must be [64, 128]": lambda w: w.update(
        {NAME + "eh_proj.weight": torch.zeros(64, 64)}
    ),
    "is stored as float8_e4m3fn": lambda w: w.update(
        {NAME + "eh_proj.weight": torch.zeros(64, 128).to(torch.float8_e4m3fn)}
    ),
    "has no model.layers.3.gate.weight": lambda w: w.update({NAME + "gate.weight": torch.zeros(1)}),
    "no multi-token-prediction layers": lambda w: w.pop(NAME + "eh_proj.weight"),
}


@pytest.mark.parametrize("words", CHANGES)
def test_a_checkpoint_without_whole_layers_is_one_line(tmp_path, words):
    write(tmp_path / "model", "glm4_moe")
    assert words in edited(tmp_path / "model", CHANGES[words])


def test_a_target_without_a_folder_is_one_line():
    with pytest.raises(InputError, match="give a folder"):
        build("mtp", tiny.target("llama"))


def test_the_method_finds_the_layers_by_itself(tmp_path):
    """As `longdraft generate -m FOLDER --method mtp` does, also in bfloat16; saved layers are used
    before them.
    """
    made = write(tmp_path / "model", "deepseek_v3")
    lm = load_lm(str(made.folder))
    assert DrafterWeights(model=str(made.folder)).available(
        "mtp"
    ) and not DrafterWeights().available("mtp")
    found = DrafterWeights(model=str(made.folder)).of("mtp", lm)
    biases = [x for name, x in found.named_buffers() if "e_score_correction_bias" in name]
    assert {p.dtype for p in found.parameters()} == {torch.bfloat16} and [
        b.dtype for b in biases
    ] == [torch.float32]
    assert build("mtp", lm).module.options == found.options == MTP.options_of(found)
    other = random_mtp(lm, 3, 2)
    MTP.save(other, made.folder / "mtp", lm, {})
    beside = DrafterWeights(model=str(made.folder)).of("mtp", lm)
    assert len(beside) == 2 and torch.equal(
        beside.layers[1].fuse.weight, other.layers[1].fuse.weight
    )
