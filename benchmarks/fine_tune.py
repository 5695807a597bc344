"""Train every matrix of a model for a few hundred steps, so that its weights lie on no 4-bit grid.

    python benchmarks/fine_tune.py FOLDER TEXT...

FOLDER gets the model, as longdraft loads it; TEXT is a file, or a folder of *.txt and *.py, and
there may be several. SmolLM2 from its Q4_1 file lies on a 4-bit grid, so a 4-bit copy of it is
nearly itself and its acceptance says nothing. After this its weights lie anywhere. Prints the
held-out loss and how far a 4-bit copy is from the weights, before and after.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from arguments import Arguments, at_least, status
from transformers import LlamaConfig, LlamaForCausalLM

from longdraft.models.loading import load, quiet
from longdraft.ops.packed import quantized

# tokens of a row; rows whose loss is reported
LENGTH = 512
HELD_OUT = 8


def rows(paths: list[str], tokenizer: object, count: int, seed: int) -> torch.Tensor:
    """[count,LENGTH] tokens from random places of the files, half of them from *.py where there are
    any.
    """
    files = [f for p in map(Path, paths) for f in (sorted(p.rglob("*.*")) if p.is_dir() else [p])]
    kinds = [[f for f in files if f.suffix == kind] for kind in (".txt", ".py")]
    kinds = [k for k in kinds if k]
    rng = torch.Generator().manual_seed(seed)
    out: list[list[int]] = []
    while len(out) < count:
        some = kinds[len(out) % len(kinds)]
        text = some[int(torch.randint(len(some), (1,), generator=rng))].read_text(errors="replace")
        at = int(torch.randint(max(1, len(text) - 8 * LENGTH), (1,), generator=rng))
        ids = tokenizer(text[at : at + 8 * LENGTH], verbose=False)["input_ids"][:LENGTH]  # type: ignore[operator]
        if len(ids) == LENGTH:
            out.append(ids)
    return torch.tensor(out)


def distance(hf: torch.nn.Module) -> float:
    """Mean relative error of the 4-bit copy of each matrix: about 0.08 for weights that lie on no
    grid.
    """
    layers = [
        m for n, m in hf.named_modules() if isinstance(m, torch.nn.Linear) and "lm_head" not in n
    ]
    errors = [
        (quantized(m.weight, 4).dequantized() - m.weight).norm() / m.weight.norm() for m in layers
    ]
    return float(torch.stack(errors).mean().detach())


@torch.no_grad()
def loss_of(hf: torch.nn.Module, ids: torch.Tensor) -> float:
    losses = [hf(input_ids=row[None], labels=row[None]).loss for row in ids]
    return float(torch.stack(losses).float().mean())


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.add_argument("folder", metavar="FOLDER", help="the trained model")
    parser.add_argument("text", metavar="TEXT", nargs="+", help="what it is trained on")
    parser.change("model", "smollm2", "its weights lie on a 4-bit grid")
    parser.share("seed", "threads")
    parser.add_argument("--steps", type=at_least(0), default=300, help="optimizer steps")
    parser.add_argument(
        "--rows", type=at_least(1), default=2, help=f"rows of {LENGTH} tokens a step"
    )
    parser.add_argument("--rate", type=at_least(0.0), default=6e-4, help="learning rate")
    return parser


def main(words: list[str] | None = None) -> None:
    args = options().parse(words)
    quiet(args.threads)
    lm, tokenizer = load(args.model, "float32")
    config = lm.hf.config.to_dict()
    config.pop("quantization_config", None)
    hf = LlamaForCausalLM(LlamaConfig(**config)).float()
    names = dict(lm.hf.named_modules())
    with torch.no_grad():  # packed layers become ordinary ones
        for name, p in hf.named_parameters():
            module, _, leaf = name.rpartition(".")
            p.copy_(getattr(names[module], leaf))
    hf.generation_config = lm.hf.generation_config
    del lm, names
    held_out = rows(args.text, tokenizer, HELD_OUT, args.seed + 1)
    seen = args.steps * args.rows
    data = rows(args.text, tokenizer, seen, args.seed).view(args.steps, args.rows, LENGTH)
    report = {"steps": args.steps, "rows": args.rows, "rate": args.rate, "seed": args.seed}
    report["before"] = {"loss": loss_of(hf, held_out), "int4_error": distance(hf)}
    optimizer = torch.optim.AdamW(
        hf.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    began = time.time()
    for step, ids in enumerate(data):
        # warm-up, then linear decay
        share = min(1.0, (step + 1) / 20, (args.steps - step) / (0.6 * args.steps))
        optimizer.param_groups[0]["lr"] = args.rate * share
        with torch.autocast("cpu", torch.bfloat16):
            loss = hf(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hf.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step} loss {float(loss):.3f} {time.time() - began:.0f} s", flush=True)
    report["after"] = {"loss": loss_of(hf, held_out), "int4_error": distance(hf)}
    hf.to(torch.bfloat16).save_pretrained(args.folder)
    tokenizer.save_pretrained(args.folder)
    Path(args.folder, "fine_tune.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    sys.exit(status(main))
