"""Stands in for an OpenAI-compatible server with speculation: it decodes from a small distribution
that is known, and can be told to be wrong.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import exp, log
from threading import Thread
from typing import Any

LETTERS = "abcdefgh"
CLOSE = 0.004  # between the best two letters after a close call
CONTEXT = 2000  # characters of a prompt that fit


def scores(history: str) -> dict[str, float]:
    """Log-probabilities of the next letter, from the last three characters."""
    return scores_after(history[-3:])


@cache
def scores_after(last: str) -> dict[str, float]:
    noise = random.Random(last)
    logits = {letter: noise.gauss(0, 1.2) for letter in LETTERS}
    if noise.random() < 0.1:
        first, second = sorted(LETTERS, key=logits.__getitem__)[:-3:-1]
        logits[second] = logits[first] - CLOSE
    total = log(sum(exp(x) for x in logits.values()))
    return {letter: x - total for letter, x in logits.items()}


def ranked(found: dict[str, float]) -> list[str]:
    return sorted(found, key=lambda letter: -found[letter])


def greedy(found: dict[str, float], fault: str) -> str:
    best, second = ranked(found)[:2]
    gap = found[best] - found[second]
    most = {"tie": 2 * CLOSE, "near best": 0.4}.get(fault, 0.0)
    return second if gap < most else best


def penalized(found: dict[str, float], penalty: float) -> dict[str, float]:
    """The log-probabilities from which a server with a penalty decodes."""
    total = log(sum(exp(x / penalty) for x in found.values()))
    return {letter: x / penalty - total for letter, x in found.items()}


def sampled(found: dict[str, float], fault: str, noise: random.Random) -> str:
    """A letter; a draft of the best letter is accepted as the fault says."""
    draft = ranked(found)[0]
    p = exp(found[draft])
    accept = {"no correction": p, "eager": min(1.0, 1.25 * p)}.get(fault, 0.0)
    if noise.random() < accept:
        return draft
    letters = [letter for letter in found if fault != "eager" or letter != draft]
    return noise.choices(letters, [exp(found[letter]) for letter in letters])[0]


class Handler(BaseHTTPRequestHandler):
    fault = ""
    form = "legacy"
    drafts: str | None = None
    penalty = 1.0  # of requests that send none

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": "toy"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = "messages" in body
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        top = body.get("top_logprobs") if chat else body.get("logprobs")
        if len(prompt) > CONTEXT:
            self.reply(400, {"error": {"message": "this model's maximum context length is less"}})
        elif top is not None and self.form == "none":
            self.reply(400, {"error": {"message": "logprobs are not supported"}})
        elif "min_p" in body and self.form == "legacy":
            self.reply(400, {"error": {"message": "min_p: unknown field"}})
        else:
            answer: dict[str, Any] = {"choices": [self.choice(body, prompt, top, chat)]}
            if self.drafts is not None:
                answer["timings"] = self.timings(body)
            self.reply(200, answer)

    def speculates(self, body: dict) -> bool:
        """Whether a request is answered with drafts."""
        if self.drafts == "only without log-probabilities" and body.get("logprobs") is not None:
            return False
        off = body.get("speculative") is False and self.drafts != "always"
        return not off and self.drafts != "never"

    def timings(self, body: dict) -> dict:
        """llama-server's: without drafts they do not mention any."""
        drafted = body["max_tokens"] if self.speculates(body) else 0
        found = {"predicted_n": body["max_tokens"]}
        return found | ({"draft_n": drafted, "draft_n_accepted": drafted // 2} if drafted else {})

    def choice(self, body: dict, prompt: str, top: int | None, chat: bool) -> dict:
        fault = "" if body.get("speculative") is False else self.fault
        noise = random.Random(body.get("seed", 0))
        text = ""
        lists: list[dict[str, float]] = []
        for _ in range(body["max_tokens"]):
            found = scores(prompt + text)
            lists.append(found)
            warm = body["temperature"] > 0
            used = penalized(found, body.get("repetition_penalty", self.penalty))
            text += sampled(used, fault, noise) if warm else greedy(used, fault)
        said: dict[str, Any] = {"message": {"content": text}} if chat else {"text": text}
        if top is not None:
            kept = [{t: found[t] for t in ranked(found)[:top]} for found in lists]
            own = [found[t] for t, found in zip(text, lists, strict=True)]
            if self.drafts == "bare" and self.speculates(body):
                kept[1::2] = [{} for _ in kept[1::2]]
                own[1::2] = [0.0 for _ in own[1::2]]
            said["logprobs"] = self.logprobs(text, own, kept, chat)
        return said | {"finish_reason": "length"}

    def logprobs(self, text: str, own: list[float], kept: list[dict], chat: bool) -> dict:
        if not chat and self.form == "legacy":
            offsets = [100 + i for i in range(len(text))]
            found = {"tokens": list(text), "token_logprobs": own, "top_logprobs": kept}
            return found | {"text_offset": offsets}
        entries = []
        for token, score, others in zip(text, own, kept, strict=True):
            top = [{"token": t, "logprob": lp, "bytes": [ord(t)]} for t, lp in others.items()]
            entries.append({"token": token, "logprob": score, "top_logprobs": top})
        return {"content": entries}

    def reply(self, status: int, body: dict) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def audited_server(
    fault: str = "", form: str = "legacy", drafts: str | None = None, penalty: float = 1.0
) -> Iterator[str]:
    """The address of a server with this fault, which answers in this form.

    drafts: it reports drafted tokens as llama-server does: "told" as asked, "always" (whatever the
    request says), "never", "only without log-probabilities", or "bare" (every second token comes
    from a draft and has no log-probabilities). penalty: flattens what requests without one draw
    from, and not what is reported.
    """
    told = {"fault": fault, "form": form, "drafts": drafts, "penalty": penalty}
    kind = type("Told", (Handler,), told)
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
