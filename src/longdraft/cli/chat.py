"""`longdraft chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from io import TextIOWrapper
from itertools import chain
from typing import Annotated, Any

import typer

from longdraft.cli import common
from longdraft.cli.option_groups import DrafterOptions, MethodOptions, TargetOptions, expand
from longdraft.cli.sampling_options import Seed, sampling_option
from longdraft.errors import InputError
from longdraft.sampling_parameters import (
    PENALTY,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    WINDOW,
    Parameter,
)

Messages = list[dict[str, str]]
# for a model that recommends nothing: small ones wander
USUAL = {
    "temperature": 0.7,
    "top_p": 0.9,
    "penalty": 1.1,
}


def _models_own(parameter: Parameter[Any]) -> Any:
    usual = f"; {USUAL[parameter.name]} if it names no sampling" if parameter.name in USUAL else ""
    return sampling_option(
        parameter, f"{parameter.about} By default, what the model recommends{usual}."
    )


HELP = (
    "/stats shows speed and acceptance, /reset forgets the conversation, /quit (or end of "
    "input) ends it"
)


@expand
def chat(
    model: common.Model = "smollm2",
    system: Annotated[
        str | None, typer.Option(help="Instructions that the conversation begins with.")
    ] = None,
    method_options: MethodOptions = MethodOptions(),
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of new tokens of an answer.")
    ] = 512,
    target_options: TargetOptions = TargetOptions(),
    temperature: Annotated[float | None, _models_own(TEMPERATURE)] = None,
    top_k: Annotated[int | None, _models_own(TOP_K)] = None,
    top_p: Annotated[float | None, _models_own(TOP_P)] = None,
    penalty: Annotated[float | None, _models_own(PENALTY)] = None,
    seed: Seed = SEED.default,
    drafter_options: DrafterOptions = DrafterOptions(),
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Print accepted draft tokens in green.")
    ] = False,
    threads: common.Threads = None,
) -> None:
    """Talk with a model. The keys and values of the conversation are kept, so only new messages are
    read.

    One line of standard input is one message. /stats shows speed and acceptance, /reset forgets the
    conversation, and /quit ends it.

    Sampling settings that are not given are those that the model recommends
    (generation_config.json, or its GGUF file).
    """
    from longdraft.engine.conversation import Conversation
    from longdraft.models.chat import chat_tokens
    from longdraft.models.templates import Templates

    spec = method_options.spec(drafter_options, target_options.trained(model), seed)
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "penalty": penalty}
    first = [] if system is None else [{"role": "system", "content": system}]
    with closing(Templates()) as templates:
        templates.start()  # beside the model, which takes longer to load
        target, tokenizer = common.load_target(model, target_options, threads)
        spec.check(target, None)
        sampler = sampling(target, given)
        tokens = partial(chat_tokens, tokenizer, render=templates.render)
        tokens([*first, {"role": "user", "content": "?"}])  # refuses a model without a template now
        talk = Talk(
            Conversation(target, sampler, seed),
            tokenizer,
            tokens,
            first,
            max_new_tokens,
            show_drafts,
        )
        if sys.stdin.isatty():
            print(f"{target.name}, {spec.name}: {HELP}", file=sys.stderr)
        # one drafter for all answers: it may keep what it has read
        converse(talk, spec.paced(target))
    if sys.stdin.isatty():
        print(file=sys.stderr)


def sampling(target: Any, given: dict[str, float | None]) -> Any:
    """The sampler of what was given, and else of what the model recommends, or USUAL if it
    recommends nothing.
    """
    from longdraft.models.recommended import EVERYTHING, recommended_settings, sampler_of

    recommended = recommended_settings(target)
    chosen = {k: v for k, v in given.items() if v is not None}
    window = EVERYTHING if "penalty" in recommended and "penalty" not in chosen else WINDOW.default
    return sampler_of({**(recommended or _usual(target)), **chosen}, window)


def _usual(target: Any) -> dict[str, float]:
    """USUAL, without its penalty where the model has one."""
    own = getattr(target.hf.generation_config, "repetition_penalty", None) or 1.0
    return {name: value for name, value in USUAL.items() if name != "penalty" or own == 1}


def converse(talk: Talk, drafter: Any) -> None:
    """Answer each line of standard input until it ends."""
    for line in lines():
        if (command := line.strip()) == "/quit":
            return
        if command.startswith("/"):
            talk.command(command)
        elif command:
            talk.say(line, drafter)


def lines() -> Iterator[str]:
    """The lines of standard input without their ends. Bytes that are not UTF-8 become replacement
    characters.
    """
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    while True:
        try:
            line = input("> ") if sys.stdin.isatty() else sys.stdin.readline()
        except EOFError:
            return
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            print("\nlongdraft: note: /quit or Ctrl-D ends the conversation", file=sys.stderr)
            continue
        if not line and not sys.stdin.isatty():
            return
        yield line.rstrip("\r\n")


class Talk:
    """The conversation so far, and the cost of its answers.

    tokens: from messages to the prompt. first: the messages that every conversation begins with.
    """

    def __init__(
        self,
        conversation: Any,
        tokenizer: Any,
        tokens: Any,
        first: Messages,
        limit: int,
        show_drafts: bool,
    ):
        from rich.console import Console

        self.conversation = conversation
        self.tokenizer = tokenizer
        self.tokens = tokens
        self.first = first
        self.limit = limit
        self.show_drafts = show_drafts
        self.console = Console(highlight=False)
        self.messages = list(first)
        self.last = ""

    def say(self, text: str, drafter: Any) -> None:
        """Print the answer to a message while it is decoded; Ctrl-C ends the answer, and what was
        said of it stays.
        """
        from longdraft.engine.generate import Stats
        from longdraft.models.text import text_of

        asked = [*self.messages, {"role": "user", "content": text}]
        said = list[int]()
        stats = Stats()
        prompt = list[int]()
        known = 0
        try:
            prompt = self.tokens(asked)
            known = self.conversation.known(prompt)
            self._print(prompt, known, drafter, stats, said)
        except KeyboardInterrupt:
            print("\nlongdraft: note: the answer was interrupted", file=sys.stderr)
        except (
            InputError
        ) as error:  # a conversation that is too long, or that the template refuses, for example
            print(f"longdraft: {error}; /reset begins a new conversation", file=sys.stderr)
            return
        if not said:
            return
        self.messages = [*asked, {"role": "assistant", "content": text_of(self.tokenizer, said)}]
        self.last = figures(stats, len(prompt), known, self.conversation.target.positions)

    def _print(
        self, prompt: list[int], known: int, drafter: Any, stats: Any, said: list[int]
    ) -> None:
        """Decode an answer into `said`. Accepted drafts are green where that was asked for."""
        from longdraft.cli.demo import DRAFTED, paint
        from longdraft.models.text import Detokenizer

        style = DRAFTED if self.show_drafts else ""
        text = Detokenizer(self.tokenizer)
        room = self.conversation.target.positions - len(prompt)
        with common.reading([prompt[known:]]) as tick:
            steps = self.conversation.answer(
                prompt, max(1, min(self.limit, room)), drafter, stats, tick
            )
            first = next(steps, None)
        for step in chain([] if first is None else [first], steps):
            *drafts, own = step.tokens[0]
            said += [*drafts, own]
            paint(self.console, text.push(drafts), style)
            paint(self.console, text.push([own]), "")
        paint(self.console, text.flush() + "\n", "")

    def command(self, line: str) -> None:
        """A line that begins with a slash."""
        if line == "/reset":
            self.messages = list(self.first)
            self.last = ""
        elif line == "/stats":
            print(self.last or "nothing was said yet", file=sys.stderr)
        else:
            print(HELP, file=sys.stderr)


def figures(stats: Any, prompt: int, known: int, positions: int) -> str:
    """The latest answer in one line."""
    from longdraft.recording.decode_figures import timings

    return (
        f"{stats.emitted} tokens, {timings(stats)['tokens_per_s']:.1f} tokens/s,"
        f" mean acceptance length {stats.mean_acceptance_length:.2f}; of {prompt} prompt "
        f"tokens {known} were in the"
        f" cache, and the others took {stats.prefill_s:.2f} s; {prompt + stats.emitted} of "
        f"{positions} positions used"
    )
