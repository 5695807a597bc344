"""--weights: a model whose linear layers are quantized on loading is a target of its own, decoded
losslessly.
"""

from __future__ import annotations

import json
import weakref

import pytest
import tiny_models
import torch
from support import gguf_files, tiny
from support.another_target import check_audit, check_bench
from transformers import LlamaConfig, LlamaForCausalLM

from longdraft import InputError, Sampler, Stats, build, generate
from longdraft.backends import quantize as quantization
from longdraft.backends.packed_linear import PackedLinear
from longdraft.backends.quantize import quantize
from longdraft.core.sampling import ChainDraws
from longdraft.core.tree import Tree
from longdraft.drafters.kinds import KINDS
from longdraft.models.alignment import LINE
from longdraft.models.identity import fingerprint
from longdraft.models.loading import load_lm
from longdraft.ops import native
from longdraft.ops.packed import Packed, quantized

KIND = pytest.mark.parametrize("kind", ["int8", "int4"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model on disk."""
    made = tmp_path_factory.mktemp("weights") / "llama"
    tiny.stock("llama").save_pretrained(made)
    return str(made)


def packed(lm) -> dict[str, PackedLinear]:
    return {name: m for name, m in lm.hf.named_modules() if isinstance(m, PackedLinear)}


def same_numbers(kind: str):
    """The tiny model with the numbers of its quantized form in plain linear layers, under
    Transformers' attention.
    """
    hf = tiny.stock("llama")
    head = hf.get_output_embeddings()
    for m in [m for m in hf.modules() if isinstance(m, torch.nn.Linear)]:
        bits = 8 if m is head else quantization.BITS[kind]
        m.weight = torch.nn.Parameter(quantization.quantized(m.weight, bits).dequantized())
    return hf


def test_a_drafter_unpacks_the_output_matrix_once(folder, monkeypatch):
    """And it can be trained afterward; the numbers stay those of the packed matrix."""
    lm = load_lm(folder, "float32", "cpu", weights="int8")
    made = []
    good = Packed.dequantized
    monkeypatch.setattr(Packed, "dequantized", lambda self: made.append(self.shape) or good(self))
    state = torch.randn(2, 3, 64)
    head = lm.hf.get_output_embeddings()
    want = state @ good(head.packed).T
    with torch.inference_mode():
        for _ in range(3):
            torch.testing.assert_close(lm.project(state), want)
    assert made == [(96, 64)]
    state.requires_grad_(True)
    lm.project(state).sum().backward()
    assert state.grad is not None and len(made) == 2


@KIND
@torch.inference_mode()
def test_the_target_is_the_quantized_model(folder, kind):
    lm, [prompt] = load_lm(folder, "float32", "cpu", weights=kind), tiny.prompts(60)
    assert len(packed(lm)) == 3 * 7 + 1 and lm.weights == kind
    assert {m.bits for m in packed(lm).values()} == {8, quantization.BITS[kind]}
    assert not any(p.data_ptr() % LINE for p in lm.hf.parameters())
    assert lm.nbytes() < 0.45 * load_lm(folder, "float32", "cpu").nbytes()
    want = same_numbers(kind)(torch.tensor([prompt])).logits[0]
    ids = torch.tensor([prompt])
    if native.library() is not None:
        assert lm.backend.name == "native"
    for backend in (lm.backend, lm.eager):
        lm.backend = backend
        found = lm(Tree.chain(ids), lm.new_cache(1, len(prompt)))[0]
        torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)
    # unquantized they are others
    assert (tiny.stock("llama")(ids).logits[0] - want).abs().max() > 0.01


@pytest.mark.parametrize("method", ["vegas", "lookup"])
@pytest.mark.parametrize(
    "sampler", [Sampler(), Sampler(temperature=1.0)], ids=["greedy", "sampled"]
)
def test_decoding_it_is_lossless(folder, method, sampler):
    """Output equals its own plain decoding, which the unquantized model's is not."""
    lm = load_lm(folder, "float32", "cpu", weights="int4")
    rows = tiny.prompts(70, 31)
    want = generate(lm, rows, max_new_tokens=32, sampler=sampler, seed=3)
    assert generate(lm, rows, build(method, lm), max_new_tokens=32, sampler=sampler, seed=3) == want
    unquantized = load_lm(folder, "float32", "cpu")
    assert generate(unquantized, rows, max_new_tokens=32, sampler=sampler, seed=3) != want


class ApproximatePass(native.Pass):
    """Planted: a verification may round its inputs as drafts do."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.approximate = 1


@pytest.mark.skipif(native.library() is None, reason="the package was built without a C++ compiler")
@KIND
@torch.inference_mode()
def test_only_drafts_may_be_computed_in_integers(folder, kind, monkeypatch):
    """Passes give every node the same bits in a tree as alone; a drafted chain writes keys that are
    nearly theirs.
    """
    lm, [prompt] = load_lm(folder, "float32", "cpu", weights=kind), tiny.prompts(60)
    cache = lm.new_cache(1, 100)
    tokens = torch.tensor([prompt[-6:]])
    lm.prefill(prompt[:-6], cache)

    def numbers(tree) -> list:
        logits = lm(tree, cache)
        return [
            logits[:, :1],
            *(cache.read(layer, 0)[0][:, 54:55].clone() for layer in cache.layers),
        ]

    def same(a, b) -> bool:
        return all(map(torch.equal, a, b))

    wide = numbers(Tree.chain(tokens))
    alone = numbers(Tree.root(tokens[:, 0]))
    assert same(wide, alone)
    draws = ChainDraws(1, [Sampler()], torch.tensor([3]), cache.length + 1)
    lm.backend.chain_drafter(cache, None)(tokens[:, 0], 0, draws)
    drafted = [cache.read(layer, 0)[0][:, 54:55] for layer in cache.layers]
    if native.name_of(native.library()) != "neon":
        assert not same(drafted, alone[1:])
    for found, want in zip(drafted, alone[1:], strict=True):
        assert (found - want).abs().max() < 0.1 * want.abs().max()
    monkeypatch.setattr(native, "Pass", ApproximatePass)
    if native.name_of(native.library()) != "neon":
        assert not same(numbers(Tree.chain(tokens)), numbers(Tree.root(tokens[:, 0])))


@KIND
def test_a_copy_of_no_fewer_bits_drafts_as_the_target_does(folder, kind):
    lm = load_lm(folder, "float32", "cpu", weights="int4")
    rows = tiny.prompts(70)
    stats = Stats()
    drafter = build("quantspec", lm, gamma=3, draft_weights=kind)
    assert generate(lm, rows, drafter, max_new_tokens=32, stats=stats) == generate(
        lm, rows, max_new_tokens=32
    )
    # Nearly every draft is accepted: drafts round their inputs where kernels have integer products.
    assert 8 <= stats.steps <= 9
    mine = {p.data_ptr() for p in lm.hf.parameters()}
    assert {p.data_ptr() for p in lm.quantized(kind).hf.parameters()} == mine  # it takes no memory


def test_one_layer_is_quantized_after_the_other(monkeypatch):
    """When a layer is quantized, the weights of those before it are freed."""
    hf = tiny.stock("llama")
    seen = []

    def watched(weight, bits):
        seen.append(weakref.ref(weight))
        assert sum(ref() is not None for ref in seen) <= 2
        return original(weight, bits)

    original = quantization.quantized
    monkeypatch.setattr(quantization, "quantized", watched)
    quantize(hf, "int4")
    assert len(seen) == 22


@pytest.mark.full
def test_layers_of_as_few_bits_stay(tmp_path):
    config = LlamaConfig(**{**tiny.BASE, "vocab_size": 96})
    torch.manual_seed(0)
    files = {}
    for kind in ("Q4_0", "Q8_0"):
        metadata, tensors = gguf_files.of_model(
            LlamaForCausalLM(config), quantized=kind, words=False
        )
        (tmp_path / kind).mkdir()
        files[kind] = str(gguf_files.write(tmp_path / kind / "model.gguf", metadata, tensors))
    for kind, weights, bits, same in (
        ("Q4_0", "int8", 4, True),
        ("Q8_0", "int4", 4, False),
        ("Q8_0", "int8", 8, True),
    ):
        plain, lm = (load_lm(files[kind], "float32", "cpu", weights=w) for w in (None, weights))
        layer = packed(lm)["model.layers.0.mlp.up_proj"]
        assert layer.bits == bits
        assert torch.equal(layer.low, packed(plain)["model.layers.0.mlp.up_proj"].low) is same


@pytest.mark.parametrize("text", ["int3", "same", "", "INT4", "4", "x" * 100])
def test_an_unknown_kind_is_refused(folder, text):
    with pytest.raises(InputError, match="choose int8 or int4"):
        load_lm(folder, "float32", "cpu", weights=text)


def test_a_model_without_layers_to_quantize_is_refused(tmp_path):
    sizes = {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
    }
    LlamaForCausalLM(LlamaConfig(**tiny.BASE | sizes)).save_pretrained(tmp_path / "odd")
    with pytest.raises(InputError, match="no layer of this llama can be quantized"):
        load_lm(str(tmp_path / "odd"), "float32", "cpu", weights="int4")


@pytest.mark.parametrize("bits", [4, 8])
def test_single_entries_are_those_of_the_whole_matrix(bits):
    packed = quantized(torch.randn(5, 96), bits)
    assert torch.equal(packed.entries(torch.arange(480)), packed.dequantized().flatten())


@pytest.mark.full
def test_drafters_know_the_model_whether_quantized_or_not(folder, tmp_path):
    plain, four, eight = (
        load_lm(folder, "float32", "cpu", weights=w) for w in (None, "int4", "int8")
    )
    prints = [fingerprint(lm) for lm in (plain, four, eight)]
    assert len({p["digest"] for p in prints}) == 3 and "weights" not in prints[0]
    assert [p.get("weights") for p in prints[1:]] == ["int4", "int8"]
    assert {p["stored"] for p in prints[1:]} == {prints[0]["digest"]}
    for trained, name in ((plain, "plain"), (four, "four")):
        KINDS["medusa"].save(KINDS["medusa"].random(trained, 0), tmp_path / name, trained, {})
        for lm in (plain, four, eight):
            KINDS["medusa"].load(str(tmp_path / name), lm)
    tiny.stock("llama", seed=1).save_pretrained(tmp_path / "other")
    other = load_lm(str(tmp_path / "other"), "float32", "cpu", weights="int4")
    with pytest.raises(InputError, match="weights are not this target's"):
        KINDS["medusa"].load(str(tmp_path / "plain"), other)
    KINDS["medusa"].load(str(tmp_path / "plain"), other, any_target=True)


@pytest.mark.full
@pytest.mark.parametrize("temperature", ["0", "1"])
def test_generate_compares_with_its_own_plain_decoding(record, temperature):
    words = ("--prompt-file", "a.txt", "--temperature", temperature)
    found = record(*words, "--weights", "int4", "--compare")
    assert found["equal"] is True and found["weights"] == "int4"
    plain = record(*words, "--method", "plain")
    assert plain["weights"] is None and plain["text"] != found["text"]


@pytest.mark.full
def test_the_audit_of_it_finds_no_difference(cli, tmp_path):
    assert check_audit(cli, tmp_path, "weights", "int8")["weights"] == "int8"


@pytest.mark.full
def test_benchmarks_record_it(cli, tmp_path):
    check_bench(cli, tmp_path, "weights", ["int4", "int8"])


@pytest.mark.full
def test_trained_drafters_beside_the_model_are_used(cli):
    words = [
        "generate",
        "hello",
        "--max-new-tokens",
        "8",
        "--weights",
        "int4",
        "--json",
        "--compare",
    ]
    status, out, _ = cli(*words, "--method", "longspec")
    found = json.loads(out)
    assert status == 0 and found["equal"] is True and found["weights"] == "int4"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e7])
def test_weights_of_any_size_are_quantized_to_the_nearest_code(bits, size):
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(bits)) * size
    weight[0, :32] = 0
    packed = quantized(weight, bits)
    assert packed.scales.parts["scale"].dtype == (
        torch.float16 if 1e-4 < size < 1e3 else torch.float32
    )
    step = packed.scales.numbers()[0].repeat_interleave(32, 1)
    assert ((packed.dequantized() - weight).abs() <= 0.51 * step).all()
    assert torch.equal(packed.dequantized()[0, :32], weight[0, :32])


def test_subclasses_of_linear_are_quantized_if_they_compute_what_linear_does(monkeypatch):
    """Falcon's do; PhiMoE's routers return several tensors, and packing them would be noticed."""
    falcon = tiny_models.build(tiny_models.config("falcon"))
    ids = torch.arange(3, 12)[None]
    logits = falcon(ids).logits
    quantize(falcon, "int8")
    assert isinstance(falcon.transformer.h[0].self_attention.dense, PackedLinear)
    assert (falcon(ids).logits - logits).abs().max() < 0.05 * logits.abs().max()
    config = tiny_models.config("phimoe")
    config.num_local_experts = 16  # layers with fewer outputs are not quantized
    phimoe = tiny_models.build(config)
    routers = [name for name, m in phimoe.named_modules() if type(m).__name__ == "PhimoeTopKRouter"]
    assert routers
    quantize(phimoe, "int8")
    assert not any(isinstance(phimoe.get_submodule(name), PackedLinear) for name in routers)
    phimoe(ids)
    monkeypatch.setattr(quantization, "_is_linear", lambda module: True)
    quantize(phimoe, "int8")
    with pytest.raises((ValueError, TypeError)):
        phimoe(ids)
