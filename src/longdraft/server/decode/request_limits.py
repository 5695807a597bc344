"""Limits of requests that depend on this model or this server's room; the schema has the others."""

from __future__ import annotations

from longdraft.engine.session import Session
from longdraft.server.decode.work import RequestWork
from longdraft.server.http.entry import current
from longdraft.server.http.problems import Problem
from longdraft.server.openai.schema import SampledRequest


def check_choices(work: RequestWork, session: Session) -> None:
    """Raises Problem for more choices than can run and wait together."""
    if session.queue is not None and work.choices > (most := session.queue + session.batch):
        field = "n" if len(work.prompts) == 1 else "prompt"
        raise Problem(
            400,
            f"{work.choices} choices are more than the {most} that run or wait: ask for fewer",
            field,
        )


def check_length_of_answer(wanted: int, prompt: int, most_new: int, room: int) -> None:
    """Raises Problem for more new tokens than there may be, if the server is strict.

    room: the tokens that the context has left after the prompt.
    """
    if not current().strict:
        return
    if wanted > most_new:
        why = f"{wanted} new tokens are more than the {most_new} allowed here"
        raise Problem(400, why, "max_tokens")
    if wanted > room:
        why = (
            f"{prompt} prompt tokens and {wanted} new ones exceed this server's limit of "
            f"{prompt + room}: give at most {room} new tokens"
        )
        raise Problem(400, why, "max_tokens", "context_length_exceeded")


def check_numbers(body: SampledRequest, wanted: int, vocab: int) -> None:
    """Raises Problem for tokens outside the vocabulary, and for contradicting lengths.

    The minimum length must not exceed the maximum.
    """
    if any(int(token) >= vocab for token in body.logit_bias):
        why = f"a biased token is not in the model's vocabulary of {vocab}: leave it out"
        raise Problem(400, why, "logit_bias")
    if body.min_tokens > wanted:
        why = f"{body.min_tokens} tokens at least are more than the {wanted} at most: give fewer"
        raise Problem(400, why, "min_tokens")
