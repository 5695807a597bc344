"""Traces of plain decoding and a method side by side, for a page that shows what each does."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from time import monotonic
from typing import Annotated, Any

from pydantic import Field

from longdraft.core import Sampler
from longdraft.drafters import Drafter, PlainDecoding
from longdraft.engine.requests import Request, make_request
from longdraft.errors import Busy, InputError
from longdraft.methods import METHODS, elsewhere
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.listing import describe
from longdraft.methods.spec import MethodSpec
from longdraft.models.chat import has_template
from longdraft.recording.race import Race
from longdraft.recording.trace import Lane, Round, new_trace
from longdraft.sampling_parameters import TEMPERATURE, TOP_K, TOP_P, TRACE
from longdraft.server.decode.service import Service
from longdraft.server.http.problems import Problem
from longdraft.server.openai.request_fields import (
    FEW,
    MaxTokens,
    Name,
    Seed,
    Strict,
    Temperature,
    Text,
    TopK,
    TopP,
)

Json = dict[str, Any]


class TraceRequest(Strict):
    """A document and a question about it.

    options: those of the method, as text.
    """

    document: Text = ""
    prompt: Text
    method: Name
    options: Annotated[dict[Name, Name], FEW, Field(max_length=32)] = Field(default_factory=dict)
    max_tokens: MaxTokens = 128
    temperature: Temperature = TEMPERATURE.default
    top_p: TopP = TOP_P.default
    top_k: TopK = TOP_K.default
    seed: Seed | None = None


class Recording:
    """One race, for one reader.

    The decoding thread steps it; its events are read in the event loop.
    """

    def __init__(self, race: Race, limit_s: float):
        self.race = race
        self.limit_s = limit_s
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._events = asyncio.Queue[Json | None]()

    def step(self) -> bool:
        if self.closed:
            return False
        try:
            lane, done = self.race.step()
            self._say(self._event(lane, done))
        except InputError as error:
            self._end(Problem(400, str(error)).body)
        except Exception:  # this trace ends; other requests go on
            self._end(Problem(500, "the server could not complete this trace").body)
        else:
            if not self.race.over:
                return True
            trace = self.race.trace
            lanes = [{"ended": lane.ended} for lane in trace.lanes]
            self._end({"event": "end", "trace": {"equal": trace.equal, "lanes": lanes}})
        return False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._events.put_nowait(
                Problem(503, "the trace was ended by the server: try again later").body
            )
            self._events.put_nowait(None)

    async def events(self) -> AsyncIterator[Json]:
        """The events of the race, until it or its time is over."""
        end = monotonic() + self.limit_s
        header = self.race.trace.model_dump(mode="json", exclude={"lanes": {"__all__": {"rounds"}}})
        yield {"event": "begin", "trace": header}
        try:
            while (
                event := await asyncio.wait_for(self._events.get(), max(end - monotonic(), 0))
            ) is not None:
                yield event
        except TimeoutError:
            yield Problem(
                503, f"this trace did not end within {self.limit_s:g} s: ask for less"
            ).body
        finally:
            self.closed = True

    def _event(self, lane: int, done: int | Round) -> Json:
        if isinstance(done, Round):
            return {"event": "round", "lane": lane, "round": done.model_dump(mode="json")}
        return {
            "event": "reading",
            "lane": lane,
            "done": done,
            "total": self.race.trace.prompt_tokens,
        }

    def _end(self, last: Json) -> None:
        self.closed = True
        self._say(last)
        self._say(None)

    def _say(self, event: Json | None) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)


def _shown(method: Json) -> Json:
    """A method of `longdraft methods` as the page lists it."""
    options = {
        key: {"default": str(option["default"]), "about": option["allowed"]}
        for key, option in method["options"].items()
    }
    return {
        "name": method["name"],
        "label": method["label"],
        "about": method["does"],
        "options": options,
    }


class Tracer:
    """Records traces, one at a time, beside the requests that a service answers.

    method: that of the service.
    """

    def __init__(self, service: Service, weights: DrafterWeights, method: str):
        self.service = service
        self.weights = weights
        self.method = method

    @property
    def methods(self) -> Json:
        """The methods that can be watched, their options, and the ranges of a request's numbers."""
        known = METHODS | {name: added.method for name, added in elsewhere.listed()[0].items()}
        specs = [MethodSpec(name, name, {}, self.weights) for name in known if name != "plain"]
        listed = [
            describe(s.name, known[s.name], self.weights) for s in specs if not self._missing(s)
        ]
        shown = [_shown(entry) for entry in listed if entry["available"]]
        chat = has_template(self.service.tokenizer)
        default = self.method if any(self.method == method["name"] for method in shown) else "vegas"
        return {
            "model": self.service.model,
            "context": self.service.room,
            "chat": chat,
            "methods": shown,
            "default": default,
            "parameters": {p.name: p.in_json for p in TRACE},
        }

    async def record(self, body: TraceRequest, owner: str = "") -> Recording:
        """Begin a trace.

        owner: see Session.submit. Raises Problem.
        """
        service = self.service
        if not service.ready:
            raise Problem(503, "the server accepts no requests now: try again later", retry_s=5)
        prompt = await self._prompt(body)
        limit = service.fitting(prompt, body.max_tokens)
        # a page's numbers have 53 bits
        seed = secrets.randbits(53) if body.seed is None else body.seed
        sampler = Sampler(body.temperature, top_k=body.top_k, top_p=body.top_p)
        try:
            spec = MethodSpec(body.method, body.method, dict(body.options), self.weights)
            if missing := self._missing(spec):
                raise InputError(
                    f"{spec.name} with these options drafts by a copy of the model in "
                    f"{' and '.join(sorted(missing))},"
                    " which this server does not have: give draft_weights=same, choose "
                    "another method, or start the"
                    " server with this one"
                )
            ends = service.target.end_tokens
            request = make_request(
                service.target, service.room, prompt, limit, seed, ends, sampler, None, False
            )
            race = await service.aside(0, self._race, spec, replace(request, owner=owner))
            recording = Recording(race, service.times.request_s)
            service.engine.alternate(recording)
        except Busy as error:
            raise Problem(429, str(error), retry_s=5) from None
        except InputError as error:
            raise Problem(400, str(error)) from None
        return recording

    def _missing(self, spec: MethodSpec) -> set[str]:
        """The copies of the model that a method would make.

        None is made for a trace, since it would stay.
        """
        target = self.service.target
        return spec.copies(target) - target.copies.keys()

    async def _prompt(self, body: TraceRequest) -> list[int]:
        text = f"{body.document.strip()}\n\n{body.prompt}" if body.document.strip() else body.prompt
        tokenizer = self.service.tokenizer
        if not has_template(tokenizer):
            tokens = await self.service.tokens(text)
        else:
            tokens = await self.service.conversation([{"role": "user", "content": text}])
        if not tokens:
            raise Problem(400, "the prompt has no tokens: give some text", "prompt")
        return tokens

    def _race(self, spec: MethodSpec, request: Request) -> Race:
        service = self.service
        target = self.service.target
        lanes = [Lane(method="plain", options={})]
        drafters: list[Drafter] = [PlainDecoding()]
        if spec.name != "plain":
            lanes.append(Lane(method=spec.name, options=spec.options))
            drafters.append(spec.paced(target))
        trace = new_trace(
            target,
            service.tokenizer,
            prompt=request.prompt,
            limit=request.max_new_tokens,
            sampler=request.sampler,
            seed=request.seed,
            lanes=lanes,
        )
        session = service.engine.session
        return Race(
            target, service.tokenizer, request, drafters, trace, session.prefixes, session.chunk
        )
