"""Decoding by vLLM plain, by its own speculation and by longdraft's methods: python benchmarks/compare.py MODEL

MODEL is a folder of safetensors. Prompts are code of Python's standard library; each was sent once before, so that
its pages are in vLLM's prefix cache and decoding alone is timed. Each method runs in a process of its own. Beside the
time that passed, the processor time is given: with one thread (OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind) it
says on a busy machine what the time would be on a quiet one.
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
    "magicdec-stream": {"method": "custom_class", "model": "longdraft_vllm.MagicdecStream"},
}


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
        **more,
    )
    sampling = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
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
            record = {"method": args.one, "context": context, "requests": count, "outputs": outputs}
            record |= {"tokens_per_s": [round(count * args.tokens / s, 2) for s in seconds]}
            record |= {"tokens_per_cpu_s": [round(count * args.tokens / s, 2) for s in cpu]}
            record |= {"tokens_per_draft": round(1 + accepted / drafts, 3) if drafts else 1.0, "drafts": drafts}
            print("RECORD " + json.dumps(record), flush=True)


def counters(llm: Any) -> dict[str, int]:
    names = {"drafts": "vllm:spec_decode_num_drafts", "accepted": "vllm:spec_decode_num_accepted_tokens"}
    values = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
    return {short: int(values.get(name, 0)) for short, name in names.items()}


def table(records: list[dict[str, Any]]) -> str:
    """A Markdown table: medians, against plain decoding, and how many outputs came out as plain decoding's."""
    plain = {(r["context"], r["requests"]): r for r in records if r["method"] == "plain"}
    names = ["context", "requests", "method", "tokens/s", "per processor second", "against plain", "tokens per draft"]
    lines = ["| " + " | ".join([*names, "outputs as plain's"]) + " |", "| ---: | ---: | --- |" + " ---: |" * 5]
    for r in sorted(records, key=lambda r: (r["context"], r["requests"])):
        base = plain.get((r["context"], r["requests"]), r)
        rate, cpu = median(r["tokens_per_s"]), median(r["tokens_per_cpu_s"])
        same = sum(a == b for a, b in zip(r["outputs"], base["outputs"], strict=True))
        cells = [r["context"], r["requests"], r["method"], f"{rate:.1f}", f"{cpu:.1f}"]
        cells += [f"{cpu / median(base['tokens_per_cpu_s']):.2f}", f"{r['tokens_per_draft']:.2f}"]
        lines.append("| " + " | ".join(map(str, [*cells, f"{same} of {r['requests']}"])) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    every = ["1024x1", "1024x8", "7168x1", "7168x8"]
    parser.add_argument("--cells", nargs="+", default=every, help="tokens of context x requests at once")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--page", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("compare.jsonl"))
    args = parser.parse_args()
    if args.one:
        return measure(args)
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "3"} | os.environ
    records = []
    with args.out.open("a") as file:
        for method in args.methods:
            command = [sys.executable, __file__, *sys.argv[1:], "--one", method]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
            lines = [line.removeprefix("RECORD ") for line in done.stdout.splitlines() if line.startswith("RECORD ")]
            print(f"{method}: {len(lines)} measurements, status {done.returncode}", file=sys.stderr)
            records += [json.loads(line) for line in lines]
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
    print(table(records))
    print(f"\n{versions()}")


def versions() -> str:
    import torch
    import vllm

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cpu = (names or [platform.machine()])[0]
    return f"vLLM {vllm.__version__}, torch {torch.__version__}, {os.cpu_count()} cores of {cpu}"


if __name__ == "__main__":
    main()
