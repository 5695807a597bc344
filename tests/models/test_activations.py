"""--activations int8: packed layers round their inputs to 8 bits: a target of its own, decoded
losslessly.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support import broken, gguf_files, tiny
from support.another_target import check_bench
from support.checks import SAMPLERS, check_lossless, plain
from support.listed import BUILD
from torch import Tensor

from longdraft import InputError, Stats, build, generate
from longdraft.backends.packed_linear import EightBitInputs, PackedLinear
from longdraft.core.tree import Tree
from longdraft.drafters.kinds import KINDS
from longdraft.models.identity import fingerprint
from longdraft.models.loading import load, load_lm
from longdraft.ops import interleaved, native
from longdraft.ops.packed import FP4, IQ4, Packed, pack
from longdraft.ops.scales import EightBitScales, PlainScales, SixBitScales

WORDS = ("--prompt-file", "a.txt", "--temperature", "1", "--weights", "int4")
KERNELS = (
    native.library() is not None and native.name_of(native.library()) not in native.WITHOUT_INT8
)


def matrix(bits: int, group: int, form: str, inputs: int, levels=None) -> Packed:
    """48 outputs of random codes and scales."""
    g = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (48, inputs), generator=g).to(torch.uint8)
    numbers = partial(torch.rand, 48, generator=g)
    scales = {
        "plain": lambda: PlainScales(torch.rand(48, inputs // group, generator=g).half(), None),
        "offset": lambda: PlainScales(
            *(torch.rand(48, inputs // group, generator=g).half() for _ in range(2))
        ),
        "six": lambda: SixBitScales(
            torch.randint(0, 256, (48, inputs // 256 * 12), generator=g).to(torch.uint8),
            numbers(inputs // 128).half(),
        ),
        "eight": lambda: EightBitScales(
            torch.randint(-128, 128, (48, inputs // group), generator=g).to(torch.int8),
            numbers(inputs // 256).half(),
        ),
    }
    return pack(bits, codes, scales[form](), group, levels)


@pytest.mark.each_value
@pytest.mark.parametrize(
    "bits, group, form, levels",
    [
        (4, 32, "plain", None),
        (4, 32, "plain", FP4),
        (4, 32, "eight", IQ4),
        (4, 32, "offset", None),
        (4, 32, "six", None),
        (5, 32, "plain", None),
        (5, 32, "six", None),
        (6, 16, "eight", None),
        (8, 32, "plain", None),
        (8, 16, "offset", None),
    ],
)
@pytest.mark.parametrize("inputs", [96, 256, 768])
def test_the_order_of_sixteen_rows_loses_nothing(bits, group, form, levels, inputs):
    if form in ("six", "eight") and inputs % 256:
        return
    packed = matrix(bits, group, form, inputs, levels)
    turned = interleaved.together(packed)
    assert turned.nbytes == packed.nbytes and not torch.equal(turned.low, packed.low)
    apart = interleaved.apart(turned)
    for name, part in apart.parts.items():
        assert torch.equal(part, packed.parts[name])
    assert torch.equal(apart.dequantized(), packed.dequantized())


def test_inputs_are_rounded_to_127_steps_of_the_largest_of_32():
    x = torch.randn(3, 80, generator=torch.Generator().manual_seed(0))
    x[0, :32] = 0
    x[1, 40] = 50.0
    found = interleaved.rounded(x)
    assert found.shape == x.shape and torch.equal(found[0, :32], x[0, :32])
    for begin in (0, 32, 64):
        part = x[:, begin : begin + 32]
        near = found[:, begin : begin + 32]
        step = part.abs().amax(-1, keepdim=True) / 127
        assert ((part - near).abs() <= 0.5001 * step).all()
        assert (
            (near / step.clamp(min=1e-9)).round() - near / step.clamp(min=1e-9)
        ).abs().max() < 1e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("activations") / "llama"
    tiny.stock("llama").save_pretrained(made)
    return str(made)


@pytest.fixture(scope="module")
def packed_file(tmp_path_factory):
    return str(gguf_files.saved(tmp_path_factory.mktemp("gguf"), quantized="Q4_0"))


@pytest.mark.parametrize("kind", ["int8", "int4"])
@torch.inference_mode()
def test_every_backend_rounds_alike(folder, kind):
    """As dequantized weights do whose inputs were rounded before."""
    lm = load_lm(folder, "float32", "cpu", weights=kind, activations="int8")
    layers = [m for m in lm.hf.modules() if isinstance(m, PackedLinear)]
    assert len(layers) == 3 * 7 + 1 and all(type(m) is EightBitInputs for m in layers)
    full, [prompt] = load_lm(folder, "float32", "cpu", weights=kind), tiny.prompts(60)
    assert lm.backend.name == full.backend.name and lm.nbytes() == full.nbytes()

    def logits(model, backend) -> Tensor:
        model.backend = backend
        return model(Tree.chain(torch.tensor([prompt])), model.new_cache(1, 60))[0]

    want = logits(lm, lm.eager)
    for m in full.hf.modules():
        if isinstance(m, PackedLinear):
            m.register_forward_pre_hook(lambda _, args: interleaved.rounded(args[0]))
    torch.testing.assert_close(logits(full, full.eager), want, rtol=1e-4, atol=1e-4)
    if KERNELS:
        found = logits(
            lm := load_lm(folder, "float32", "cpu", weights=kind, activations="int8"), lm.backend
        )
        assert lm.backend.name == "native"
        # an input may lie at the border of two codes
        torch.testing.assert_close(found, want, rtol=1e-3, atol=2e-2)
        assert (found - want).abs().median() < 1e-4


@pytest.mark.full
def test_rounding_that_depends_on_the_pass_is_caught(monkeypatch):
    check = partial(
        check_lossless, BUILD["vegas tree"], "llama-torch-a8", SAMPLERS["T=1"], (70, 31, 90), 32
    )
    check()
    plain.cache_clear()
    good = interleaved.rounded

    def beside(x: Tensor) -> Tensor:
        """The fault: a node's inputs depend on the nodes beside it."""
        return good(x + 0.05 * x.flatten(0, -2).mean(0))

    monkeypatch.setattr(interleaved, "rounded", beside)
    with pytest.raises(AssertionError):
        check()
    broken.caught("8-bit activations: inputs of the nodes beside", "check_lossless")
    plain.cache_clear()


def test_it_is_another_target_to_records_and_the_same_one_to_drafters(folder, tmp_path):
    lm, usual = (
        load_lm(folder, "float32", "cpu", weights="int4", activations=a) for a in ("int8", None)
    )
    tree = Tree.chain(torch.tensor(tiny.prompts(60)))
    with torch.inference_mode():
        assert not torch.equal(lm(tree, lm.new_cache(1, 60)), usual(tree, usual.new_cache(1, 60)))
    assert fingerprint(lm) == fingerprint(usual) | {"activations": "int8"}
    KINDS["medusa"].save(KINDS["medusa"].random(lm, 0), tmp_path / "drafter", lm, {})
    for target in (lm, usual):
        KINDS["medusa"].load(str(tmp_path / "drafter"), target)


def test_a_quantized_copy_rounds_its_inputs_too(folder):
    lm = load_lm(folder, "float32", "cpu", weights="int8", activations="int8")
    rows = tiny.prompts(70)
    stats = Stats()
    drafter = build("quantspec", lm, gamma=3)
    assert generate(lm, rows, drafter, max_new_tokens=32, stats=stats) == generate(
        lm, rows, max_new_tokens=32
    )
    assert stats.mean_acceptance_length > 1.5
    copy = lm.copies["int4"]
    assert copy.activations == "int8"
    assert all(type(m) is EightBitInputs for m in copy.hf.modules() if isinstance(m, PackedLinear))


def test_a_gguf_file_has_them_unless_full_is_asked_for(packed_file):
    found, full = (load_lm(packed_file, device="cpu", activations=a) for a in (None, "full"))
    assert found.activations == ("int8" if KERNELS else None) and full.activations is None
    assert not any(isinstance(m, EightBitInputs) for m in full.hf.modules())
    rows = tiny.prompts(40)
    assert generate(found, rows, build("vegas", found, gamma=3), max_new_tokens=24) == generate(
        found, rows, max_new_tokens=24
    )


@pytest.mark.parametrize("kind", ["int4", "", "INT8", "x" * 99])
def test_another_kind_is_refused(packed_file, kind, cli):
    with pytest.raises(InputError, match="choose int8 or full, or leave it out"):
        load_lm(packed_file, "float32", "cpu", activations=kind)
    status, _, err = cli("generate", "hi", "-m", packed_file, "--activations", kind)
    assert status == 2 and len(err.splitlines()) == 1


def test_a_model_without_packed_weights_is_refused(folder, cli):
    status, _, err = cli("generate", "hi", "-m", folder, "--activations", "int8")
    assert (
        status == 2
        and len(err.splitlines()) == 1
        and "has none: give a GGUF file, or weights=int8" in err
    )


@pytest.mark.full
def test_generate_compares_with_its_own_plain_decoding(record):
    found = record(*WORDS, "--activations", "int8", "--compare")
    assert found["equal"] is True and found["activations"] == "int8"
    usual = record(*WORDS, "--method", "plain")
    assert usual["activations"] is None and usual["text"] != found["text"]


@pytest.mark.full
def test_a_prompt_of_the_other_kind_is_refused(cli, tmp_path):
    words = [
        "generate",
        "-m",
        "tiny",
        *WORDS,
        "--prompt-cache",
        str(tmp_path / "p"),
        "--max-new-tokens",
        "4",
    ]
    assert cli(*words)[0] == 0
    status, _, err = cli(*words, "--activations", "int8")
    assert status == 2 and "8-bit activations" in err and len(err.splitlines()) == 1


@pytest.mark.full
def test_benchmarks_record_it(cli, tmp_path):
    check_bench(cli, tmp_path, "activations", [None, "int8"], "--weights", "int4")


def test_chat_models_load_with_their_tokenizer(packed_file):
    lm, tokenizer = load(packed_file, device="cpu")
    assert lm.activations == ("int8" if KERNELS else None) and tokenizer.encode("a")


@pytest.mark.parametrize(("bits", "form"), [(8, "plain"), (5, "plain"), (4, "offset"), (4, "six")])
def test_levels_are_of_4_bits_without_offsets(bits, form):
    assert matrix(bits, 32, form, 256).levels is None
    with pytest.raises(ValueError, match="levels are selected by 4 bits"):
        matrix(bits, 32, form, 256, FP4)
