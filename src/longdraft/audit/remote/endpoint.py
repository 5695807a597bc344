"""A client of an OpenAI-compatible server, for an audit: texts and log-probabilities."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from longdraft.errors import InputError

# Fields for sampling from the whole distribution that the server reports, whatever its defaults:
# from all that servers know to OpenAI's alone. The first that a server accepts are sent.
UNBOUNDED: dict[str, Any] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
SAMPLING: tuple[dict[str, Any], ...] = (
    UNBOUNDED | {"repeat_penalty": 1.0},  # llama-server's name
    UNBOUNDED,
    {"top_p": 1.0},
)
PENALTIES = {"repetition_penalty", "repeat_penalty"}  # which change greedy answers too


class Refused(Exception):
    """A request that the server answered with an error."""

    def __init__(self, status: int, message: str):
        super().__init__(f"status {status}: {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True)
class ScoredToken:
    """A generated token, its log-probability, and the most probable alternatives, best first."""

    text: bytes
    logprob: float
    top: list[tuple[bytes, float]]


@dataclass(frozen=True)
class EndpointReply:
    """A server's answer; `tokens` is None where it has no log-probabilities.

    `starts` has the offset in bytes at which each token begins in the text. `drafts` has the
    numbers of drafted and accepted tokens, where the server reports them.
    """

    text: bytes
    finish: str | None
    tokens: list[ScoredToken] | None
    starts: list[int]
    prompt_tokens: int | None
    drafts: tuple[int, int] | None = None


@dataclass
class Endpoint:
    """An address, the model's name there, and the fields that every request has."""

    url: str
    model: str | None = None
    chat: bool = False
    fields: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    timeout: float = 600.0
    sampling: dict[str, Any] = field(default_factory=lambda: dict(SAMPLING[-1]))

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise InputError(f"{self.url} is no address: give http://HOST:PORT")
        self.url = self.url.rstrip("/").removesuffix("/v1")

    def find_model(self) -> None:
        """The model's name, where none was given, from the server's list."""
        if self.model is None:
            listed = self.call("/v1/models", None).get("data") or []
            if not listed:
                raise InputError(f"{self.url} lists no model: give --model-name")
            self.model = str(listed[0]["id"])

    def find_sampling(self) -> None:
        """Which of SAMPLING the server accepts; the last if it refuses all of them."""
        for self.sampling in SAMPLING:
            try:
                self.ask("Once upon a time", 2, 1.0, 1)
                return
            except Refused:
                pass

    def call(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """The JSON object that the server answers."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(self.url + path, data, headers), timeout=self.timeout) as answer:
                found = json.loads(answer.read())
        except HTTPError as error:
            raise Refused(error.code, _message(error.read())) from error
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise InputError(f"no answer from {self.url}: {reason}") from error
        except ValueError as error:
            raise InputError(f"{self.url}{path} answers with something that is not JSON") from error
        if not isinstance(found, dict):
            raise InputError(f"{self.url}{path} answers with JSON that is not an object")
        return found

    def ask(
        self,
        prompt: str,
        new: int,
        temperature: float = 0.0,
        seed: int | None = None,
        top: int | None = None,
    ) -> EndpointReply:
        """The answer to a prompt, with `top` alternatives for each token."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": new, "temperature": temperature}
        sampling = self.sampling
        body |= {key: sampling[key] for key in sampling if temperature or key in PENALTIES}
        if seed is not None:
            body["seed"] = seed
        if self.chat:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if top is not None:
            body |= {"logprobs": True, "top_logprobs": top} if self.chat else {"logprobs": top}
        path = "/v1/chat/completions" if self.chat else "/v1/completions"
        return reply_of(self.call(path, body | self.fields))


def _message(raw: bytes) -> str:
    """The text of an error, as OpenAI's and other servers write it."""
    try:
        found = json.loads(raw)
        error = found.get("error", found.get("detail", found))
        return str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        return raw.decode(errors="replace")[:300]


def reply_of(answer: dict[str, Any]) -> EndpointReply:
    """A reply from a completion or a chat completion."""
    try:
        choice = answer["choices"][0]
        text = choice["message"].get("content") if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError) as error:
        raise InputError("the server's answer has no text where OpenAI's has it") from error
    text = (text or "").encode()
    usage = answer.get("usage") or {}
    scores = choice.get("logprobs") or {}
    tokens: list[ScoredToken] | None = None
    starts = list[int]()
    if scores.get("content") is not None:  # of chats, and llama-server's of completions
        tokens = [_entry(e) for e in scores["content"]]
    elif scores.get("tokens") is not None:
        tokens = _legacy(scores)
        starts = _offsets(text, scores.get("text_offset"), len(tokens))
    if tokens is not None and not starts:
        at = 0
        for token in tokens:
            starts.append(at)
            at += len(token.text)
    finish = choice.get("finish_reason")
    drafts = _drafts(answer, usage)
    return EndpointReply(text, finish, tokens, starts, usage.get("prompt_tokens"), drafts)


def _drafts(answer: dict[str, Any], usage: dict[str, Any]) -> tuple[int, int] | None:
    """Drafted and accepted tokens, as longdraft, vLLM or llama-server reports them."""
    details = usage.get("completion_tokens_details") or {}
    if "drafted_tokens" in details:
        return details["drafted_tokens"], details.get("accepted_draft_tokens", 0)
    metrics = (answer.get("metrics") or {}).get("speculative_decoding")
    if metrics:
        return metrics["num_draft_tokens"], metrics["num_accepted_draft_tokens"]
    timings = answer.get("timings")
    if timings:  # llama-server leaves the numbers out where nothing was drafted
        return timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
    return None


def _bytes(entry: dict[str, Any]) -> bytes:
    given = entry.get("bytes")
    return entry["token"].encode() if given is None else bytes(given)


def _entry(entry: dict[str, Any]) -> ScoredToken:
    top = [(_bytes(other), float(other["logprob"])) for other in entry.get("top_logprobs") or []]
    return ScoredToken(_bytes(entry), float(entry["logprob"]), sorted(top, key=lambda t: -t[1]))


def _legacy(scores: dict[str, Any]) -> list[ScoredToken]:
    """Tokens in the form of OpenAI's completions, which is vLLM's too."""
    tokens = list[ScoredToken]()
    lists = scores.get("top_logprobs") or [{}] * len(scores["tokens"])
    for text, logprob, top in zip(scores["tokens"], scores["token_logprobs"], lists, strict=True):
        others = [(other.encode(), float(lp)) for other, lp in (top or {}).items()]
        tokens.append(
            ScoredToken(text.encode(), float(logprob), sorted(others, key=lambda t: -t[1]))
        )
    return tokens


def _offsets(text: bytes, offsets: list[int] | None, count: int) -> list[int]:
    """Offsets in bytes from those in characters, where the server gives them."""
    if not offsets or len(offsets) != count:
        return []
    shown = text.decode()
    return [len(shown[: offset - offsets[0]].encode()) for offset in offsets]
