"""The constraints that requests ask for, made for the server's model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from longdraft.constraints import Constraints
from longdraft.core import Constraint
from longdraft.errors import InputError
from longdraft.server.decode.talk import Dialogue
from longdraft.server.http.entry import current
from longdraft.server.http.problems import Problem
from longdraft.server.openai.structured import Structure

# Fields that would let an answer end before it is complete, or go on after it, and their effects.
CONTRARY = {"ignore_eos": "lets it go on", "min_tokens": "could forbid its end"}
CUTTING = "could end it earlier"


class Structures:
    """Makes one constraint at a time, outside the event loop's thread.

    So other calls find a free thread.
    """

    def __init__(self, target: Any, tokenizer: Any):
        self._target = target
        self._tokenizer = tokenizer
        self._one = asyncio.Lock()

    @cached_property
    def made(self) -> Constraints:
        """The maker of constraints, built for the first request that needs it.

        Building takes a second for a large vocabulary.
        """
        return Constraints.of(self._target, self._tokenizer)

    async def of(self, body: Any, talk: Dialogue | None = None) -> Constraint | None:
        """The constraint of a request's answer, with a chat's calls and reasoning; None: any text.

        Raises Problem.
        """
        structure: Structure | None = getattr(body, "structure", None)
        field = "tools" if structure is None else body.structure_field
        if structure is None and (talk is None or not talk.offer.needs_grammar):
            return None
        for name, why in self._contrary(body, talk, structure):
            raise Problem(
                400, f"{name}: a structured answer ends where it is complete, and this {why}", name
            )
        try:
            async with self._one:
                return await asyncio.to_thread(self._make, talk, structure)
        except InputError as error:
            raise Problem(400, str(error), field) from None

    def _contrary(
        self, body: Any, talk: Dialogue | None, structure: Structure | None
    ) -> Iterator[tuple[str, str]]:
        """The fields that contradict a structure.

        Stop strings apply to content, so they leave calls whole.
        """
        for name, why in CONTRARY.items():
            if getattr(body, name, None):
                yield name, why
        ends = {*self._target.end_tokens, *(() if talk is None else talk.dialect.ends)}
        if structure is not None and body.stops:
            yield "stop", CUTTING
        if not ends.issuperset(body.stop_token_ids):
            yield "stop_token_ids", CUTTING

    def _make(self, talk: Dialogue | None, structure: Structure | None) -> Constraint:
        if structure is not None:
            structure, lost = structure.relaxed()
            current().warnings += [f"{name} of the schema is not enforced" for name in lost]
        grammar = None if talk is None else talk.grammar(structure)
        if grammar is not None:
            return self.made.lark(grammar, "the structure of the answer")
        assert structure is not None
        return structure.made(self.made)
