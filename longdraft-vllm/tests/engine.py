"""Runs vLLM in this process: requests that arrive at different steps, and what speculation did."""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass, field
from typing import Any

from vllm import LLM, SamplingParams

COUNT = 4  # drafted tokens
METHODS = {
    "suffix": ("Suffix", {}),
    "lookup": ("Lookup", {}),
    "recycle": ("Recycle", {}),
    "fill": ("Fill", {}),
    "vegas": ("Vegas", {"keep_ratio": 0.2, "min_budget": 32}),
    "magicdec-stream": ("MagicdecStream", {"keep_ratio": 0.2, "min_budget": 32}),
}
SELF = ("vegas", "magicdec-stream")


@dataclass
class Request:
    prompt: list[int]
    tokens: int
    arrives: int = 0  # the step before which it is added
    sampling: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.0})


def mixed(vocab: int, longest: int) -> list[Request]:
    """8 requests of different lengths and arrivals: three begin alike, one repeats itself, one
    fills the context.
    """
    rng = random.Random(3)
    draw = lambda n: [rng.randrange(3, vocab) for _ in range(n)]  # noqa: E731
    shared = draw(100)
    phrase = draw(9)
    prompts = [
        (draw(150), 40, 0),
        (shared + draw(20), 50, 0),
        (draw(5), 30, 1),
        (phrase * 15, 60, 2),
        (shared + draw(45), 40, 6),
        (draw(longest - 20), 100, 7),
        (shared, 30, 15),
        (draw(64), 70, 20),
    ]
    return [Request(*p) for p in prompts]


def config(method: str | None, **options: Any) -> dict[str, Any]:
    """What a user gives vLLM for a method; None: plain decoding."""
    if method is None:
        return {}
    name, own = METHODS[method]
    return {
        "speculative_config": {
            "method": "custom_class",
            "model": f"longdraft_vllm.{name}",
            "num_speculative_tokens": COUNT,
        },
        "additional_config": {"longdraft": {"pace": "off"} | own | options},
        "per_request_spec_decode_metrics": "summary",
    }


def engine(
    model: str, method: str | None, options: dict[str, Any] | None = None, **given: Any
) -> LLM:
    """A small engine: prompts are read in chunks, and not all of the requests fit at once."""
    settings: dict[str, Any] = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 256,
        "max_num_seqs": 5,
        "max_num_batched_tokens": 80,
        "block_size": 32,
        "enable_prefix_caching": True,
        "skip_tokenizer_init": True,
        "disable_log_stats": False,
    }
    return LLM(model, **(settings | config(method, **(options or {})) | given))


@dataclass
class Report:
    outputs: list[list[int]]
    drafted: int
    accepted: int
    preempted: int
    cached: int  # prompt tokens that were found in the cache
    own: list[tuple[int, int]]  # (drafted, accepted) tokens of each request by itself
    # how much likelier each token was than the next best one, if logprobs were asked for
    margins: list[list[float]]


def run(
    model: str, method: str | None, requests: list[Request], options: Any = None, **given: Any
) -> Report:
    llm = engine(model, method, options, **given)
    try:
        return serve(llm, requests)
    finally:
        del llm
        gc.collect()


def serve(llm: LLM, requests: list[Request]) -> Report:
    core = llm.llm_engine
    step = 0
    waiting = dict(enumerate(requests))
    found: dict[int, Any] = {}
    cached = 0
    while waiting or core.has_unfinished_requests():
        for i in [i for i, r in waiting.items() if r.arrives <= step]:
            r = waiting.pop(i)
            sampling = SamplingParams(
                max_tokens=r.tokens, ignore_eos=True, detokenize=False, **r.sampling
            )
            core.add_request(str(i), {"prompt_token_ids": r.prompt}, sampling)
        for done in core.step():
            if done.finished:
                found[int(done.request_id)] = done.outputs[0]
                cached += done.num_cached_tokens or 0
        step += 1
    counts = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
    total = lambda name: int(sum(n for key, n in counts.items() if key == f"vllm:{name}"))  # noqa: E731
    outputs = [found[i] for i in range(len(requests))]
    return Report(
        [list(x.token_ids) for x in outputs],
        total("spec_decode_num_draft_tokens"),
        total("spec_decode_num_accepted_tokens"),
        total("num_preemptions"),
        cached,
        [own(x.spec_decode_metrics) for x in outputs],
        [[margin(at) for at in x.logprobs or []] for x in outputs],
    )


def own(metrics: Any) -> tuple[int, int]:
    """(drafted, accepted) tokens of one request, by vLLM's own count."""
    found = metrics.to_dict() if metrics else {}
    return found.get("num_draft_tokens", 0), found.get("num_accepted_draft_tokens", 0)


def margin(logprobs: dict[int, Any]) -> float:
    best, second = sorted((x.logprob for x in logprobs.values()), reverse=True)[:2]
    return best - second


def off(plain: Report, found: Report) -> list[float]:
    """The margin of plain decoding where an output first differs from it, for each output that
    does.
    """
    margins = []
    for a, b, m in zip(plain.outputs, found.outputs, plain.margins, strict=True):
        if a != b:
            margins.append(m[next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)])
    return margins
