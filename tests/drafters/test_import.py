"""Released drafters: what is imported says what plain steps say over its names; what does not fit
is refused.
"""

from __future__ import annotations

import json
import pickle

import pytest
import torch
import torch.nn.functional as F
from support import released as r
from support import tiny
from support.structure import close
from transformers import DynamicCache

from longdraft import InputError, build, generate
from longdraft.cli import main
from longdraft.core.cache import KVCache
from longdraft.core.tree import Tree
from longdraft.drafters import DFlash
from longdraft.drafters.dflash.ring import FeatureRing
from longdraft.drafters.kinds import KINDS, import_released, read_released
from longdraft.models.loading import load

LM = tiny.target("llama")
TEXT = tiny.prompts(23)[0]
RELEASES = {
    "glide": r.glide,
    "heads": r.tokenswift,
    "medusa": r.medusa,
    "eagle2": r.eagle2,
    "eagle3": r.eagle3,
}
RELEASES |= {"dflash": r.dflash}
METHOD = {
    "glide": "longspec",
    "heads": "tokenswift",
    "medusa": "medusa",
    "eagle2": "eagle2",
    "eagle3": "eagle3",
}
METHOD |= {"dflash": "dflash"}
OPTIONS = {"heads": {"budget": 24}, "medusa": {"widths": [3, 2, 2, 1]}, "eagle2": {"nodes": 9}}


def imported(tmp_path, weights, config, file="model.safetensors", target=LM, any_target=False):
    kind, module = read_released(
        r.write(tmp_path / "released", weights, config, file), target, any_target
    )
    return kind.name, module


@torch.no_grad()
def test_glide(tmp_path):
    w, config = r.glide(LM)
    kind, block = imported(tmp_path, w, config)
    assert kind == "glide" and block.window == 512
    ids = torch.tensor([TEXT])
    N = len(TEXT)
    eps = LM.config.rms_norm_eps
    f = r.frequency(10000.0)
    model = tiny.eager("llama")
    cache = DynamicCache()
    model(input_ids=ids, past_key_values=cache, use_cache=True)
    keys = cache.layers[-1].keys[0]
    values = cache.layers[-1].values[0]
    everything = torch.ones(N, N).bool()
    causal = torch.ones(N, N).tril().bool()

    x = model.get_input_embeddings()(ids)[0]
    read = r.norm(x, w["input_layernorm.weight"], eps)
    q, k, v = (r.split(r.linear(w, f"self_attn.{p}_proj", read)) for p in "qkv")
    x = x + r.linear(w, "self_attn.o_proj", r.attend(r.turned(q, f), r.turned(k, f), v, causal))
    read = r.norm(x, w["post_self_attention_layernorm.weight"], eps)
    q = r.turned(r.split(r.linear(w, "cross_attn.q_proj", read)), f)
    x = x + r.linear(w, "cross_attn.o_proj", r.attend(q, keys, values, everything))
    x = x + r.gated(w, "mlp", r.norm(x, w["post_cross_attention_layernorm.weight"], eps))

    def own(q, k, v):
        return r.attend(q[0], k[0], v[0], causal).view(1, N, r.H, -1)

    def cross(q):
        return r.attend(q[0], keys, values, everything).view(1, N, r.H, -1)

    close(block(ids, torch.arange(N)[None], own, cross)[0], x @ model.lm_head.weight.T, 1e-4)


@torch.no_grad()
def test_tokenswift(tmp_path):
    w, config = r.tokenswift(LM)
    kind, module = imported(tmp_path, w, config)
    h = torch.randn(5, r.D, generator=torch.Generator().manual_seed(0))
    found = module(h, LM.project)
    assert kind == "heads" and found.shape == (5, 3, r.V)
    for i in range(3):
        at = f"model.medusa_layers.{i}"
        eps = LM.config.rms_norm_eps
        h = h + r.linear(w, f"{at}.linear", r.norm(h, w[f"{at}.input_layernorm.weight"], eps))
        close(
            found[:, i],
            r.norm(h, w[f"{at}.post_layernorm.weight"], eps) @ w["lm_head.weight"].T,
            1e-4,
        )


@torch.no_grad()
@pytest.mark.parametrize(
    ("own", "prefix", "file"), [(True, "", "medusa_lm_head.pt"), (False, "medusa_head.", None)]
)
def test_medusa(tmp_path, own, prefix, file):
    w, config = r.medusa(LM, 5, own, prefix)
    kind, module = imported(tmp_path, w, config, file or "model.safetensors")
    h = torch.randn(7, r.D, generator=torch.Generator().manual_seed(0))
    found = module(h, LM.project)
    assert kind == "medusa" and found.shape == (7, 5, r.V)
    for i in range(5):
        state = h + F.silu(r.linear(w, f"{prefix}{i}.0.linear", h))
        head = w[f"{prefix}{i}.1.weight"] if own else LM.hf.lm_head.weight
        close(found[:, i], state @ head.T, 1e-4)


def run(block, states: list[torch.Tensor]) -> torch.Tensor:
    """Logits [N,V] of an EAGLE layer over pairs of states [N,d] and TEXT, as one chain from
    position 0 on.
    """
    chain = Tree.chain(torch.tensor([TEXT]))
    cache = KVCache(1, len(TEXT))
    feature = block.feature(LM, [s[None] for s in states])
    out = block(
        feature, LM.hf.get_input_embeddings()(chain.tokens), chain.depth, chain.mask, cache, 0
    )
    return block.scores(LM, out)[0]


def states(count: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(5)
    return [torch.randn(len(TEXT), r.D, generator=g) for _ in range(count)]


@torch.no_grad()
@pytest.mark.parametrize(("bias", "biases"), [(True, ""), (False, "qkv")])
def test_eagle2(tmp_path, bias, biases):
    w, config = r.eagle2(LM, bias, biases)
    kind, block = imported(tmp_path, w, config, "pytorch_model.bin")
    assert kind == "eagle2"
    (state,), embedded = states(1), LM.hf.get_input_embeddings()(torch.tensor(TEXT))
    x = r.linear(w, "fc", torch.cat([embedded, LM.norm(state)], -1))
    x = r.layer(w, "layers.0", x, x, r.frequency(500.0), 1e-5)
    close(run(block, [state]), x @ LM.hf.lm_head.weight.T, 1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    ("at", "known", "rope", "normed"),
    [
        ("midlayer", 40, None, False),
        ("layers.0", 40, r.LLAMA3, True),
        ("midlayer", r.V, None, False),
    ],
)
def test_eagle3(tmp_path, at, known, rope, normed):
    w, config = r.eagle3(LM, at, known, rope)
    # `speculators`
    config = (
        {"norm_before_residual": True, "transformer_layer_config": config} if normed else config
    )
    kind, block = imported(tmp_path, w, config)
    assert kind == "eagle3"
    three = states(3)
    embedded = LM.hf.get_input_embeddings()(torch.tensor(TEXT))
    feature = torch.cat(three, -1) @ w["fc.weight"].T
    second = r.norm(feature, w[f"{at}.hidden_norm.weight"], 1e-5)
    read = torch.cat([r.norm(embedded, w[f"{at}.input_layernorm.weight"], 1e-5), second], -1)
    x = r.layer(w, at, second if normed else feature, read, r.frequency(500.0, rope), 1e-5)
    want = r.norm(x, w["norm.weight"], 1e-5) @ w["lm_head.weight"].T
    found = run(block, three)
    tokens = torch.arange(known) + w.get("d2t", torch.tensor(0))
    close(found[:, tokens], want, 1e-4)
    assert int(found.isfinite().sum()) == want.numel()


DFLASH = {
    "as first released": (("full", "full"), {}, 2048, [False, False]),
    "sliding": (("sliding", "sliding"), {"sliding_window": 9}, 9, [True, True]),
    "sliding, not causal": (
        ("sliding", "sliding"),
        {"sliding_window": 9, "is_causal": False},
        9,
        [False, False],
    ),
    "mixed": (
        ("sliding", "full"),
        {"sliding_window": 64, "rope_scaling": r.LLAMA3},
        64,
        [True, False],
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("form", DFLASH)
def test_dflash(tmp_path, form):
    kinds, fields, window, causal = DFLASH[form]
    w, config = r.dflash(LM, kinds, **fields)
    kind, block = imported(tmp_path, w, config)
    assert kind == "dflash" and (block.taps, block.window, block.causal) == ([1, 2], window, causal)
    two = states(2)
    table = LM.hf.get_input_embeddings().weight
    f = r.frequency(500.0, fields.get("rope_scaling"))
    feature = r.norm(torch.cat(two, -1) @ w["fc.weight"].T, w["hidden_norm.weight"], 1e-5)
    # the root and four masks
    x = torch.cat([table[7][None], table[r.V - 1].expand(4, -1)])
    N = len(TEXT)
    behind = torch.arange(N, N + 5)[:, None] - torch.arange(N + 5)
    for i in range(2):
        mask = (behind < window) & ((behind >= 0) if causal[i] else torch.ones_like(behind).bool())
        x = r.dflash_layer(w, f"layers.{i}", x, feature, f, 1e-5, mask)
    want = r.norm(x, w["norm.weight"], 1e-5) @ LM.hf.lm_head.weight.T

    drafter = DFlash(LM, block)
    drafter.ring = FeatureRing(block, min(window, 64), torch.tensor([0]))
    drafter._feed(torch.tensor([0]), [s[None] for s in two], torch.tensor([N]))
    close(LM.project(drafter.states(torch.tensor([7]))[0]), want[1:], 1e-4)


@pytest.mark.parametrize("kind", RELEASES)
def test_an_imported_drafter_is_saved_loaded_and_lossless(tmp_path, kind):
    w, config = RELEASES[kind](LM)
    folder = r.write(
        tmp_path / "released",
        {k: v.half() if v.is_floating_point() else v for k, v in w.items()},
        config,
    )
    made = import_released(folder, tmp_path / "out", LM)
    assert made["kind"] == kind and made["dtype"] == "float16"
    part = KINDS[kind].load(str(tmp_path / "out"), LM)
    drafter = build(METHOD[kind], LM, part, **OPTIONS.get(kind, {}))
    prompts = tiny.prompts(40, 33)
    assert generate(LM, prompts, drafter, max_new_tokens=8) == generate(
        LM, prompts, max_new_tokens=8
    )


@pytest.mark.full
def test_the_commands(tmp_path, capsys):
    """Import for a target in a folder; then a drafter for the bundled one, and one for another
    target refused.
    """
    LM.hf.save_pretrained(tmp_path / "target")
    folder = r.write(tmp_path / "released", *r.medusa(LM))
    out = str(tmp_path / "out")
    assert main(["import", str(folder), "--out", out, "-m", str(tmp_path / "target")]) == 0
    assert capsys.readouterr().out.startswith("medusa, ")
    assert main(["import", str(tmp_path / "none"), "--out", out]) == 2
    assert main(["import", str(folder), "--out", str(folder), "-m", str(tmp_path / "target")]) == 2
    assert "give another" in capsys.readouterr().err

    bundled = load("bundled")[0]
    words = ["generate", "a b c", "--method", "medusa", "--max-new-tokens", "4"]
    KINDS["medusa"].save(KINDS["medusa"].random(bundled, 0), tmp_path / "mine", bundled, {})
    assert main([*words, "--drafter", str(tmp_path / "mine")]) == 0
    capsys.readouterr()
    assert main([*words, "--drafter", out]) == 2
    assert "was trained for" in capsys.readouterr().err
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    config["longdraft"]["target"]["digest"] = "another's"
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    assert main([*words, "--drafter", str(tmp_path / "mine")]) == 2
    assert "--any-target" in capsys.readouterr().err
    assert main([*words, "--drafter", str(tmp_path / "mine"), "--any-target"]) == 0


# What does not fit --------------------------------------------------------------------------------


def refuse(words: str, tmp_path, weights, config, **options) -> None:
    with pytest.raises(InputError, match=words) as caught:
        imported(tmp_path, weights, config, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", RELEASES)
def test_missing_surplus_and_misshapen_weights_are_named(tmp_path, kind):
    w, config = RELEASES[kind](LM)
    name = {"glide": "mlp.up_proj.weight", "heads": "model.medusa_layers.1.linear.weight"}
    name |= {
        "medusa": "2.0.linear.bias",
        "eagle2": "fc.weight",
        "eagle3": "midlayer.self_attn.k_proj.weight",
    }
    name |= {"dflash": "layers.1.self_attn.k_norm.weight"}
    short = name[kind].removeprefix("model.")
    if kind != "eagle2":  # without fc it is no layer of EAGLE at all
        refuse(f"lacks {short}", tmp_path, {k: v for k, v in w.items() if k != name[kind]}, config)
    refuse("surplus odd.weight", tmp_path, w | {"odd.weight": torch.ones(3)}, config)
    refuse(f"{short} is .* must be", tmp_path, w | {name[kind]: torch.ones(3, 3)}, config)


def test_another_targets_tables_are_seen(tmp_path):
    other = tiny.LM(tiny.stock("llama", seed=1))
    for kind in ("heads", "eagle2"):
        w, config = RELEASES[kind](LM)
        refuse("is not the target's", tmp_path / kind, w, config, target=other)
        assert imported(tmp_path / kind, w, config, target=other, any_target=True)[0] == kind


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("norm_before_fc", {"norm_before_fc": True}),
        ("hidden_act=gelu", {"hidden_act": "gelu"}),
        ("rope type dynamic", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
        ("hidden_size is 48", {"hidden_size": 48}),
        ("states before layers", {"eagle_aux_hidden_state_layer_ids": [1, 1, 2]}),
        ("sliding_window=9", {"sliding_window": 9}),
    ],
)
def test_a_layer_of_another_make_is_refused(tmp_path, words, field):
    w, config = r.eagle3(LM)
    refuse(words, tmp_path, w, config | field)


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("lacks block_size", {"block_size": None}),
        ("hidden_size is 48", {"hidden_size": 48}),
        ("num_target_layers is 36", {"num_target_layers": 36}),
        (
            "states after layers",
            {"dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 2]}},
        ),
        (
            "its mask token is 151669",
            {"dflash_config": {"mask_token_id": 151669, "target_layer_ids": [0, 1]}},
        ),
        ("its mask token is None", {"dflash_config": {"target_layer_ids": [0, 1]}}),
        ("selector_rank=256", {"selector_rank": 256}),
        ("final_logit_softcapping=20", {"final_logit_softcapping": 20.0}),
        ("linear_attention layers", {"layer_types": ["full_attention", "linear_attention"]}),
        ("1 layer_types for 2 layers", {"layer_types": ["full_attention"]}),
        ("rope type dynamic", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    ],
)
def test_a_dflash_of_another_make_is_refused(tmp_path, words, field):
    w, config = r.dflash(LM)
    refuse(words, tmp_path, w, {k: v for k, v in (config | field).items() if v is not None})


def test_fields_of_another_kind_are_one_line(tmp_path):
    odd = [
        {"transformer_layer_config": [1]},
        {"hidden_size": "64"},
        {"num_attention_heads": 0},
        {"rope_parameters": 7},
    ]
    odd += [{"rope_scaling": {"type": ["x"]}}, {"intermediate_size": {}}, {"rms_norm_eps": "small"}]
    for i, field in enumerate(odd):
        weights, config = r.eagle3(LM, "midlayer", 40, None)
        refuse("config.json|hidden_size|rope type", tmp_path / str(i), weights, {**config, **field})


def test_a_vocabulary_that_points_outside_is_refused(tmp_path):
    w, config = r.eagle3(LM)
    refuse("d2t does not map", tmp_path, w | {"d2t": w["d2t"] + 60}, config)
    del w["d2t"]
    refuse("lacks d2t", tmp_path, w, config)


class Trap:
    def __reduce__(self):
        return print, ("code of a released file has run",)


def test_nothing_of_a_released_file_is_run(tmp_path, capsys):
    folder = tmp_path / "released"
    folder.mkdir()
    with (folder / "pytorch_model.bin").open("wb") as f:
        pickle.dump({"fc.weight": Trap()}, f, protocol=2)
    with pytest.raises(InputError, match="holds more than weights"):
        read_released(folder, LM)
    torch.save({"fc.weight": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds more than weights"):
        read_released(folder, LM)
    assert "has run" not in capsys.readouterr().out


def test_other_folders_are_explained(tmp_path):
    with pytest.raises(InputError, match="no folder at"):
        read_released(tmp_path / "none", LM)
    with pytest.raises(InputError, match="has no weights"):
        read_released(tmp_path, LM)
    with pytest.raises(InputError, match="is not a drafter that longdraft knows"):
        imported(tmp_path, {"some.weight": torch.ones(2)}, {})
