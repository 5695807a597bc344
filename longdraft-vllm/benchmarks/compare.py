"""Decoding by vLLM plain, by its own speculation and by longdraft's methods: python benchmarks/compare.py MODEL

MODEL is a folder of safetensors. Prompts are code of Python's standard library; each was sent once before, so that
its pages are in vLLM's prefix cache and decoding alone is timed. Each method runs in a process of its own, plain
decoding in the first one and the last one. `--table RECORDS...` writes the table of earlier records.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ngram": {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    "suffix": {"method": "custom_class", "model": "longdraft_vllm.Suffix"},
    "lookup": {"method": "custom_class", "model": "longdraft_vllm.Lookup"},
    "vegas": {"method": "custom_class", "model": "longdraft_vllm.Vegas"},
    "recycle": {"method": "custom_class", "model": "longdraft_vllm.Recycle"},
    "magicdec-stream": {"method": "custom_class", "model": "longdraft_vllm.MagicdecStream"},
}
ORDER = [*METHODS, "plain"]


def prompts(model: str, tokens: int, count: int) -> list[list[int]]:
    """`count` different texts of the standard library, each of exactly `tokens` tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    found: list[list[int]] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"), key=lambda p: p.name):
        ids = tokenizer(path.read_text(encoding="utf-8"), verbose=False)["input_ids"]
        if len(ids) >= tokens:
            found.append(ids[:tokens])
        if len(found) == count:
            return found
    raise SystemExit(f"the standard library has only {len(found)} files of {tokens} tokens")


def measure(args: argparse.Namespace) -> None:
    """One method: prints a line of JSON for each context and number of requests."""
    from vllm import LLM, SamplingParams

    spec = METHODS[args.one]
    options = json.loads(args.options) if args.one == "vegas" else {}
    cells = [tuple(map(int, cell.split("x"))) for cell in args.cells]
    more: dict[str, Any] = {"speculative_config": spec | {"num_speculative_tokens": args.drafts}} if spec else {}
    llm = LLM(
        args.model,
        dtype=args.dtype,
        max_model_len=max(context for context, _ in cells) + args.tokens + 64,
        max_num_seqs=max(count for _, count in cells),
        block_size=args.page,
        disable_log_stats=False,
        enforce_eager=args.eager,
        additional_config={"longdraft": options},
        **more,
    )
    sampling = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
    ranked = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True, logprobs=2)
    for context in sorted({context for context, _ in cells}):
        counts = [count for c, count in cells if c == context]
        texts = [{"prompt_token_ids": ids} for ids in prompts(args.model, context, max(counts))]
        llm.generate(texts, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        for count in counts:
            llm.generate(texts[:count], sampling, use_tqdm=False)  # what is compiled at first use is not timed
            seconds, cpu, outputs, before = [], [], [], counters(llm)
            for _ in range(args.repeat):
                start, started = perf_counter(), process_time()
                found = llm.generate(texts[:count], sampling, use_tqdm=False)
                seconds.append(perf_counter() - start)
                cpu.append(process_time() - started)
                outputs = [list(x.outputs[0].token_ids) for x in found]
            after = counters(llm)
            drafts = after["drafts"] - before["drafts"]
            accepted = after["accepted"] - before["accepted"]
            record = origin(args) | {"method": args.one, "options": options, "context": context, "requests": count}
            record |= {"outputs": outputs}
            if not spec:
                found = llm.generate(texts[:count], ranked, use_tqdm=False)
                record |= {"margins": [[margin(at) for at in x.outputs[0].logprobs] for x in found]}
            record |= {"tokens_per_s": [round(count * args.tokens / s, 2) for s in seconds]}
            record |= {"tokens_per_cpu_s": [round(count * args.tokens / s, 2) for s in cpu]}
            record |= {"tokens_per_draft": round(1 + accepted / drafts, 3) if drafts else 1.0, "drafted": drafts}
            print("RECORD " + json.dumps(record), flush=True)


def counters(llm: Any) -> dict[str, int]:
    names = {"drafts": "vllm:spec_decode_num_drafts", "accepted": "vllm:spec_decode_num_accepted_tokens"}
    values = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
    return {short: int(values.get(name, 0)) for short, name in names.items()}


def margin(logprobs: dict[int, Any]) -> float:
    """How much likelier the best token is than the next one."""
    best, second = sorted((x.logprob for x in logprobs.values()), reverse=True)[:2]
    return round(best - second, 4)


def origin(args: argparse.Namespace) -> dict[str, Any]:
    """Where a record comes from."""
    import torch
    import vllm

    from longdraft.core.provenance import checkout, now

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    given = {name: getattr(args, name) for name in ("tokens", "drafts", "page", "repeat", "dtype", "eager")}
    found = {"vllm": vllm.__version__, "torch": torch.__version__, "cpu": (names or [platform.machine()])[0]}
    return (
        found | {"threads": torch.get_num_threads(), "model": Path(args.model).name, "time": now()} | given | checkout()
    )


def table(records: list[dict[str, Any]]) -> str:
    """A Markdown table: medians, against plain decoding, and how many outputs came out as plain decoding's."""
    names = ["context", "requests", "method", "tokens/s", "against plain", "tokens per step", "outputs as plain's"]
    lines = ["| " + " | ".join(names) + " |", "| ---: | ---: | --- |" + " ---: |" * 4]
    cells = sorted({(r["context"], r["requests"]) for r in records})
    for context, requests in cells:
        here = [r for r in records if (r["context"], r["requests"]) == (context, requests)]
        plain = [r for r in here if r["method"] == "plain"]
        base = median(rate for r in plain for rate in r["tokens_per_s"])
        for r in [plain[0], *(r for r in here if r["method"] != "plain")]:
            rate = base if r in plain else median(r["tokens_per_s"])
            row = [context, requests, r["method"], f"{rate:.1f}", f"{rate / base:.2f}", f"{r['tokens_per_draft']:.2f}"]
            lines.append("| " + " | ".join(map(str, [*row, agreement(plain[0], r)])) + " |")
    return "\n".join(lines)


def agreement(plain: dict[str, Any], found: dict[str, Any]) -> str:
    """How many outputs are equal, and how far apart plain decoding's best two tokens are where one first differs."""
    margins = []
    for a, b, near in zip(plain["outputs"], found["outputs"], plain["margins"], strict=True):
        if a != b:
            margins.append(near[next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)])
    same = f"{len(plain['outputs']) - len(margins)} of {len(plain['outputs'])}"
    return same + (f" (ties within {max(margins):.2f})" if margins else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a folder of safetensors")
    parser.add_argument("--methods", nargs="+", default=ORDER)
    every = ["1024x1", "1024x8", "7168x1", "7168x8"]
    parser.add_argument("--cells", nargs="+", default=every, help="tokens of context x requests at once")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--page", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--options", default="{}", help="of vegas, as JSON")
    parser.add_argument("--table", nargs="+", type=Path, metavar="RECORDS")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("compare.jsonl"))
    args = parser.parse_args()
    if args.table:
        return print(table(read(args.table)))
    if args.model is None:
        parser.error("give a model, or --table RECORDS")
    if args.one:
        return measure(args)
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "3"} | os.environ
    with args.out.open("a") as file:
        for method in args.methods:
            command = [sys.executable, __file__, *sys.argv[1:], "--one", method]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
            lines = [line.removeprefix("RECORD ") for line in done.stdout.splitlines() if line.startswith("RECORD ")]
            print(f"{method}: {len(lines)} measurements, status {done.returncode}", file=sys.stderr)
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
    print(table(read([args.out])))


def read(files: list[Path]) -> list[dict[str, Any]]:
    from longdraft.bench.records import read_records

    return [record for file in files for _, record in read_records(file)]


if __name__ == "__main__":
    main()
