"""Which of Transformers' language models longdraft runs, and which methods on them.

    python benchmarks/coverage.py
    python benchmarks/coverage.py --kind gpt2 --kind falcon

A tiny random model of every model_type is decoded in its own process: greedily beside Transformers'
own `generate`, and by every method of METHODS beside plain decoding, greedy and at T=1, two prompts
of unequal lengths. Classes: "exact", where a node's numbers are the same bits whatever is computed
beside it; "equal" in float32; "refused" with the line that a user sees; "failed"; "unbuilt", where
the tiny configuration does not make a model. A multimodal model is written to a folder and loaded
from it, and its text compared with what the whole model says.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory
from typing import Any

import tiny_models
import torch
from arguments import Arguments, at_least, status

from longdraft import Sampler, build, generate
from longdraft.core import Captures, CaptureSpec, Tree
from longdraft.core.provenance import checkout, now, versions
from longdraft.drafters.kinds import KINDS
from longdraft.errors import InputError
from longdraft.methods import find
from longdraft.models.classes import is_multimodal
from longdraft.models.lm import LM
from longdraft.models.loading import load_lm, quiet
from longdraft.models.multimodal import placeholders_of
from longdraft.models.support import probe, refuse
from longdraft.recording.record_file import RecordFile

NEW = 12
LENGTHS = (40, 17)
REFUSED = "refused: "  # by a method, which is no failure
VIEW = {"gamma": 3, "min_budget": 12}
METHODS: dict[str, dict[str, Any]] = {  # options that suit prompts of 40 tokens
    "lookup": {"n": 2, "count": 5},
    "suffix": {"nodes": 6},
    "recycle": {"nodes": 12},
    "magicdec-stream": VIEW,
    "magicdec-snapkv": VIEW,
    "magicdec-quest": VIEW | {"page": 4},
    "vegas": VIEW,
    "vegas-tree": {"widths": [3, 3], "min_budget": 12},
    "quantspec": {"gamma": 3},
    "specextend": {"widths": [2, 3], "min_budget": 12, "chunk": 8, "every": 2},
    "triforce": {"budget": 24, "window": 8, "sink": 2, "gamma": 4},
    "longspec": {"widths": [3, 4], "window": 16},
    "medusa": {"widths": [12, 3]},
    "tokenswift": {"budget": 16, "sink": 4, "widths": [1, 3, 2, 2], "n": 3, "topk": 4},
    "eagle3": {"topk": 6, "levels": 2, "nodes": 12},
    "dflash": {"nodes": 30, "window": 16},
    "mtp": {"widths": [12, 3], "sink": 3, "window": 20},
    "sd": {"gamma": 3},
    "budgetdraft": {"gamma": 3, "budget": 24, "every": 2},
}


def examined(kind: str, methods: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What became of one kind: its class, and why."""
    record: dict[str, Any] = named(kind) | {"layers": []}
    try:
        config = tiny_models.config(kind)
        unbuilt = ""
        record["layers"] = sorted(
            set(getattr(config.get_text_config(), "layer_types", None) or ["full_attention"])
        )
    except Exception as error:
        config = tiny_models.default(kind)
        unbuilt = line(error)
    try:
        refuse(config)
        if unbuilt:
            return record | {"class": "unbuilt", "why": unbuilt}
        try:
            hf = tiny_models.build(config)
        except Exception as error:
            return record | {"class": "unbuilt", "why": line(error)}
        if not is_multimodal(config):
            probe(hf)
        return record | decoded(hf, methods)
    except InputError as error:
        return record | {"class": "refused", "why": line(error)}
    except Exception as error:
        return record | {"class": "failed", "why": f"{type(error).__name__}: {line(error)}"}


def named(kind: str) -> dict[str, str]:
    return {"kind": kind, "group": "causal" if kind in tiny_models.CAUSAL else "multimodal"}


def decoded(hf: Any, methods: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Plain decoding beside Transformers' own, and every method beside plain decoding."""
    images = placeholders_of(hf.config)
    prompts = [
        [3 if token in images else token for token in tiny_models.prompt(n)] for n in LENGTHS
    ]
    hf.generation_config.eos_token_id = None
    text = stored_and_loaded(hf) if is_multimodal(hf.config) else None
    hf.set_attn_implementation("eager")
    expected = [by_transformers(hf, prompt) for prompt in prompts]
    lm = text or LM(hf, "tiny")
    samplers = {"greedy": Sampler(), "T=1": Sampler(temperature=1.0)}
    plain = {
        name: generate(lm, prompts, max_new_tokens=NEW, sampler=s, eos=())
        for name, s in samplers.items()
    }
    if plain["greedy"] != expected:
        return {"class": "failed", "why": "greedy output differs from Transformers' generate"}
    if not reads_states(lm, prompts[0]):
        return {
            "class": "failed",
            "why": "its head does not follow from the state after the last layer",
        }
    faults = {
        name: fault(lm, name, options, prompts, samplers, plain)
        for name, options in methods.items()
    }
    record = {
        "class": "exact" if lm.exact else "equal",
        "backend": lm.backend.name,
        "methods": faults,
    }
    listed = "; ".join(
        f"{name}: {why}" for name, why in faults.items() if why and not why.startswith(REFUSED)
    )
    return record | ({"class": "failed", "why": listed[:300]} if listed else {})


def stored_and_loaded(hf: Any) -> LM:
    """The text model of a multimodal one, as `load` takes it out of a folder."""
    with TemporaryDirectory() as folder:
        hf.save_pretrained(folder)
        try:
            return load_lm(folder, "float32", "cpu")
        except InputError as error:
            raise InputError(str(error).replace(folder, "the saved model")) from error


def by_transformers(hf: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    out = hf.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def reads_states(lm: LM, prompt: list[int]) -> bool:
    """Whether LM.head of the state after the last layer has the logits of the pass."""
    captured = Captures(CaptureSpec(hidden=(last := lm.depth,)))
    logits = lm(Tree.chain(torch.tensor([prompt])), lm.new_cache(1, len(prompt)), captured=captured)
    return torch.allclose(lm.head(captured.states[last]), logits, rtol=1e-3, atol=1e-3)


def fault(
    lm: LM, name: str, options: dict[str, Any], prompts: list, samplers: dict, plain: dict
) -> str:
    """Why the method's output is not plain decoding's; empty: it is. Methods that need weights get
    random ones.
    """
    try:
        needs = find(name).needs
        drafter = build(name, lm, KINDS[needs].random(lm, 1) if needs in KINDS else None, **options)
        for label, sampler in samplers.items():
            if (
                generate(lm, prompts, drafter, max_new_tokens=NEW, sampler=sampler, eos=())
                != plain[label]
            ):
                return f"another output ({label})"
    except InputError as error:
        return f"{REFUSED}{line(error)}"
    except Exception as error:
        return f"{type(error).__name__}: {line(error)}"
    return ""


def line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def in_own_process(kind: str, seconds: float) -> dict[str, Any]:
    """One kind's record, from a process that may fail or hang."""
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--child", kind],
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return named(kind) | {"class": "failed", "why": f"no answer within {seconds:.0f} s"}
    except (IndexError, json.JSONDecodeError):
        return named(kind) | {
            "class": "failed",
            "why": (done.stderr.strip().splitlines() or ["no output"])[-1][:300],
        }


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    known = tiny_models.KINDS
    parser.add_argument(
        "--kind", action="append", choices=known, metavar="KIND", help="only this model_type"
    )
    parser.add_argument(
        "--processes", type=at_least(1), default=2, metavar="N", help="kinds that run at a time"
    )
    parser.add_argument(
        "--timeout", type=at_least(1), default=300, metavar="N", help="seconds for one kind"
    )
    parser.add_argument("--child", choices=known, help=argparse.SUPPRESS)
    parser.share("out")
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    if given.child:
        warnings.simplefilter("ignore")
        quiet(1)
        print(json.dumps(examined(given.child, METHODS)))
        return
    log = RecordFile(given.out)
    counts = Counter[str]()
    shared = {
        "task": "coverage",
        "versions": versions(),
        "time": now(),
        "command": given.command,
    } | checkout()
    with ThreadPoolExecutor(given.processes) as pool:
        for record in pool.map(
            lambda kind: in_own_process(kind, given.timeout), given.kind or tiny_models.KINDS
        ):
            counts[record["class"]] += 1
            log.append(shared | record)
            print(
                f"{record['kind']:24} {record['class']:8} {record.get('why', '')}"[:200].rstrip(),
                flush=True,
            )
    print(", ".join(f"{name} {count}" for name, count in counts.most_common()))


if __name__ == "__main__":
    sys.exit(status(main))
