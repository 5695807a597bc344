"""What `torchrun` starts for test_tensor_parallel.py: one process, which writes what it found to a
file in OUT.

divided.py halves FOLDER OUT    every method on "llama"; of every model in FOLDER single passes and
bytes; two commands divided.py faults FOLDER OUT    processes that disagree, and one that does not
answer
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from support.listed import OPTIONS, make
from support.tiny import BASE

from longdraft import Sampler, Stats, generate
from longdraft.cli import main
from longdraft.core import Captures, CaptureSpec, Tree
from longdraft.core.processes import Team, joined
from longdraft.errors import InputError
from longdraft.models.identity import fingerprint
from longdraft.models.lm import LM
from longdraft.models.loading import load_lm
from longdraft.models.memory_traffic import weights_of

SAMPLERS = {"greedy": Sampler(), "T=1": Sampler(1.0, top_p=0.9, penalty=1.1)}
GREEDY = ("lookup", "vegas", "longspec", "specextend", "quantspec")
NEW = 16
WAIT = 8.0  # seconds; also for a process that starts later


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    motif = torch.randint(3, BASE["vocab_size"], (20,), generator=generator).tolist()
    return [motif * 3 + motif[:10], motif[5:] + motif]


def decode(lm: LM, sampler: str, drafter=None) -> list[list[int]]:
    return generate(
        lm, prompts(), drafter, max_new_tokens=NEW, sampler=SAMPLERS[sampler], seed=5, stats=Stats()
    )


@torch.inference_mode()
def logits(lm: LM, only: int | None = None) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Of a small tree after a prompt, and the attention scores of its nodes in all layers or
    one.
    """
    cache = lm.new_cache(1, 96)
    lm.prefill(prompts()[0], cache)
    captured = Captures(CaptureSpec(rows="mean", only=only))
    return lm(Tree.chain(torch.tensor([[5, 6, 7]])), cache, captured=captured), captured.scores


def halves(folder: Path, team: Team) -> dict:
    found = {"methods": methods(folder / "llama", team), "models": models(folder, team)}
    return found | {"statuses": commands(folder.parent)}


def commands(out: Path) -> list[int]:
    """The statuses of an audit and of a benchmark on the bundled model, which write a file each."""
    (out / "text.txt").write_text(
        "".join(f"It was the {n}th day, and nobody had seen the boat. " for n in range(40))
    )
    common = ["--prompt-file", str(out / "text.txt"), "--dtype", "float32", "--temperature", "1"]
    audit = [
        "--prompt-tokens",
        "192",
        "--tokens",
        "16",
        "-o",
        "min_budget=32",
        "--out",
        str(out / "audit.json"),
    ]
    bench = [
        "--context",
        "192",
        "--max-new-tokens",
        "8",
        "--repeat",
        "1",
        "--methods",
        "plain,suffix",
    ]
    bench += ["--out", str(out / "bench.jsonl")]
    return [main(["audit", *common, *audit]), main(["bench", "speed", *common, *bench])]


def methods(folder: Path, team: Team) -> dict:
    """Sampled by every method; greedily by those that do something of their own with two
    processes.
    """
    lm = load_lm(str(folder), "float32", team=team)
    said = {"exact": lm.exact, "backend": lm.backend.name}
    for sampler in SAMPLERS:
        plain = said[f"plain {sampler}"] = decode(lm, sampler)
        for name in OPTIONS if sampler != "greedy" else GREEDY:
            found = decode(lm, sampler, make(name, lm, **OPTIONS[name]))
            said[f"{name} {sampler}"] = found == plain
    return said


def models(folder: Path, team: Team) -> dict:
    said = {}
    for place in sorted(folder.iterdir()):
        lm = load_lm(str(place), "float32", team=team)
        found, scores = logits(lm)
        last = lm.config.num_hidden_layers - 1
        cache = lm.new_cache(1, 8)
        lm.prefill([5, 6, 7], cache)
        said[place.name] = {
            "logits": found.tolist(),
            "scores": {layer: s.tolist() for layer, s in scores.items()},
            "last": [s.tolist() for s in logits(lm, last)[1].values()],
            "weights": sum(p.nbytes for p in {id(p): p for p in lm.hf.parameters()}.values()),
            "read": weights_of(lm).read(1),
            "slot": cache.nbytes(1),
            "digest": fingerprint(lm)["digest"],
            "rows": lm.head_rows(torch.tensor([3, 60])).weight.tolist(),
            "tokens": decode(lm, "T=1", make("vegas", lm, gamma=4, min_budget=16)),
        }
    return said


def faults(folder: Path, team: Team) -> dict:
    lm = load_lm(str(folder), "float32", team=team)
    said = {}
    for name, seed in (("another seed", team.rank), ("another prompt", 0)):
        prompt = [5, 6, 7 + (team.rank if name == "another prompt" else 0)]
        try:
            generate(lm, [prompt], max_new_tokens=NEW, sampler=Sampler(1.0), seed=seed)
        except InputError as error:
            said[name] = str(error)
    if team.rank:
        time.sleep(WAIT + 3)
    try:
        decode(lm, "greedy")
    except InputError as error:
        said["late"] = str(error)
    return said


if __name__ == "__main__":
    torch.set_num_threads(1)
    what = sys.argv[1]
    folder = Path(sys.argv[2])
    out = Path(sys.argv[3])
    team = joined(WAIT if what == "faults" else 60.0)
    found = {"halves": halves, "faults": faults}[what](folder, team)
    (out / f"{what}{team.rank}.json").write_text(json.dumps(found))
