"""A model may be used from any thread: every call gives what it gives alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support import tiny
from support.listed import BUILD

from longdraft import Sampler, generate
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.models.lm import LM

THREADS = 4
ROUNDS = 50
NEW = 12
METHODS = {"plain": lambda t: None, "vegas": BUILD["vegas"], "medusa": BUILD["medusa"]}


def texts(lm: LM, name: str, prompts: list[list[int]], threads: int) -> list[list[int]]:
    """What each prompt gives, prompt i with seed i, decoded on so many threads at once."""

    def one(i: int) -> list[int]:
        sampler = Sampler(temperature=1.0) if i % 2 else Sampler()
        return generate(
            lm, [prompts[i]], METHODS[name](lm), max_new_tokens=NEW, sampler=sampler, seed=i
        )[0]

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(len(prompts))))


@pytest.mark.full
@pytest.mark.parametrize("model", ["llama", pytest.param("qwen3-torch", marks=pytest.mark.weekly)])
def test_four_threads_give_what_one_gives(model):
    """Fifty rounds, a third of them each of plain decoding, vegas and medusa, all on one model."""
    lm = tiny.target(model)
    prompts = tiny.prompts(40, 31, 52, 23, 44, 35, 26, 47)
    alone = {name: texts(lm, name, prompts, 1) for name in METHODS}
    for r in range(ROUNDS if lm.backend.name == "native" else 6):  # by torch a round takes seconds
        name = list(METHODS)[r % len(METHODS)]
        assert texts(lm, name, prompts, THREADS) == alone[name], f"round {r}: {name}"


@pytest.mark.full
def test_four_threads_give_what_one_gives_in_bfloat16():
    lm = LM(tiny.stock("llama", dtype=torch.bfloat16))
    prompts = tiny.prompts(40, 31, 52, 23)
    alone = texts(lm, "vegas", prompts, 1)
    assert all(texts(lm, "vegas", prompts, THREADS) == alone for _ in range(10))


@pytest.mark.full
@torch.inference_mode()
def test_states_and_logits_of_a_pass_are_its_own():
    """While one thread reads states and projects them, others run passes of other tokens."""
    lm = tiny.target("qwen3-torch")
    chains = [Tree.chain(torch.tensor([p])) for p in tiny.prompts(20, 20, 20, 20)]

    @torch.inference_mode()
    def states(tree: Tree) -> list[torch.Tensor]:
        captured = Captures(CaptureSpec(hidden=(0, lm.config.num_hidden_layers)))
        logits = lm(tree, lm.new_cache(1, 64), captured=captured)
        return [
            logits,
            *captured.states.values(),
            lm.head(captured.states[lm.config.num_hidden_layers]),
        ]

    alone = [states(tree) for tree in chains]
    for _ in range(20):
        with ThreadPoolExecutor(THREADS) as pool:
            for found, want in zip(pool.map(states, chains), alone, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_no_module_is_changed_while_it_is_used():
    """The model may be running in another thread, outside of longdraft too."""
    lm = tiny.target("qwen3-torch")

    def tables() -> list:
        return [
            (set(m.__dict__), dict(m._modules), len(m._forward_pre_hooks)) for m in lm.hf.modules()
        ]

    before = tables()
    seen = []
    hook = lm.hf.lm_head.register_forward_pre_hook(lambda *_: seen.append(tables()))
    try:
        with lm.architecture.capturing(Captures(CaptureSpec(hidden=(1,)))):
            lm.head(torch.zeros(1, lm.config.hidden_size))
    finally:
        hook.remove()
    assert len(seen) == 1
    assert [(names, modules) for names, modules, _ in seen[0]] == [
        (names, modules) for names, modules, _ in before
    ]


FORKED = """
import os, sys
import torch
sys.path.insert(0, {tests!r})
from support import tiny
from longdraft import InputError, generate
from longdraft.core.tree import Tree
torch.set_num_threads(2)
lm = tiny.target("llama")
generate(lm, tiny.prompts(200), max_new_tokens=2)
torch.ones(1 << 20).sum()  # torch's own threads are there
tree, cache = Tree.root(torch.tensor([5])), lm.new_cache(1, 8)
child = os.fork()
if child == 0:
    try:
        {call}
        print("no error", flush=True)
    except InputError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.full
@pytest.mark.timing
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize(
    "call",
    [
        pytest.param("generate(lm, tiny.prompts(200), max_new_tokens=2)", id="generate"),
        pytest.param(
            "lm.prefill(tiny.prompts(200)[0], lm.new_cache(1, 256))",
            id="prefill",
            marks=pytest.mark.weekly,
        ),
        pytest.param("lm(tree, cache)", id="a pass", marks=pytest.mark.weekly),
    ],
)
def test_a_forked_child_is_told_and_does_not_hang(call):
    """With two threads, as a user has them: one thread alone would not hang."""
    code = FORKED.format(tests=str(Path(__file__).parents[1]), call=call)
    words = [sys.executable, "-c", code]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("the child hangs")
    assert "forked" in said and "spawn" in said
