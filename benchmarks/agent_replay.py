"""Measures how much of a coding agent's growing conversation a server reads again.

    python benchmarks/agent_replay.py -m smollm2 --tokens 6000

Each turn sends the whole conversation: a system prompt, descriptions of tools, and all calls and
results so far, with the answers that the server gave. The texts are written by a generator, always
the same for one seed. A turn's `sent` are the tokens with which an earlier prompt began, or an
earlier prompt with its answer, as the chat template writes it; `again` are those of them that were
not in the prefix cache. The goal is a share of 2%. Decoding is plain: drafts change no token.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import httpx
from arguments import Arguments, at_least, status

from longdraft import Session, load
from longdraft.drafters import PlainDecoding
from longdraft.errors import InputError
from longdraft.models.chat import has_template
from longdraft.models.loading import quiet
from longdraft.models.text import token_ids
from longdraft.prompts.prefix_cache import PrefixCache
from longdraft.prompts.prefix_room import prefix_room
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance
from longdraft.server.uvicorn_server import Server, ServerSettings

GOAL = 0.02  # the share of the tokens sent before that may be read again
BEGIN = 0.25  # the share of all tokens in the first prompt
NAME = "agent"
# for a model without a chat template
TEMPLATE = (
    "{% if tools %}<system>{{ tools | tojson }}\n<tool_call>\n"
    '{"name": <name>, "arguments": <object>}\n</tool_call>\n{% endif %}'
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}\n"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>\n"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
ROLE = "You are a coding agent. Work in the repository in small steps, and call one tool a turn.\n"
TOOLS = {
    "read_file": "Read a file of the repository",
    "search": "Search the repository for a text",
    "edit_file": "Replace a text in a file by another one",
    "run_tests": "Run the tests of a folder",
}
VERBS = ("load", "merge", "parse", "check", "write", "split", "count", "close")
NOUNS = ("index", "record", "folder", "header", "token", "cache", "branch", "report")
Message = dict[str, Any]
Figures = dict[str, Any]


class Agent:
    """The conversation of an agent whose last prompt has about this many tokens.

    count: the number of tokens of a text.
    """

    def __init__(self, tokens: int, turns: int, seed: int, count: Callable[[str], int]):
        self.rng = Random(seed)
        self.count = count
        self.turns = turns
        self.tools = [self._tool(name) for name in TOOLS]
        left = int(BEGIN * tokens) - count(json.dumps(self.tools))
        self.result_size = int((1 - BEGIN) * tokens) // max(turns - 1, 1)
        self.messages: list[Message] = [
            {"role": "system", "content": ROLE + self._code(left)},
            {
                "role": "user",
                "content": "The tests of the report fail. Find the cause and mend it.",
            },
        ]

    def _tool(self, name: str) -> Figures:
        fields = {"path": {"type": "string", "description": "a path in the repository"}}
        schema = {"type": "object", "properties": fields, "required": ["path"]}
        function = {"name": name, "description": TOOLS[name], "parameters": schema}
        return {"type": "function", "function": function}

    def _code(self, tokens: int) -> str:
        """Lines of code with at least this many tokens."""
        lines = list[str]()
        while tokens > 0:
            verb = self.rng.choice(VERBS)
            noun = self.rng.choice(NOUNS)
            number = self.rng.randrange(1000)
            lines.append(f"    {noun}_{number} = {verb}({noun}, {self.rng.choice(NOUNS)})\n")
            tokens -= self.count(lines[-1])
        return "".join(lines)

    def go_on(self, answer: Message) -> None:
        """Add the server's answer, with a call of a tool, and the tool's result."""
        if not answer.get("tool_calls"):
            path = f"src/{self.rng.choice(NOUNS)}/{self.rng.choice(VERBS)}.py"
            called = {"name": self.rng.choice(list(TOOLS)), "arguments": json.dumps({"path": path})}
            answer["tool_calls"] = [
                {"id": f"call_{len(self.messages)}", "type": "function", "function": called}
            ]
        self.messages.append(answer)
        for call in answer["tool_calls"]:
            content = self._code(self.result_size // len(answer["tool_calls"]))
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


class Replay:
    """The turns of an agent against a server.

    calls: the model must call a tool in each turn; else it answers with a text, and the agent adds
    the call.
    """

    def __init__(self, http: httpx.Client, model: str, agent: Agent, new: int, calls: bool = False):
        self.http = http
        self.agent = agent
        self.body: Figures = {"model": model, "max_tokens": new, "temperature": 0.0, "seed": 0}
        if calls:
            self.body["tool_choice"] = "required"
        self.sent = list[list[int]]()  # earlier prompts, alone and with their answers

    def turn(self) -> Figures:
        """The figures of the next turn."""
        prompt = self._tokens([])
        begin = time.monotonic()
        asked = {"messages": self.agent.messages, "tools": self.agent.tools}
        found = self._post("/v1/chat/completions", self.body | asked)
        took = time.monotonic() - begin
        usage = found["usage"]
        if usage["prompt_tokens"] != len(prompt):
            raise InputError(
                f"the server read {usage['prompt_tokens']} tokens, and /tokenize counts "
                f"{len(prompt)}: use one version of both"
            )
        known = usage["prompt_tokens_details"]["cached_tokens"]
        sent = max((shared(prompt, earlier) for earlier in self.sent), default=0)
        message = found["choices"][0]["message"]
        answer = {"role": "assistant", "content": message.get("content") or ""}
        if calls := message.get("tool_calls"):
            answer["tool_calls"] = calls
        self.sent += [prompt, self._tokens([answer])]
        self.agent.go_on(answer)
        return {
            "prompt": len(prompt),
            "known": known,
            "sent": sent,
            "again": max(sent - known, 0),
            "seconds": took,
        }

    def _tokens(self, answer: list[Message]) -> list[int]:
        """The conversation as the model reads it: to be answered, or with this answer."""
        body = {"messages": [*self.agent.messages, *answer], "tools": self.agent.tools}
        body["model"] = self.body["model"]
        return self._post("/tokenize", body | {"add_generation_prompt": not answer})["tokens"]

    def _post(self, path: str, body: Figures) -> Figures:
        answer = self.http.post(path, json=body)
        if answer.status_code != 200:
            raise InputError(f"the server answered {path} with {answer.text}")
        return answer.json()


def shared(first: list[int], second: list[int]) -> int:
    """The number of tokens with which both begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def share(turns: list[Figures]) -> float:
    """The share of the tokens sent before that were read again."""
    return sum(turn["again"] for turn in turns) / max(sum(turn["sent"] for turn in turns), 1)


@contextmanager
def serving(model: str, given: Any) -> Iterator[tuple[httpx.Client, Any, Any]]:
    """A client of a server with this model in this process, the model, and its tokenizer."""
    target, tokenizer = load(model, given.dtype, weights=given.weights)
    if not has_template(tokenizer):
        tokenizer.chat_template = TEMPLATE
    slots = min(given.tokens + given.tokens // 2 + 1024, target.positions)
    prefixes = PrefixCache(prefix_room(target, slots, slots), tails=True)
    session = Session(target, PlainDecoding(), 1, slots, chunk=256, prefixes=prefixes)
    settings = ServerSettings(NAME, "plain", port=0, request_s=1e6, most_body=1 << 26)
    server = Server(session, tokenizer, settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        with httpx.Client(base_url=f"http://{host}:{port}", timeout=None) as http:
            yield http, target, tokenizer
    finally:
        server.should_exit = True
        thread.join(30)


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.share("model", "dtype", "weights")
    parser.change("max-new-tokens", 48, "an agent's answers are short")
    parser.share("threads", "seed", "out")
    parser.add_argument(
        "--tokens", type=at_least(1000), default=6000, metavar="N", help="tokens of the last prompt"
    )
    parser.add_argument(
        "--turns", type=at_least(2), default=12, metavar="N", help="requests of the conversation"
    )
    parser.add_argument(
        "--calls", action="store_true", help="the model must write the calls (tool_choice)"
    )
    return parser


def main(words: list[str] | None = None) -> int:
    given = options().parse(words)
    quiet(given.threads)
    log = RecordFile(given.out)
    before = os.getloadavg()[0]
    turns = list[Figures]()
    with serving(given.model, given) as (http, target, tokenizer):
        origin = provenance(target, given.seed) | {
            "task": "agent_replay",
            "command": given.command,
            "load_before": before,
        }
        agent = Agent(
            given.tokens, given.turns, given.seed, lambda text: len(token_ids(tokenizer, text))
        )
        replay = Replay(http, NAME, agent, given.max_new_tokens, given.calls)
        print("turn  prompt    sent   again  share  seconds")
        for number in range(1, given.turns + 1):
            turn = replay.turn()
            turns.append(turn)
            log.append(origin | {"turn": number, "tokens": given.tokens} | turn)
            print(
                f"{number:4} {turn['prompt']:7} {turn['sent']:7} {turn['again']:7} "
                f"{share([turn]):6.1%} {turn['seconds']:8.1f}"
            )
    print(f"in all {share(turns):.1%} of the tokens sent before were read again")
    return int(share(turns) > GOAL)


if __name__ == "__main__":
    sys.exit(status(main))
