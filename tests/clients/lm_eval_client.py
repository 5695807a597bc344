"""lm-evaluation-harness: the model class `local-completions`, called as its tasks call it."""

from __future__ import annotations

import os
from typing import Any

from common import API, GIVEN, KEY, MODEL, SAMPLING, TEXT, check, close, equal, refused

os.environ |= {"OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}

import requests
from datasets import Dataset
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.openai_completions import LocalCompletionsAPI

SCORE = GIVEN["score"]


def model(**more: Any) -> LocalCompletionsAPI:
    words = {
        "base_url": f"{API}/completions",
        "model": MODEL,
        "tokenizer": GIVEN["tokenizer"],
        "max_retries": 1,
    }
    return LocalCompletionsAPI(
        **words | {"tokenizer_backend": "huggingface", "seed": SAMPLING["seed"]} | more
    )


def scored(lm: LocalCompletionsAPI, count: int = 1) -> list[float]:
    pair = (SCORE["context"], SCORE["rest"])
    asked = [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i) for i in range(count)
    ]
    return [total for total, _ in lm.loglikelihood(asked)]


def said(lm: LocalCompletionsAPI, **options: Any) -> str:
    how = {
        "until": [],
        "max_gen_toks": SAMPLING["max_tokens"],
        "temperature": SAMPLING["temperature"],
    } | options
    [text] = lm.generate_until(
        [Instance(request_type="generate_until", doc={}, arguments=(TEXT, how), idx=0)]
    )
    return text


@check
def logprobs():
    """The score of a continuation is what the echo of the same text gives to any client."""
    close(scored(model()), [SCORE["sum"]])
    close(scored(model(tokenized_requests=False)), [SCORE["sum"]])


@check
def several_at_once():
    close(scored(model(num_concurrent=3), 6), [SCORE["sum"]] * 6)


@check
def batches():
    """Several prompts in a request."""
    close(scored(model(batch_size=4), 6), [SCORE["sum"]] * 6)


@check
def remote_tokenizer():
    """Tokens and the chat template come from the server."""
    lm = model(tokenizer_backend="remote", tokenizer=None, auth_token=KEY)
    close(scored(lm), [SCORE["sum"]])
    assert lm.tokenizer.eos_token and lm.apply_chat_template([{"role": "user", "content": "hi"}])


@check
def plain():
    equal(said(model()), GIVEN["completion"])


@check
def stop():
    middle = GIVEN["completion"][8:12]
    equal(said(model(), until=[middle]), GIVEN["completion"].split(middle)[0])
    words = ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]  # as its tasks of programs have them
    assert not any(w in said(model(), until=words) for w in words)


@check
def seed():
    equal(said(model()), said(model()))
    assert said(model(seed=4)) != GIVEN["completion"]


@check
def task():
    """A task of multiple choice, from its requests to its result."""
    options = [SCORE["rest"], " zebra zebra zebra"]
    docs = Dataset.from_list([{"question": SCORE["context"], "options": options, "right": 0}] * 3)

    class Local(ConfigurableTask):
        VERSION = 1

        def __init__(self):
            super().__init__(
                config={
                    "task": "local",
                    "output_type": "multiple_choice",
                    "custom_dataset": lambda **_: {"test": docs},
                    "test_split": "test",
                    "doc_to_text": "{{question}}",
                    "doc_to_choice": "{{options}}",
                    "doc_to_target": "right",
                    "target_delimiter": "",
                    "metric_list": [{"metric": "acc"}],
                }
            )

    found = simple_evaluate(model=model(), tasks=[Local()], bootstrap_iters=0)
    equal(found["results"]["local"]["acc,none"], 1.0)


@check
def bad_input():
    refused(lambda: said(model(), temperature=99_999), requests.HTTPError, "400")
    refused(lambda: said(model(model="other")), requests.HTTPError, "404")
