"""`longdraft plan`: predictions follow from counts, drafts are those that methods make, no weights
are needed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support import tiny
from support.checks import SEED
from support.listed import OPTIONS, make
from transformers import AutoConfig, LlamaConfig

from longdraft import Sampler
from longdraft.bench.plan import acceptance, table
from longdraft.bench.plan.acceptance import Acceptance, accepted, share_of
from longdraft.bench.plan.candidates import candidates
from longdraft.bench.plan.outlines import Target, quantized, target_on
from longdraft.bench.plan.planner import LoadOptions, Planner
from longdraft.bench.plan.prediction import plain_step, predicted
from longdraft.cli import main
from longdraft.core import UNBOUNDED
from longdraft.costs.passes import PassCosts
from longdraft.drafters.step import speculative_step
from longdraft.drafters.view_price import SelfDraftPrice, ViewPrice
from longdraft.engine.generate import prefill
from longdraft.errors import InputError
from longdraft.methods import METHODS
from longdraft.methods.spec import MethodSpec
from longdraft.models.outline import outline, outline_of
from longdraft.views import Guided

LLAMA = LlamaConfig(
    vocab_size=128256,
    num_hidden_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_attention_heads=32,
    num_key_value_heads=8,
    tie_word_embeddings=False,
)
READING = PassCosts(read=1.0, key=1.0)  # a byte is a second, and all else costs nothing
WEIGHTS = 2 * (128256 * 4096 + 32 * (4096 * (4096 + 1024) * 2 + 3 * 4096 * 14336 + 2 * 4096) + 4096)
SLOT = 32 * 2 * 8 * 128 * 2  # bytes of a token's keys and values
# n-grams of the text: as many as are found
FOUND = {
    "lookup",
    "suffix",
    "recycle",
    "vegas-reuse",
    "tokenswift",
}


def llama(device: str = "H200", costs: PassCosts | None = None) -> Target:
    target = target_on(outline_of(LLAMA), device)
    return target if costs is None else replace(target, costs=costs)


def one(target: Target, label: str):
    name, *given = label.split("@")
    found, _ = candidates(
        target, [MethodSpec(label, name, dict(pair.split("=") for pair in given))], None
    )
    return found[0]


def check_bytes() -> None:
    """Where reading alone costs, a plain step and one of vegas take what bytes say: 7% of the keys
    in each draft.
    """
    target = llama(costs=READING)
    n = 1 << 17
    assert plain_step(target, [n] * 2) == pytest.approx(WEIGHTS + 2 * n * SLOT)
    p = predicted(target, one(target, "vegas"), 2, n, Acceptance(1.0, "stated"))
    seen = -(-7 * n // 100)
    assert p.depth == p.nodes == 7 and p.tokens == 8
    assert p.draft == pytest.approx(7 * (WEIGHTS + 2 * seen * SLOT))
    assert p.verify == pytest.approx(p.plain) and p.step == pytest.approx(p.draft + p.verify)
    assert p.break_even == pytest.approx(p.step / p.plain) and p.speedup == pytest.approx(
        8 / p.break_even
    )


def test_bytes_decide_where_nothing_else_costs():
    check_bytes()


def everything(self, lengths):
    """A view that shows every slot."""
    return lengths


def forgets_a_level(self, costs, lengths, depth, width, seconds=SelfDraftPrice.seconds):
    """No pass for the root."""
    return seconds(self, costs, lengths, depth - 1, width)


@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [(Guided, "seen", everything), (SelfDraftPrice, "seconds", forgets_a_level)],
)
def test_wrong_counts_are_seen(monkeypatch, owner, name, planted):
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(AssertionError):
        check_bytes()


def test_a_copy_is_read_in_fewer_bytes():
    target = llama("CPU", READING)
    own, copied = (
        predicted(
            target, one(target, f"vegas@draft_weights={kind}"), 1, 1024, Acceptance(1.0, "stated")
        )
        for kind in ("same", "int8")
    )
    assert 0.5 < copied.draft / own.draft < 0.6 and copied.verify == own.verify
    eight = quantized(target, "int8")
    assert plain_step(eight, [1024]) < 0.6 * plain_step(target, [1024])


def options_of(name: str) -> dict[str, str]:
    """Those of the tests of losslessness, as text."""
    words = {
        k: ",".join(map(str, v)) if isinstance(v, list) else str(v)
        for k, v in OPTIONS[name].items()
    }
    return {k: v for k, v in words.items() if not (name == "quantspec" and k == "draft_weights")}


def planned(name: str, target):
    return candidates(target, [MethodSpec(name, name, options_of(name))], None)[0][0].drafter


@torch.inference_mode()
def compare_with_drafts(name: str) -> None:
    """A planned draft has the nodes of real ones, and of the target's own passes as many as a real
    draft makes.
    """
    lm = tiny.target("llama-loops")
    drafter = make(name, lm, **OPTIONS[name])
    seqs = prefill(lm, tiny.prompts(70), 64, Sampler(), SEED)
    drafter.start(seqs)
    speculative_step(lm, drafter, seqs, draft=False)
    most = max(speculative_step(lm, drafter, seqs).tree.size - 1 for _ in range(4))
    outlined = planned(
        name, target_on(outline_of(tiny.CONFIGS["llama-loops"], torch.float32), "CPU")
    )
    count = outlined.price().nodes(outlined.max_depth, UNBOUNDED)
    assert outlined.max_depth == drafter.max_depth and outlined.is_chain == drafter.is_chain
    assert most <= count if name in FOUND else most == count


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIONS)
def test_planned_drafts_are_those_that_are_made(name):
    compare_with_drafts(name)


def test_a_draft_of_another_size_is_seen(monkeypatch):
    levels = ViewPrice.levels
    monkeypatch.setattr(ViewPrice, "levels", lambda self, d, w: levels(self, d, w)[1:])
    with pytest.raises(AssertionError):
        compare_with_drafts("vegas-tree")


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", ["llama", "qwen3_moe", "deepseek_v3", "qwen3_5_text", "mamba", "gpt_oss", "gemma2"]
)
@pytest.mark.parametrize("device", ["H100", "CPU"])
def test_every_method_is_predicted_or_left_out_with_a_reason(kind, device):
    target = target_on(outline_of(AutoConfig.for_model(kind)), device)
    assert all(p.is_meta for p in target.lm.hf.parameters())  # no weights were created
    found, left_out = candidates(target, [], None)
    assert {c.spec.name for c in found} | {
        line.split()[0] for line in left_out
    } == METHODS.keys() - {"plain", "auto", "fill"}
    assert {"vegas", "suffix", "sd"} <= {c.spec.name for c in found}
    for c in found:
        p = predicted(target, c, 4, 1 << 20, Acceptance(0.7, "usual"))
        assert 0 < p.plain < p.step
        assert p.verify > 0
        assert p.draft > 0
        assert 1 < p.tokens <= p.depth + 1


def test_a_wider_draft_is_chosen_where_nodes_cost_nothing():
    target = llama(costs=READING)
    p = predicted(target, one(target, "eagle3"), 1, 1024, Acceptance(0.6, "usual"))
    assert p.nodes == 59
    dear = replace(target, costs=replace(READING, node=1e11))
    assert predicted(dear, one(dear, "eagle3"), 1, 1024, Acceptance(0.6, "usual")).nodes == 1


@pytest.mark.full
def test_machines_are_ordered_by_their_bandwidth():
    times = [
        plain_step(llama(name), [1 << 15]) for name in ("RTX 4090", "A100", "H100", "H200", "B200")
    ]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("levels", [[1] * 7, [4, 16, 16], [10, 7, 7, 7]])
def test_a_share_explains_its_tokens(levels):
    shares = [0.0, 0.2, 0.7, 0.95, 1.0]
    counts = [accepted(s, levels) for s in shares]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == len(levels)
    assert [share_of(n, levels) for n in counts[1:]] == pytest.approx(shares[1:], abs=1e-6)


def record(**changed) -> dict:
    base = {
        "task": "speed",
        "method": "vegas",
        "model": "org/name",
        "context": 4096,
        "pace": False,
        "distinct_3": 0.9,
    }
    base |= {
        "options": {"gamma": 4, "keep_ratio": 0.07},
        "acceptance_per_position": [0.5, 0.25, 0.125, 0.0625],
    }
    return base | changed


def share(records: list[dict], context: int = 4096) -> float | None:
    spec = MethodSpec("vegas", "vegas")
    known = acceptance.of_model(records, "/elsewhere/name")
    found = acceptance.from_records(known, spec, context, lambda depth: [1] * depth)
    return None if found is None else found.share


def check_records() -> None:
    """The acceptance is that of this model's drafts at the nearest context, whatever their
    depth.
    """
    counted = {"num_spec_steps": 10, "num_draft_tokens": 70, "num_accepted_draft_tokens": 70}
    paced = record(pace=True, metrics={"speculative_decoding": counted}, context=1 << 16)
    others = [
        record(model="another"),
        record(method="suffix"),
        record(distinct_3=0.1),
        record(oracle=5.5),
    ]
    others += [record(peer="llama.cpp"), record(options={"keep_ratio": 0.5}), record(pace=True)]
    others = [r | {"acceptance_per_position": [0.9] * 4} for r in others]
    assert share(others) is None
    assert share([record(), *others, paced]) == pytest.approx(0.5, abs=1e-3)
    assert share([record(), paced], 1 << 20) == pytest.approx(1.0, abs=1e-3)


def test_acceptance_comes_from_records_of_the_model():
    check_records()


@pytest.mark.parametrize(
    "planted", [{"of_model": lambda records, model: records}, {"_alike": lambda a, b: True}]
)
def test_records_of_something_else_are_seen(monkeypatch, planted):
    for name, function in planted.items():
        monkeypatch.setattr(acceptance, name, function)
    with pytest.raises(AssertionError):
        check_records()


@pytest.mark.parametrize(
    ("pays", "words"),
    [
        ([], "nowhere"),
        ([1, 2, 4, 8], "everywhere"),
        ([1, 2], "up to 2"),
        ([4, 8], "from 4"),
        ([8], "at 8"),
        ([1, 4], "up to 1, at 4"),
        ([2, 4], "2 to 4"),
    ],
)
def test_contexts_in_words(pays, words):
    assert table.ranges(pays, [1, 2, 4, 8]) == words


@pytest.fixture
def folder(tmp_path):
    """A folder with nothing but a config."""
    (tmp_path / "big").mkdir()
    config = {
        **LLAMA.to_dict(),
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 1 << 17,
    }
    (tmp_path / "big" / "config.json").write_text(json.dumps(config))
    return tmp_path / "big"


def run(capsys, *words) -> SimpleNamespace:
    status = main(["plan", *map(str, words)])
    out, err = capsys.readouterr()
    return SimpleNamespace(status=status, out=out, lines=err.splitlines())


@pytest.mark.full
def test_a_config_alone_is_enough(folder, capsys):
    said = run(capsys, "-m", folder, "--context", 32768, "--rows", 8, "--device", "H200", "--json")
    ranking = json.loads(said.out)["predictions"]["32768"]
    assert said.status == 0 and len(ranking) > 20
    speedups = [p["speedup"] for p in ranking]
    assert speedups == sorted(speedups, reverse=True)
    assert {p["origin"] for p in ranking} == {"usual"}
    stated = run(
        capsys,
        "-m",
        folder,
        "--context",
        32768,
        "--device",
        "H200",
        "--acceptance",
        "vegas=5.5",
        "--json",
    )
    vegas = next(p for p in json.loads(stated.out)["predictions"]["32768"] if p["label"] == "vegas")
    assert vegas["origin"] == "stated" and vegas["tokens"] <= 5.5


@pytest.mark.full
def test_tables_say_what_is_chosen_and_where_it_stops(folder, capsys):
    said = run(
        capsys,
        "-m",
        folder,
        "--device",
        "H200",
        "--methods",
        "vegas,suffix",
        "--acceptance",
        "suffix=1",
    )
    assert said.status == 0 and "1M†" in said.out and "Where each method pays" in said.out
    lines = {line.split()[0]: line for line in said.out.splitlines() if line.strip()}
    assert "plain" in lines["1K"] and "vegas" in lines["512K†"]
    assert "nowhere" in lines["suffix"] and "from" in lines["vegas"]
    one_context = run(
        capsys, "-m", folder, "--device", "CPU", "--context", 1024, "--methods", "quantspec,eagle3"
    )
    assert "eagle3*" in one_context.out and "needs drafter weights" in one_context.out


@pytest.mark.full
def test_options_of_the_target_change_what_is_read(folder):
    plain = {
        name: Planner(str(folder), LoadOptions(**given), "CPU", methods="suffix")
        .ranking(1, 1 << 17)[0]
        .plain
        for name, given in {
            "own": {},
            "float32": {"dtype": "float32"},
            "kv": {"kv": "int8"},
            "w": {"weights": "int4"},
        }.items()
    }
    assert plain["float32"] > plain["own"] > max(plain["kv"], plain["w"])


BAD = [
    (["-m", "nowhere"], "no model folder"),
    (["--device", "H300"], "unknown machine"),
    (["--context", "0"], "token counts from 1"),
    (["--context", "9999999999999"], "token counts from 1"),
    (["--acceptance", "vegas"], "METHOD=TOKENS"),
    (["--acceptance", "vegas=nan"], "METHOD=TOKENS"),
    (["--acceptance", "vegas=9"], "at most 8"),
    (["--acceptance", "x=2"], "not in this plan"),
    (["--methods", "nope"], "unknown method"),
    (["--methods", "hf-static"], "baseline of bench"),
    (["--methods", "auto"], "name those"),
    (["--methods", "quantspec"], "CPUs only"),
    (["--methods", "vegas", "--drafter", "FOLDER"], "leave it out"),
    (["--records", "nowhere"], "cannot read"),
    (["--records", "FOLDER"], "has no .jsonl"),
    (["--kv", "int8"], "is a GPU"),
    (["--kv", "int3"], "choose int8"),
    (["--weights", "int3"], "choose int8 or int4"),
    (["--activations", "int4"], "choose int8 or full"),
    (["--dtype", "float16"], "choose float32 or bfloat16"),
]


@pytest.mark.full
@pytest.mark.parametrize(("words", "says"), BAD)
def test_bad_input_is_one_line(folder, capsys, words, says):
    words = [str(folder) if w == "FOLDER" else w for w in words]
    said = run(capsys, "-m", folder, "--device", "H200", *words)
    assert said.status == 2 and not said.out
    assert len(said.lines) == 1 and says in said.lines[0]


def test_an_absurd_config_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1 << 30}))
    with pytest.raises(InputError, match="layers"):
        outline(str(folder))
