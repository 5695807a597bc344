"""How often greedy hf_generate and Transformers' generate choose the same tokens.

    python benchmarks/hf_agreement.py -m bundled

The model is `bundled` or a folder of safetensors, as `longdraft export -m smollm2 --out FOLDER`
writes. The prompts are code of Python's standard library. Every token of Transformers' output is
compared: after a difference, both continue from Transformers' text. The control is Transformers
itself with the same weights in float32, which rounds nothing to bfloat16; Transformers with another
attention implementation is measured too. The exit status is 1 if a difference is no tie
(longdraft/audit/ties.py), or if there are too many ties beside the control's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from arguments import Arguments, at_least, status
from hf_model import model_and_prompts
from torch import Tensor

import longdraft
from longdraft.audit.ties import TOLERANCE, most_ties
from longdraft.hf.wrapped import lm_of
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance

# of Transformers' output, and the other one
ATTENTION = "sdpa"
OTHER = "eager"
CONTROL = "transformers in float32"
Run = Callable[[list[int], int], list[int]]  # (text, how many tokens) -> the next tokens


@dataclass
class Agreement:
    """The differences of an engine from Transformers' outputs of `tokens` tokens in all: output,
    position, gap.

    gap: how much better Transformers scored its own token than the engine's.
    """

    tokens: int = 0
    outputs: int = 0
    found: list[tuple[int, int, float]] = field(default_factory=list)

    @property
    def equal(self) -> int:
        """Outputs without a difference."""
        return self.outputs - len({output for output, _, _ in self.found})

    @property
    def largest(self) -> float:
        return max((gap for *_, gap in self.found), default=0.0)

    def add(self, prompt: list[int], said: list[int], logits: Tensor, run: Run) -> None:
        """Compare one output, with its logits [N,V]."""
        at = 0
        while at < len(said):
            ours = run(prompt + said[:at], len(said) - at)
            at += next(
                (i for i, (x, y) in enumerate(zip(said[at:], ours, strict=True)) if x != y),
                len(ours),
            )
            if at < len(said):
                other = ours[at - len(said)]
                self.found.append(
                    (self.outputs, at, float(logits[at, said[at]] - logits[at, other]))
                )
                at += 1
        self.outputs, self.tokens = self.outputs + 1, self.tokens + len(said)

    def fault(self, control: Agreement, tolerance: float) -> str | None:
        """Why this is not rounding, in words."""
        if self.largest > tolerance:
            return f"a token scored {self.largest:.3g} below Transformers' own: no tie"
        most = most_ties(self.tokens, len(control.found), control.tokens)
        if len(self.found) > most:
            return (
                f"{len(self.found)} ties in {self.tokens} tokens: {most} at most, beside the "
                "control's"
            )
        return None


def greedy(model: Any, text: list[int], new: int, **settings: Any) -> Any:
    """What `generate` returns, with every token of the text read."""
    ids = torch.tensor([text])
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        **settings,
    )


def reference(model: Any, prompt: list[int], new: int) -> tuple[list[int], Tensor]:
    """Transformers' output, and its logits [N,V] in float32."""
    found = greedy(model, prompt, new, return_dict_in_generate=True, output_logits=True)
    return found.sequences[0, len(prompt) :].tolist(), torch.cat(found.logits).float()


def transformers_by(model: Any) -> Run:
    return lambda text, count: greedy(model, text, count)[0, len(text) :].tolist()


def longdraft_by(model: Any, method: str, **options: Any) -> Run:
    given = {"custom_generate": longdraft.hf_generate, "method": method} | options
    return lambda text, count: greedy(model, text, count, **given)[0, len(text) :].tolist()


def compare(
    model: Any, prompts: list[list[int]], new: int, runs: dict[str, Run]
) -> dict[str, Agreement]:
    """Of the control and of each engine."""
    model.set_attn_implementation(ATTENTION)
    runs = {CONTROL: transformers_by(deepcopy(model).float()), **runs}
    found = {name: Agreement() for name in runs}
    for prompt in prompts:
        said, logits = reference(model, prompt, new)
        for name, run in runs.items():
            found[name].add(prompt, said, logits, run)
    return found


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.share("model", "dtype", "methods", "threads", "out")
    parser.change("context", 512, "every output is decoded by five engines")
    parser.change("max-new-tokens", 64, "every output is decoded by five engines")
    parser.add_argument("--outputs", type=at_least(1), default=32, help="outputs to compare")
    return parser


def main(words: list[str] | None = None) -> int:
    given = options().parse(words)
    log = RecordFile(given.out)
    model, prompts = model_and_prompts(given, given.outputs)
    other = deepcopy(model)
    other.set_attn_implementation(OTHER)
    runs = {f"transformers, {OTHER} attention": transformers_by(other)}
    runs |= {f"longdraft, {method}": longdraft_by(model, method) for method in given.methods}
    found = compare(model, prompts, given.max_new_tokens, runs)
    shared = provenance(lm_of(model), 0) | {"task": "hf_agreement", "command": given.command}
    shared |= {"context": given.context, "attention": ATTENTION, "new_tokens": given.max_new_tokens}
    for name, agreed in found.items():
        log.append(
            shared
            | {
                "engine": name,
                "equal": agreed.equal,
                "outputs": agreed.outputs,
                "found": agreed.found,
            }
        )
    longdrafts = {name: agreed for name, agreed in found.items() if name.startswith("longdraft")}
    faults = {
        name: agreed.fault(found[CONTROL], TOLERANCE[given.dtype])
        for name, agreed in longdrafts.items()
    }
    for name, agreed in found.items():
        rate = (
            f"{len(agreed.found)} ties in {agreed.tokens} tokens, largest gap {agreed.largest:.3g}"
        )
        print(
            f"{name}: {agreed.equal} of {agreed.outputs} outputs are equal; "
            f"{faults.get(name) or rate}"
        )
    return int(any(faults.values()))


if __name__ == "__main__":
    sys.exit(status(main))
