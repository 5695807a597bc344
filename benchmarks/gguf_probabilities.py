"""Whether llama.cpp and longdraft read the same model from a GGUF file, by its probabilities.

    python benchmarks/gguf_probabilities.py FILE --llama-server SERVER

Prompts are random tokens. Of the tokens that llama.cpp thinks likeliest after each, the largest
difference of log-probabilities is printed. Both round inputs to 8 bits, in different order, so the
probabilities of a right reading differ by hundredths, and by more where rounding decides which
experts are chosen: give a random mixture of experts one or two layers. The exit status is 1 beyond
--tolerance. Without a server, llama.cpp is the package xllamacpp (pip install 'longdraft[peers]').
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from arguments import Arguments, at_least, several, status

from longdraft.bench.peers.base import CannotRun
from longdraft.bench.peers.llama_binary import Binary
from longdraft.bench.peers.llama_server import LlamaServerSettings
from longdraft.bench.peers.llama_wheel import Wheel
from longdraft.core import Tree
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.loading import load_lm

COUNT = 20  # tokens that are compared
LETTERS = 256  # prompts are of the first tokens: single bytes in files of random_gguf.py
SPARE = 64  # slots beyond the longest prompt


def prompts(lengths: list[int], seed: int) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(0, LETTERS, (n,), generator=g).tolist() for n in lengths]


def theirs(
    server: Path | None, file: Path, asked: list[list[int]], threads: int
) -> list[dict[int, float]]:
    """{token: log-probability} after each prompt."""
    context = max(map(len, asked)) + SPARE
    try:
        build = Wheel() if server is None else Binary(server, "on")
        running = build.start(LlamaServerSettings(file, context, threads))
        try:
            return [running.likeliest(prompt, COUNT) for prompt in asked]
        finally:
            running.close()
    except CannotRun as error:
        raise InputError(f"llama.cpp cannot run {file}: {error}") from None


@torch.inference_mode()
def largest_difference(lm: LM, prompt: list[int], known: dict[int, float]) -> float:
    tree = Tree.chain(torch.tensor([prompt]))
    logits = lm(tree, lm.new_cache(1, len(prompt) + 1))[0, -1]
    ours = logits.float().log_softmax(-1)
    return max(abs(float(ours[token]) - value) for token, value in known.items())


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="the model, GGUF")
    parser.add_argument("--llama-server", type=Path, metavar="SERVER", help="llama.cpp's binary")
    parser.add_argument(
        "--lengths",
        type=several(at_least(1)),
        default="1,2,8,64,200,600",
        metavar="N,N",
        help="tokens of the prompts, with commas between",
    )
    parser.add_argument(
        "--tolerance",
        type=at_least(0.0),
        default=0.2,
        metavar="X",
        help="the largest difference that counts as rounding",
    )
    parser.share("threads", "seed")
    return parser


def main(words: list[str] | None = None) -> int:
    given = options().parse(words)
    if given.threads:
        torch.set_num_threads(given.threads)
    asked = prompts(given.lengths, given.seed)
    known = theirs(given.llama_server, given.file, asked, torch.get_num_threads())
    lm = load_lm(str(given.file), kv="full")
    found = []
    for prompt, likeliest in zip(asked, known, strict=True):
        found.append(largest_difference(lm, prompt, likeliest))
        print(f"{len(prompt):6} tokens: {found[-1]:.3f}", flush=True)
    return int(max(found) > given.tolerance)


if __name__ == "__main__":
    sys.exit(status(main))
