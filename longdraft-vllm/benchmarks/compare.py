"""Decoding by vLLM plain, by its own speculation and by longdraft's methods: python
benchmarks/compare.py MODEL

MODEL is a folder of safetensors. Prompts are code of Python's standard library; each was sent once
before, so that its pages are in vLLM's prefix cache and decoding alone is timed. Each method is a
process of its own. A few of them and plain decoding wait beside each other and are timed in turn,
one at a time, so that what else the machine does meets all of them. Plain decoding has two
processes, because one may be slower than another for as long as it lives: a method's ratio is the
median over rounds of the mean of their times in the same round over its time, and theirs show what
a difference between processes can be. "suffix/off" is suffix with the option pace=off. `--table
RECORDS...` writes the table of earlier records.
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
from statistics import mean, median
from time import perf_counter, process_time
from typing import Any

METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain again": {},
    "ngram": {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    "suffix": {"method": "custom_class", "model": "longdraft_vllm.Suffix"},
    "lookup": {"method": "custom_class", "model": "longdraft_vllm.Lookup"},
    "vegas": {"method": "custom_class", "model": "longdraft_vllm.Vegas"},
    "recycle": {"method": "custom_class", "model": "longdraft_vllm.Recycle"},
    "magicdec-stream": {"method": "custom_class", "model": "longdraft_vllm.MagicdecStream"},
}
PLAIN = "plain", "plain again"
RECORD = "RECORD "  # before each answer of a process


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


def work(args: argparse.Namespace) -> None:
    """The process of one method: does what each line of its input says, and answers with a line of
    JSON.
    """
    from vllm import LLM, SamplingParams

    method, _, pace = args.one.partition("/")
    spec = METHODS[method]
    options = (json.loads(args.options) if method == "vegas" else {}) | (
        {"pace": pace} if pace else {}
    )
    cells = [cell_of(name) for name in args.cells]
    more: dict[str, Any] = (
        {"speculative_config": spec | {"num_speculative_tokens": args.drafts}} if spec else {}
    )
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
    texts = {
        context: prompts(args.model, context, max(n for c, n in cells if c == context))
        for context, _ in cells
    }

    def run(cell: str, **sampling: Any) -> list[Any]:
        context, count = cell_of(cell)
        given = SamplingParams(temperature=0, ignore_eos=True, **sampling)
        asked = [{"prompt_token_ids": ids} for ids in texts[context][:count]]
        return llm.generate(asked, given, use_tqdm=False)

    print(RECORD + json.dumps(origin(args) | {"method": args.one, "options": options}), flush=True)
    for line in sys.stdin:
        what, cell = line.split()
        context, count = cell_of(cell)
        found: dict[str, Any] = {"context": context, "requests": count}
        if what == "warm":  # reads the prompts; and what is compiled at first use is not timed
            run(cell, max_tokens=1)
            run(cell, max_tokens=args.tokens)
        elif what == "time":
            before = counters(llm)
            start = perf_counter()
            started = process_time()
            outputs = run(cell, max_tokens=args.tokens)
            found |= {"seconds": perf_counter() - start, "cpu": process_time() - started}
            found |= {name: after - before[name] for name, after in counters(llm).items()}
            found |= {"outputs": [list(x.outputs[0].token_ids) for x in outputs]}
        elif what == "rank":
            ranked = run(cell, max_tokens=args.tokens, logprobs=2)
            found |= {"margins": [[margin(at) for at in x.outputs[0].logprobs] for x in ranked]}
        print(RECORD + json.dumps(found), flush=True)


def cell_of(name: str) -> tuple[int, int]:
    context, count = map(int, name.split("x"))
    return context, count


class Process:
    """A method's process, which works only while it is asked."""

    def __init__(self, method: str, environment: dict[str, str]):
        command = [sys.executable, __file__, *sys.argv[1:], "--one", method]
        # cells
        self.method = method
        self.warm = set[str]()
        self.pipe = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.origin = self._answer()

    def ask(self, what: str, cell: str) -> dict[str, Any]:
        assert self.pipe.stdin
        self.pipe.stdin.write(f"{what} {cell}\n")
        return self._answer()

    def warm_up(self, cell: str) -> None:
        if cell not in self.warm:
            self.ask("warm", cell)
            self.warm.add(cell)

    def _answer(self) -> dict[str, Any]:
        assert self.pipe.stdout
        for line in self.pipe.stdout:
            if line.startswith(RECORD):
                return json.loads(line.removeprefix(RECORD))
        raise SystemExit(f"{self.method}: vLLM ended with status {self.pipe.wait()}")

    def end(self) -> None:
        assert self.pipe.stdin
        self.pipe.stdin.close()
        self.pipe.wait()


def compare(
    plain: list[Process], others: list[Process], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Records of these processes, timed in turn; those of plain decoding only with the first
    others.
    """
    everyone = [*plain, *others]
    records = []
    for cell in args.cells:
        new = others if cell in plain[0].warm else everyone
        for process in everyone:
            process.warm_up(cell)
        rounds = [
            {p.method: p.ask("time", cell) for p in order(everyone, i)} for i in range(args.repeat)
        ]
        base = [mean(r[p.method]["seconds"] for p in plain) for r in rounds]
        for process in new:
            found = record(process, [r[process.method] for r in rounds], args)
            ratios = [
                round(s / r[process.method]["seconds"], 3)
                for s, r in zip(base, rounds, strict=True)
            ]
            more = {"margins": process.ask("rank", cell)["margins"]} if process is plain[0] else {}
            records.append(found | {"against_plain": ratios} | more)
            print(f"{process.method} {cell}: {median(ratios):.2f} of {ratios}", file=sys.stderr)
    return records


def order(processes: list[Process], number: int) -> list[Process]:
    """Each round begins with another one."""
    at = number % len(processes)
    return processes[at:] + processes[:at]


def record(
    process: Process, times: list[dict[str, Any]], args: argparse.Namespace
) -> dict[str, Any]:
    context = times[0]["context"]
    count = times[0]["requests"]
    tokens = count * args.tokens
    steps = sum(tokens - t["accepted"] for t in times)
    drafted = sum(t["drafts"] for t in times)
    return process.origin | {
        "context": context,
        "requests": count,
        "outputs": times[-1]["outputs"],
        "tokens_per_s": [round(tokens / t["seconds"], 2) for t in times],
        "tokens_per_cpu_s": [round(tokens / t["cpu"], 2) for t in times],
        "tokens_per_step": round(tokens * len(times) / steps, 3),
        "drafted": drafted,
        "steps_with_drafts": round(drafted / steps, 3),
    }


def counters(llm: Any) -> dict[str, int]:
    names = {
        "drafts": "vllm:spec_decode_num_drafts",
        "accepted": "vllm:spec_decode_num_accepted_tokens",
    }
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
    given = {
        name: getattr(args, name)
        for name in ("tokens", "drafts", "page", "repeat", "dtype", "eager")
    }
    found = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "cpu": (names or [platform.machine()])[0],
    }
    return (
        found
        | {"threads": torch.get_num_threads(), "model": Path(args.model).name, "time": now()}
        | given
        | checkout()
    )


def table(records: list[dict[str, Any]]) -> str:
    """A Markdown table: medians, against plain decoding, and how many outputs came out as plain
    decoding's.
    """
    shares = any("steps_with_drafts" in r for r in records)
    names = ["context", "requests", "method", "tokens/s", "against plain", "tokens per step"]
    names += ["steps with drafts"] * shares + ["outputs as plain's"]
    lines = [
        "| " + " | ".join(names) + " |",
        "| ---: | ---: | --- |" + " ---: |" * (len(names) - 3),
    ]
    cells = sorted({(r["context"], r["requests"]) for r in records})
    for context, requests in cells:
        here = [r for r in records if (r["context"], r["requests"]) == (context, requests)]
        plain = [r for r in here if r["method"] == "plain"]
        base = median(rate for r in plain for rate in r["tokens_per_s"])
        for r in [plain[0], *(r for r in here if r["method"] != "plain")]:
            rate = base if r in plain else median(r["tokens_per_s"])
            ratio = median(r["against_plain"]) if "against_plain" in r else rate / base
            tokens = r.get("tokens_per_step") or r["tokens_per_draft"]
            row = [context, requests, r["method"], f"{rate:.1f}", f"{ratio:.2f}", f"{tokens:.2f}"]
            row += [f"{r.get('steps_with_drafts', 1.0):.2f}"] * shares
            lines.append("| " + " | ".join(map(str, [*row, agreement(plain[0], r)])) + " |")
    return "\n".join(lines)


def agreement(plain: dict[str, Any], found: dict[str, Any]) -> str:
    """How many outputs are equal, and how far apart plain decoding's best two tokens are where one
    first differs.
    """
    margins = []
    for a, b, near in zip(plain["outputs"], found["outputs"], plain["margins"], strict=True):
        if a != b:
            margins.append(
                near[next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)]
            )
    same = f"{len(plain['outputs']) - len(margins)} of {len(plain['outputs'])}"
    return same + (f" (ties within {max(margins):.2f})" if margins else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a folder of safetensors")
    parser.add_argument(
        "--methods", nargs="+", default=list(METHODS), help="suffix/off: with pace=off"
    )
    every = ["1024x1", "1024x8", "7168x1", "7168x8"]
    parser.add_argument(
        "--cells", nargs="+", default=every, help="tokens of context x requests at once"
    )
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--page", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument(
        "--together",
        type=int,
        default=3,
        help="processes beside plain decoding's that wait at once",
    )
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
        return work(args)
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
    }
    environment |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "2"} | os.environ
    methods = [method for method in args.methods if method not in PLAIN]
    plain = [Process(name, environment) for name in PLAIN]
    with args.out.open("a") as file:
        for i in range(0, len(methods), args.together):
            others = [Process(method, environment) for method in methods[i : i + args.together]]
            file.writelines(json.dumps(found) + "\n" for found in compare(plain, others, args))
            file.flush()
            for process in others:
                process.end()
    for process in plain:
        process.end()
    print(table(read([args.out])))


def read(files: list[Path]) -> list[dict[str, Any]]:
    from longdraft.bench.records import read_records

    return [record for file in files for _, record in read_records(file)]


if __name__ == "__main__":
    main()
