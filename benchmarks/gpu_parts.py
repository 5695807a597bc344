"""The parts of benchmarks/gpu.py: each yields rows of measurements."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, Qwen3Config, StaticCache

from longdraft.backends.architecture import NAME
from longdraft.backends.cuda import CudaBackend
from longdraft.backends.cuda.static_pass import bucket, head_dim
from longdraft.bench.shapes import random_model
from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.engine import generate as engine
from longdraft.methods.self_speculative import vegas, vegas_tree
from longdraft.models.lm import LM
from longdraft.ops import noise, reference
from longdraft.views import View

LLAMA = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
}
LLAMA |= {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 140000,
}
QWEN = LLAMA | {"vocab_size": 151936, "intermediate_size": 12288, "num_hidden_layers": 36}
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SMALL |= {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024}
SPARE = 192  # slots behind the context
SEED = 0
Row = dict[str, Any]
Call = Callable[[], Any]


class Bench:
    """What all parts share: where they run, the sizes, and the time that is left."""

    def __init__(self, tiny: bool, minutes: float):
        self.tiny = tiny
        self.end = perf_counter() + 60 * minutes
        self.device = torch.device("cpu" if tiny else "cuda")
        self.dtype = torch.float32 if tiny else torch.bfloat16
        self.contexts = [64] if tiny else [32768, 131072, 8192]
        self.rows = [1, 3] if tiny else [1, 4, 8, 16, 32, 69, 128]
        self.verify = [4] if tiny else [4, 8, 16, 32, 64, 128]
        self.tree = [2, 2] if tiny else [4, 16, 16, 16, 16]
        self.warm, self.turns, self.inner = (1, 1, 1) if tiny else (3, 7, 4)
        self.heads, self.groups, self.dim = (2, 2, 16) if tiny else (8, 4, 128)
        if tiny:
            from longdraft.ops.triton import functions as gpu

            gpu.PROGRAMS = 8  # each costs the interpreter its time
        self.draws: torch.Generator = torch.Generator(self.device).manual_seed(SEED)

    def draw(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(
            shape, device=self.device, dtype=dtype or self.dtype, generator=self.draws
        )

    def clock(self, call: Call, inner: int) -> float:
        """Milliseconds of a call, the mean of `inner` in a row."""
        if self.tiny:
            begin = perf_counter()
            for _ in range(inner):
                call()
            return (perf_counter() - begin) / inner * 1e3
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(inner):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / inner

    def replayed(self, call: Call, times: int) -> Call:
        """`times` calls as one graph, recorded at the first use; on a CPU as they are."""
        graph: Any = None

        def again() -> None:
            nonlocal graph
            if self.tiny:
                for _ in range(times):
                    call()
                return
            if graph is None:
                call()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(times):
                        call()
            graph.replay()

        return again

    def compare(self, calls: dict[str, Call]) -> Iterator[Row]:
        """Interleaved turns of every call; one that fails says why and takes no further turns."""
        times: dict[str, list[float]] = {}
        for name, call in calls.items():
            try:
                for _ in range(self.warm):  # builds, records the graph, warms up
                    call()
                times[name] = []
            except Exception as error:
                yield {"method": name, "failed": short(error)}
        for _ in range(self.turns):
            for name, ms in times.items():
                ms.append(self.clock(calls[name], self.inner))
        for name, ms in times.items():
            yield {"method": name, "ms": ms, "median_ms": statistics.median(ms)}


def short(error: BaseException) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"[
        :160
    ].replace("|", "/")


@contextmanager
def freed() -> Iterator[None]:
    """Memory is given back at the end."""
    try:
        yield
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def tables(b: Bench, k: Tensor, v: Tensor, nodes: int) -> Any:
    """The reach of a chain of `nodes` behind k, v [1,K,S,D]: the last slots are its own."""
    from longdraft.ops.triton import slots

    def table(*numbers: int) -> Tensor:
        return torch.tensor(numbers, device=b.device)

    S = k.shape[2]
    M = bucket(nodes, 16)
    visible = torch.zeros(1, nodes, M, dtype=torch.uint8, device=b.device)
    visible[0, :, :nodes] = torch.ones(nodes, nodes, device=b.device).tril()
    bounds = table(S - nodes, 0, nodes, 0)[None]
    depth = torch.arange(nodes, device=b.device)[None]
    cache = table(k.data_ptr(), v.data_ptr(), S, 0)
    return slots.SlotKeys(cache, torch.zeros_like(bounds), bounds, visible, depth, bucket(S, 1024))


def errors(b: Bench) -> Iterator[Row]:
    """Norm of the difference from float64 over the norm, of our kernels and of SDPA."""
    from longdraft.ops.triton import functions as gpu
    from longdraft.ops.triton import slots

    S = 200 if b.tiny else 8192
    for nodes in b.rows:
        q = b.draw(1, b.heads * b.groups, nodes, b.dim)
        k = b.draw(1, b.heads, S, b.dim)
        v = b.draw(1, b.heads, S, b.dim)
        mask = torch.ones(nodes, nodes, dtype=torch.bool, device=b.device).tril()
        whole = reference.Segment(k[0].double(), v[0].double(), mask)
        wanted = reference.attend(q[0].double(), [whole], b.dim**-0.5).out
        full = reference.full_mask(whole, nodes)
        found = {
            "over slots": slots.attend(q, b.heads, tables(b, k, v, nodes), b.dim**-0.5)[0][0],
            "over segments": gpu.attend(
                q[0], [reference.Segment(k[0], v[0], mask)], b.dim**-0.5
            ).out,
            "sdpa": F.scaled_dot_product_attention(q, k, v, full, enable_gqa=True)[0].transpose(
                0, 1
            ),
        }
        for name, out in found.items():
            yield {
                "method": name,
                "rows": nodes,
                "context": S,
                "error": float((out - wanted).norm() / wanted.norm()),
            }
    seed = torch.tensor([7], device=b.device)
    position = torch.arange(4, device=b.device)[None]
    apart = gpu.gumbel(seed, position, 1000) - noise.gumbel(seed, position, 1000)
    yield {"method": "noise", "error": float(apart.abs().max())}


class Layer:
    """Attention over keys and values [layers,K,S,D]: each call reads the next layer's, so that none
    stay cached.
    """

    def __init__(self, b: Bench, context: int, nodes: int, k: Tensor, v: Tensor):
        self.b = b
        self.k = k
        self.v = v
        self.nodes = nodes
        self.turn = 0
        self.q = b.draw(1, b.heads * b.groups, nodes, b.dim)
        self.reaches = [tables(b, k[i : i + 1], v[i : i + 1], nodes) for i in range(len(k))]
        self.ends = [
            torch.tensor([0, n], device=b.device, dtype=torch.int32) for n in (nodes, context)
        ]

    def next(self) -> int:
        self.turn = (self.turn + 1) % len(self.k)
        return self.turn

    def ours(self) -> Any:
        from longdraft.ops.triton import slots

        return slots.attend(self.q, self.b.heads, self.reaches[self.next()], self.b.dim**-0.5)

    def dense(self, attend: Callable[..., Any]) -> Any:
        i = self.next()
        return attend(self.q, self.k[i : i + 1], self.v[i : i + 1], enable_gqa=True)

    def packed(self) -> Any:
        from torch.nn.attention.varlen import varlen_attn

        shared = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
        i = self.next()
        q, k, v = (x.transpose(0, 1) for x in (self.q[0], self.k[i], self.v[i]))
        return varlen_attn(q, k, v, *self.ends, self.nodes, k.shape[0], **shared)


def bandwidth(b: Bench, context: int) -> Iterator[Row]:
    """Attention of few rows over one layer of a long cache, GB/s of keys and values; the prefix
    alone, no mask.

    Calls are replayed as graphs, one after another over all layers, so that no launch waits for
    Python.
    """
    from torch.nn.attention.flex_attention import flex_attention

    flex = flex_attention if b.tiny else torch.compile(flex_attention, dynamic=False)
    size = 2 * b.heads * context * b.dim * torch.finfo(b.dtype).bits // 8
    layers = 1 if b.tiny else max(2, (1 << 28) // size)
    k = b.draw(layers, b.heads, context, b.dim)
    v = b.draw(layers, b.heads, context, b.dim)
    for nodes in b.rows:
        layer = Layer(b, context, nodes, k, v)
        calls: dict[str, Call] = {
            "longdraft": layer.ours,
            "sdpa": lambda one=layer: one.dense(F.scaled_dot_product_attention),
            "varlen_attn": layer.packed,
        }
        if nodes in (1, 8):  # every size is compiled anew
            calls["flex_attention"] = lambda one=layer: one.dense(flex)
        for row in b.compare({name: b.replayed(call, layers) for name, call in calls.items()}):
            if "median_ms" in row:
                row["ms"] = [ms / layers for ms in row["ms"]]
                row["median_ms"] /= layers
                row["gb_s"] = size / row["median_ms"] / 1e6
            yield row | {"context": context, "rows": nodes}


def reading(b: Bench) -> Iterator[Row]:
    """What the memory gives: the sum of 2 GiB."""
    big = torch.zeros(1 << (17 if b.tiny else 28), dtype=torch.float64, device=b.device)
    for row in b.compare({"reading memory": big.sum}):
        yield row | {"gb_s": big.numel() * 8 / row["median_ms"] / 1e6}


def model(b: Bench, name: str) -> LM:
    kind, sizes = {"llama-3.1-8b": (LlamaConfig, LLAMA), "qwen3-8b": (Qwen3Config, QWEN)}[name]
    rope = {"rope_type": "default", "rope_theta": 5e5}
    config = kind(**(SMALL if b.tiny else sizes), rope_parameters=rope, tie_word_embeddings=False)
    with freed(), b.device, torch.random.fork_rng([] if b.tiny else [0]):
        torch.manual_seed(SEED)
        lm = LM(AutoModelForCausalLM.from_config(config, dtype=b.dtype), f"random {name}")
    if b.tiny:
        lm.backend = CudaBackend(lm.architecture)
    return lm


def filled(b: Bench, lm: LM, context: int) -> KVCache:
    """A cache of one row whose keys are random: prefilling 128K tokens would take the time of all
    else.
    """
    cache = lm.new_cache(1, context + SPARE)
    c = lm.config
    cache.table(context + SPARE, c.num_hidden_layers, c.num_key_value_heads, head_dim(c), lm.dtype)
    for layer in cache.layers:
        for x in cache.read(layer, 0):
            x.normal_(generator=b.draws)
    cache.length.fill_(context)
    return cache


def spread(b: Bench, lm: LM, widths: list[int]) -> Tree:
    """A tree with this many nodes at each depth; each hangs from one of the level above."""
    tree = Tree.root(torch.ones(1, dtype=torch.long, device=b.device))
    first = 0
    last = 1
    for width in widths:
        parent = (first + torch.arange(width, device=b.device) % last)[None]
        first = tree.size
        last = width
        tree = tree.grow(
            parent, torch.randint(lm.vocab, (1, width), device=b.device, generator=b.draws)
        )
    return tree


def steps(b: Bench, lm: LM, context: int) -> Iterator[Row]:
    """Milliseconds of a step by graphs, and of the same plain step without."""
    cache = filled(b, lm, context)
    layers = lm.config.num_hidden_layers
    indices = max(1, round(0.07 * context))
    chosen = (
        torch.rand(layers, 1, context, device=b.device, generator=b.draws).topk(indices).indices
    )
    view = View(
        chosen.sort(-1).values,
        torch.tensor([context], device=b.device),
        {i: i for i in range(layers)},
    )
    one = spread(b, lm, [])
    eight = spread(b, lm, [1] * 7)
    trees = {f"verify {n} rows": spread(b, lm, [1] * (n - 1)) for n in b.verify}
    trees[f"verify a tree of {1 + sum(b.tree)}"] = spread(b, lm, b.tree)
    calls: dict[str, Call] = {"plain": lambda: lm(one, cache)}
    calls |= {name: lambda tree=tree: lm(tree, cache) for name, tree in trees.items()}
    calls["draft at 7%"] = lambda: lm(one, cache, view=view)
    calls["verify 8 rows, ends scored"] = lambda: lm(
        eight, cache, captured=Captures(CaptureSpec("ends", "logits"))
    )
    calls["verify 8 rows, mean weights"] = lambda: lm(
        eight, cache, captured=Captures(CaptureSpec("mean", "weights"))
    )
    kept = lm.backend
    for row in b.compare(calls):
        recorded = (
            [p for p in kept.passes.values() if p.graph is not None]
            if isinstance(kept, CudaBackend)
            else []
        )
        yield row | {"context": context, "graphs": len(recorded)}
    lm.backend = lm.eager
    try:
        for row in b.compare({"plain, no graph": lambda: lm(one, cache)}):
            yield row | {"context": context}
    finally:
        lm.backend = kept
        if isinstance(kept, CudaBackend):
            kept.passes.clear()


def generate(b: Bench, lm: LM, kind: str, context: int) -> Iterator[Row]:
    """Transformers' generate on a filled cache: a token's time is what more tokens cost."""
    (few, many), c, times = ((2, 4) if b.tiny else (4, 20)), lm.config, []
    k = b.draw(1, c.num_key_value_heads, context, head_dim(c), dtype=lm.dtype)
    ids = torch.ones(1, context + 1, dtype=torch.long, device=b.device)

    def once(count: int) -> float:
        room = {"max_cache_len": context + SPARE}
        cache: Any = StaticCache(config=c, **room) if kind == "static" else DynamicCache(config=c)
        for layer in range(c.num_hidden_layers):
            cache.update(k, k, layer, {"cache_position": torch.arange(context, device=b.device)})
        options = {
            "do_sample": False,
            "min_new_tokens": count,
            "max_new_tokens": count,
            "pad_token_id": 0,
        }
        mask = torch.ones_like(ids)
        return b.clock(
            lambda: lm.hf.generate(ids, attention_mask=mask, past_key_values=cache, **options), 1
        )

    lm.hf.set_attn_implementation("sdpa")
    try:
        # the first compiles, where something is compiled
        times = [once(count) for count in (few, few, many)]
    finally:
        lm.hf.set_attn_implementation(NAME)
    per = (times[2] - times[1]) / (many - few)
    yield {"method": f"generate, {kind} cache", "context": context, "ms": [per], "median_ms": per}


def same_text(b: Bench) -> Iterator[Row]:
    """Greedy text in float32: a chain's and a tree's must be plain decoding's, with graphs and
    without.
    """
    lm = random_model("2x64" if b.tiny else "4x512", "float32", seed=SEED, vocab=512)
    prompt = [[(7 * i) % 500 + 3 for i in range(40 if b.tiny else 600)]]
    count = 4 if b.tiny else 96
    kept = CudaBackend(lm.architecture) if b.tiny else lm.backend
    lm.backend = lm.eager
    wanted = engine.generate(lm, prompt, max_new_tokens=count, eos=())
    lm.backend = kept
    drafters = {
        "plain": None,
        "vegas": vegas(lm, gamma=3, min_budget=16),
        "vegas-tree": vegas_tree(lm, [2, 2], min_budget=16),
    }
    for name, drafter in drafters.items():
        found = engine.generate(lm, prompt, drafter, max_new_tokens=count, eos=())
        yield {
            "method": name,
            "tokens": count,
            "equal": found == wanted,
            "graphs": kept.name == "cuda",
        }
