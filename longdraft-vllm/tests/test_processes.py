"""vLLM as it runs by default: its engine in a process of its own, where the plugin must be loaded
too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import VOCAB
from engine import mixed, run

SCRIPT = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
if os.environ.get("TRITON_INTERPRET"):
    import interpreter
from engine import config
from vllm import LLM, SamplingParams

def main():
    given = json.loads(sys.argv[3])
    settings = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "block_size": 32}
    settings |= config("vegas", **json.loads(sys.argv[6])) | given
    llm = LLM(sys.argv[2], skip_tokenizer_init=True, disable_log_stats=False, **settings)
    prompts = [{"prompt_token_ids": ids} for ids in json.loads(sys.argv[4])]
    ways = json.loads(sys.argv[5])
    usual = {"max_tokens": 30, "ignore_eos": True, "detokenize": False}
    sampling = [SamplingParams(**usual, **way) for way in ways]
    answers = llm.generate(prompts, sampling, use_tqdm=False)
    outputs = [list(answer.outputs[0].token_ids) for answer in answers]
    name = "vllm:spec_decode_num_accepted_tokens"
    accepted = sum(metric.value for metric in llm.get_metrics() if metric.name == name)
    print("FOUND " + json.dumps([outputs, accepted]))

if __name__ == "__main__":
    main()
"""


# vLLM takes the newer runner where Triton runs
OLDER = {}
NEWER = {"TRITON_INTERPRET": "1"}
ONE = {}
TWO = {"tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("given", "runner", "paced"),
    [
        (ONE, OLDER, False),
        (TWO, OLDER, False),
        (TWO, OLDER, True),
        (TWO, NEWER, False),
        (TWO, NEWER, True),
    ],
    ids=[
        "one worker",
        "two workers",
        "two workers, paced",
        "two workers, newer",
        "two workers, newer, paced",
    ],
)
def test_outputs_from_other_processes_equal_plain_decoding(llama, given, runner, paced, tmp_path):
    requests = mixed(VOCAB, 256)[:3]
    for i, r in enumerate(requests):
        r.tokens = 30
        r.arrives = 0
        r.sampling = {"temperature": 0.5 * i, "seed": 100 + i}
    keyed = {"keyed_noise": True}
    options = keyed | ({"pace": "on"} if paced else {})
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script), os.path.dirname(__file__), llama, json.dumps(given)]
    words += [json.dumps([r.prompt for r in requests]), json.dumps([r.sampling for r in requests])]
    words.append(json.dumps(options))
    environment = (
        os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"} | runner
    )
    if given:
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "VLLM_CPU_SGL_KERNEL": "0"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-2000:]
    outputs, accepted = json.loads(lines[0].removeprefix("FOUND "))
    assert outputs == run(llama, None, requests, additional_config={"longdraft": keyed}).outputs
    # what clocks decide is not known; workers whose decisions differ would wait
    assert accepted > 0 or paced
    assert ("Using V2 Model Runner" in done.stdout) == (runner is NEWER)
