"""--weights: experts that lie in one tensor are packed too; both backends compute the same, and
drafts are lossless.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS, check_lossless
from support.listed import BUILD
from torch import Tensor
from transformers import AutoModelForCausalLM

from longdraft.backends import packed_experts
from longdraft.backends.native.step_pins import StepPins
from longdraft.backends.packed_experts import PackedExperts
from longdraft.backends.packed_linear import round_inputs
from longdraft.backends.quantize import bytes_saved, quantize
from longdraft.core.tree import Tree
from longdraft.models.export import export
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import weights_of
from longdraft.ops import native

# Of gpt-oss, matrices are transposed, and have biases; of Nemotron-H, experts have no gates.
NAMES = ("qwen3-moe", "gpt-oss", "nemotron-h")
NAMES = tuple(name for name in NAMES if name in tiny.CONFIGS)
# DBRX's lie in other tensors
PACKABLE = [name for name in tiny.EXPERTS if name != "dbrx"]
BITS = (8, 4)
NEEDS_KERNELS = pytest.mark.skipif(native.library() is None, reason="needs the kernels")


def experts_of(name: str) -> Any:
    """The experts of a model's last layer that has some."""
    return list(modules_of(name).values())[-1]


def modules_of(name: str) -> dict[str, Any]:
    """The modules of experts of a model."""
    return {n: m for n, m in tiny.stock(name).named_modules() if n.endswith(".experts")}


@torch.inference_mode()
def check_output(name: str, bits: int) -> None:
    """Packed experts compute what their own module does with their numbers, and nearly what it did
    with its own.
    """
    own = experts_of(name)
    packed = PackedExperts.of(own, bits)
    twin = deepcopy(own)
    for key, weights in packed.matrices(torch.float32).items():
        was = getattr(own, key)
        assert weights.shape == was.shape
        assert (weights - was).abs().max() < was.abs().max() * 1.2 / (1 << bits - 1)
        getattr(twin, key).copy_(weights)
    torch.manual_seed(0)
    hidden = torch.randn(6, 64)
    chosen = torch.rand(6, 4).argsort(1)[:, :2]
    shares = torch.rand(6, 2)
    found = packed(hidden, chosen, shares)
    torch.testing.assert_close(found, twin(hidden, chosen, shares), rtol=1e-4, atol=1e-4)
    if bits == 8:
        want = own(hidden, chosen, shares)
        assert (found - want).norm() < 0.05 * want.norm()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", BITS)
def test_packed_experts_compute_what_their_module_does(name, bits):
    check_output(name, bits)


def swapped(module, rows: Tensor, which: int) -> Tensor:
    """The fault: gates are taken for what is up."""
    return rows if which == 2 else rows[1 - which :: 2]


def next_expert(self, layer, expert: int, x: Tensor) -> Tensor:
    return GOOD_PART(self, layer, (expert + 1) % self.count, x)


GOOD_PART = PackedExperts._some


@pytest.mark.parametrize("fault", ["gates and up exchanged", "the next expert"])
def test_a_planted_fault_in_their_order_is_noticed(fault, monkeypatch):
    if fault == "the next expert":
        monkeypatch.setattr(PackedExperts, "_some", next_expert)
    else:
        monkeypatch.setattr(packed_experts, "_part", swapped)
    for name in NAMES[1:] if fault == "the next expert" else ("gpt-oss",):
        with pytest.raises(AssertionError):
            check_output(name, 8)


def quantized(name: str, kind: str, rounds: bool) -> LM:
    hf = tiny.stock(name)
    quantize(hf, kind)
    if rounds:
        round_inputs(hf)
    return LM(hf, name, activations="int8" if rounds else None)


@torch.inference_mode()
def check_backends(name: str, kind: str, rounds: bool) -> None:
    """The kernels compute packed experts, and as torch does."""
    lm = quantized(name, kind, rounds)
    assert any(isinstance(m, PackedExperts) for m in lm.hf.modules())
    assert lm.backend.name == "native" and lm.exact
    [prompt] = tiny.prompts(60)
    tree = Tree.chain(torch.tensor([prompt]))
    found = lm(tree, lm.new_cache(1, 60))
    lm.backend = lm.eager
    want = lm(tree, lm.new_cache(1, 60))
    # an input may lie at the border of two codes, which changes all later nodes a little
    assert (found - want).abs().median() < (0.05 if rounds else 1e-3)
    assert (found.argmax(-1) == want.argmax(-1)).float().mean() > 0.9


EACH = pytest.mark.parametrize(
    "name, kind, rounds",
    [
        ("qwen3-moe", "int4", True),
        *(
            pytest.param(name, kind, rounds, marks=pytest.mark.full)
            for name in (*NAMES, *PACKABLE)
            for kind in ("int8", "int4")
            for rounds in (False, True)
        ),
    ],
)


@EACH
@NEEDS_KERNELS
def test_the_kernels_compute_packed_experts(name, kind, rounds):
    check_backends(name, kind, rounds)


@NEEDS_KERNELS
def test_rows_of_another_expert_are_noticed(monkeypatch):
    good = StepPins._parts

    def shifted(self, layer, count):
        """The fault: each expert has the rows of the one after it."""
        each = good(self, layer, count)
        return type(each)(*each[1:], each[0])

    monkeypatch.setattr(StepPins, "_parts", shifted)
    with pytest.raises(AssertionError):
        check_backends("qwen3-moe", "int4", True)


@pytest.mark.parametrize("name", ["qwen3-moe-a8-bf16", "gpt-oss-kv8-a8"])
@pytest.mark.parametrize("how", ["greedy", "T=1"])
def test_decoding_them_is_lossless(name, how):
    check_lossless(BUILD["vegas tree"], name, SAMPLERS[how], (70, 31, 90), 24)


@pytest.mark.parametrize("name", NAMES)
def test_export_writes_them_as_their_module_keeps_them(name, tmp_path: Path):
    lm = quantized(name, "int8", False)
    export(lm, Mock(), tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    weights = again.state_dict()
    holders = [x for x, m in lm.hf.named_modules() if isinstance(m, PackedExperts)]
    assert holders == list(modules_of(name))
    for holder in holders:
        for key, matrix in lm.hf.get_submodule(holder).matrices(torch.float32).items():
            assert torch.equal(weights[f"{holder}.{key}"], matrix)


def test_fewer_bytes_are_counted():
    hf = tiny.stock("qwen3-moe")
    before = LM(hf)
    of_experts = weights_of(before).experts
    saved = bytes_saved(hf, "int4")
    lm = quantized("qwen3-moe", "int4", False)
    assert before.nbytes() - lm.nbytes() == pytest.approx(saved)
    assert weights_of(lm).experts < of_experts / 4
