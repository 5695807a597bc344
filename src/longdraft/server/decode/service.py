"""Makes a request's answer: its tokens, limits, seed, and the streams of its choices."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import lru_cache, partial
from time import time
from typing import Any, TypeVar

from longdraft.core import Constraint, Sampler
from longdraft.engine.generate import likely
from longdraft.errors import Busy, FieldError, InputError
from longdraft.models.chat import ANSWER, Message, Tools, Turn, chat_tokens, template_of
from longdraft.models.text import offsets_of, text_of, token_bytes, token_ids
from longdraft.ops import row_seed
from longdraft.sampling_parameters import WINDOW
from longdraft.server.decode.answer import Answer
from longdraft.server.decode.chat_reply import ChatReply
from longdraft.server.decode.decoding_thread import DecodingThread, Stream
from longdraft.server.decode.fill_middle import Gap, fill_middle_of
from longdraft.server.decode.history import first_taken
from longdraft.server.decode.method_choice import MethodChoice
from longdraft.server.decode.metrics import Metrics
from longdraft.server.decode.reply import Reply, Silent
from longdraft.server.decode.request_limits import (
    check_choices,
    check_length_of_answer,
    check_numbers,
)
from longdraft.server.decode.sampling_defaults import SamplingDefaults
from longdraft.server.decode.structures import Structures
from longdraft.server.decode.talk import NO_TOOLS, Dialogue, Offer, prompted
from longdraft.server.decode.work import RequestWork, Times
from longdraft.server.http.entry import current
from longdraft.server.http.long_texts import LONG, Renderers, check_length, size_of, within
from longdraft.server.http.pieces import Writer, at_once, in_pieces
from longdraft.server.http.problems import Problem
from longdraft.server.openai.chat_options import told
from longdraft.server.openai.formats import Echo
from longdraft.server.openai.schema import ChatRequest, CompletionRequest, SampledRequest

T = TypeVar("T")
MOST_LOGPROBS = 1 << 20  # of one answer, alternatives included
FEW_LOGPROBS = 1 << 8  # are formatted in less time than a change of threads may take


class Service:
    """One model.

    It refuses a request that cannot be answered before anything is decoded for it. most_new: how
    many new tokens a request has if it does not say, and at most. defaults: for sampling fields
    that a request does not send. methods: among which requests choose. trusting: whether
    prompts of completions may spell special tokens. stopping: nothing is accepted any more.
    """

    def __init__(
        self,
        engine: DecodingThread,
        tokenizer: Any,
        model: str,
        metrics: Metrics,
        times: Times,
        most_new: int,
        defaults: SamplingDefaults,
        methods: MethodChoice,
        trusting: bool = False,
    ):
        self.engine = engine
        self.tokenizer = tokenizer
        self.model = model
        self.metrics = metrics
        self.times = times
        self.most_new = most_new
        self.defaults = defaults
        self.methods = methods
        self.trusting = trusting
        self.created = int(time())
        self.stopping = False
        self.structures = Structures(engine.session.target, tokenizer)
        self.templates = Renderers()
        self.word = lru_cache(1 << 17)(partial(token_bytes, tokenizer))
        # held while a long text is read, so that short ones find a free thread
        self._one_long = asyncio.Lock()
        # reads long texts: they take the memory of one thread at most
        self._reader = ThreadPoolExecutor(1, "longdraft-long")
        self.target = engine.session.target
        self.room = min(engine.session.slots, engine.session.total)

    @property
    def ready(self) -> bool:
        return not self.stopping and self.engine.failure is None

    async def chat(self, body: ChatRequest) -> RequestWork:
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        messages = [m.plain for m in body.messages]
        work = await self.talk(body, messages, body.limit, logprobs, body.offer, body.turn)
        work.progress = body.stream and body.return_progress
        return work

    async def talk(
        self,
        body: SampledRequest,
        messages: list[Message],
        limit: int | None,
        logprobs: int | None = None,
        offer: Offer = NO_TOOLS,
        turn: Turn = ANSWER,
    ) -> RequestWork:
        """The work of continuing a conversation.

        offer: the functions that the model may call.
        """
        dialect, messages, tools = prompted(self.tokenizer, messages, offer.tools)
        prompt = await self.conversation(messages, tools, turn)
        talk = Dialogue(dialect, offer, dialect.opened(prompt))
        work = self._work([prompt], body, limit, logprobs, await self.structures.of(body, talk))
        work.talk = talk
        work.eos = work.eos if body.ignore_eos else (*work.eos, *dialect.ends)
        self._check_logprobs(work)
        return work

    def _check_logprobs(self, work: RequestWork) -> None:
        """Raises Problem for a request whose answer would have too many log-probabilities."""
        echoed = work.prompt_tokens if work.prompt_logprobs else 0  # by each choice of a prompt
        tokens = work.n * (work.limit * len(work.prompts) + echoed)
        count = 0 if work.logprobs is None else tokens * (work.logprobs + 1)
        if count > MOST_LOGPROBS:
            excess = (
                f"up to {count} log-probabilities are more than the {MOST_LOGPROBS} allowed here"
            )
            raise Problem(
                400, f"{excess}: ask for fewer tokens, choices or alternatives", "logprobs"
            )

    async def completion(self, body: CompletionRequest) -> RequestWork:
        if body.suffix:
            gaps = [Gap(prompt, body.suffix) for prompt in body.prompts]
            return await self.infill(body, gaps, "suffix")
        if body.parse_special and not self.trusting:
            why = "parse_special: this server was not started with --parse-special"
            raise Problem(400, why, "parse_special")
        prompts = list[list[int]]()
        for prompt in body.prompts:
            if isinstance(prompt, str):
                prompts.append(await self.tokens(prompt, control=body.parse_special))
            else:
                prompts.append(list(prompt))
        if not all(prompts):
            raise Problem(400, "a prompt has no tokens: give some text", "prompt")
        return await self._completed(prompts, body)

    async def infill(self, body: CompletionRequest, gaps: list[Gap], field: str) -> RequestWork:
        """The work of filling the gaps of texts, which stand for the prompts of the body.

        field: the field of the request that asks for it.
        """
        middle = await self.aside(0, fill_middle_of, self.tokenizer, field)
        prompts = list[list[int]]()
        for gap in gaps:
            size = size_of(gap.texts)
            prompts.append(await self.aside(size, middle.prompt, gap, self.room))
        return await self._completed(prompts, body, middle.ends)

    async def _completed(
        self, prompts: list[list[int]], body: CompletionRequest, ends: tuple[int, ...] = ()
    ) -> RequestWork:
        constraint = await self.structures.of(body)
        if ends:
            body = body.model_copy(update={"stop_token_ids": [*body.stop_token_ids, *ends]})
        work = self._work(prompts, body, body.limit, body.logprobs, constraint)
        work.prompt_logprobs = body.echo and body.logprobs is not None
        work.silent = body.max_tokens == 0
        work.progress = body.stream and body.return_progress
        self._check_logprobs(work)
        return work

    async def conversation(
        self, messages: list[Message], tools: Tools = None, turn: Turn = ANSWER
    ) -> list[int]:
        """The tokens of a conversation, by the model's chat template."""
        render = within(self.templates.render, self.tokenizer, self.room)
        turn = told(turn, template_of(self.tokenizer, tools))

        def read(messages: list[Message]) -> list[int]:
            return chat_tokens(self.tokenizer, messages, tools, render, turn)

        if current().strict:
            return await self.aside(size_of([messages, tools]), read, messages)
        return await self.aside(size_of([messages, tools]), first_taken, messages, read)

    async def tokens(
        self, text: str, special: bool = True, most: int = 0, control: bool = False
    ) -> list[int]:
        """A text's tokens, as `longdraft generate` reads it.

        control: read special tokens that the text spells. Raises Problem for more than `most`, or
        the room.
        """

        def read() -> list[int]:
            check_length(self.tokenizer, text, max(most, self.room))
            return token_ids(self.tokenizer, text, control, add_special_tokens=special)

        return await self.aside(len(text), read)

    def text(self, tokens: list[int]) -> str:
        if any(t >= self.target.vocab for t in tokens):
            raise Problem(
                400, f"a token is not in the model's vocabulary of {self.target.vocab}", "tokens"
            )
        return text_of(self.tokenizer, tokens)

    def echo(self, prompt: list[int], scored: bool) -> Echo:
        """A prompt as its answers repeat it.

        scored: with log-probabilities.
        """
        return Echo(prompt, self.text(prompt), offsets_of(self.tokenizer, prompt) if scored else [])

    def submit(self, work: RequestWork) -> Answer:
        """Queue the choices of a request, all or none.

        Raises Problem.
        """
        if not self.ready:
            raise Problem(503, "the server accepts no requests now: try again later", retry_s=5)
        check_choices(work, self.engine.session)
        streams: list[Stream] = []
        try:
            for k in range(work.choices):
                prompt, i = divmod(k, work.n)
                stream = self.engine.submit(
                    prompt=work.prompts[prompt],
                    max_new_tokens=work.limit,
                    seed=row_seed(work.seeds[prompt], i),
                    eos=work.eos,
                    sampler=work.sampler,
                    logprobs=work.logprobs,
                    prompt_logprobs=work.prompt_logprobs and i == 0,
                    owner=work.owner,
                    method=work.method.session,
                    deepest=work.method.deepest,
                )
                stream.progress = work.progress and i == 0
                streams.append(stream)
        except Exception as error:
            for stream in streams:
                stream.close()
            if isinstance(error, Busy):
                self.metrics.refuse(429)
                raise Problem(429, str(error), retry_s=1) from None
            if isinstance(error, InputError):
                raise Problem(400, str(error)) from None
            raise
        answer = Answer(self, work, streams, [self._reply(work) for _ in streams])
        current().answers.append(answer)
        current().method = work.method.name
        return answer

    def _reply(self, work: RequestWork) -> Reply:
        if work.talk is None:
            return (Silent if work.silent else Reply)(self.tokenizer, work.stops, least=work.least)
        shown = work.talk.dialect.marks.shown
        return ChatReply(self.tokenizer, work.stops, work.talk.reader(), shown, work.least)

    def fitting(self, prompt: list[int], limit: int | None) -> int:
        """The number of new tokens that a request with this limit gets.

        The limit is an upper bound, lowered to what the server allows and the context has left.
        Raises Problem if the prompt leaves no room.
        """
        room = self.room - len(prompt)
        if room < 1:
            excess = (
                f"the prompt has {len(prompt)} tokens, and this server's limit is "
                f"{self.room - 1}: give a shorter one"
            )
            raise Problem(400, excess, "prompt", "context_length_exceeded")
        wanted = limit
        if wanted is None:
            wanted = likely(self.target, len(prompt), min(self.most_new, room))
        check_length_of_answer(wanted, len(prompt), self.most_new, room)
        return min(wanted, self.most_new, room)

    def _work(
        self,
        prompts: list[list[int]],
        body: SampledRequest,
        limit: int | None,
        logprobs: int | None,
        constraint: Constraint | None,
    ) -> RequestWork:
        wanted = min(self.fitting(prompt, limit) for prompt in prompts)
        check_numbers(body, wanted, self.target.vocab)
        body = self.defaults.fill(body)
        bias = tuple(
            sorted((int(token), float(number)) for token, number in body.logit_bias.items())
        )
        eos = (*(() if body.ignore_eos else self.target.end_tokens), *body.stop_token_ids)
        rules = self.target.rules()
        sampler = Sampler(
            body.temperature,
            top_k=body.top_k,
            top_p=body.top_p,
            min_p=body.min_p,
            penalty=body.repetition_penalty,
            window=WINDOW.high,
            frequency=body.frequency_penalty,
            presence=body.presence_penalty,
            bias=bias,
            rules=rules.with_least(body.min_tokens) if eos else rules,
            constraint=constraint,
        )
        if body.seed is None:
            seeds = [secrets.randbits(62) for _ in prompts]
        else:
            seeds = [body.seed] * len(prompts)
        work = RequestWork(
            prompts, wanted, sampler, seeds, body.n, body.stops, eos, logprobs, body.min_tokens
        )
        work.method = self.methods.of(body)
        return work

    async def formatted(self, count: int, call: Callable[[Writer], T]) -> T:
        """The result of a call with a writer of JSON.

        Many log-probabilities are written outside the event loop's thread.
        """
        return call(at_once) if count <= FEW_LOGPROBS else await self.aside(count, call, in_pieces)

    async def aside(self, size: int, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call on this much text (see LONG), outside the event loop's thread.

        InputError becomes a Problem.
        """
        try:
            async with self._one_long if size > LONG else nullcontext():
                reader = self._reader if size > LONG else None
                return await asyncio.get_running_loop().run_in_executor(
                    reader, partial(call, *arguments)
                )
        except InputError as error:
            field = error.field if isinstance(error, FieldError) else None
            raise Problem(400, str(error), field) from None
