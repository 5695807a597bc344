"""Finds the tokens of a conversation that the model wrote itself.

By the marks of its chat template.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from longdraft.errors import InputError
from longdraft.models.chat import chat_tokens
from longdraft.models.text import token_ids

MARK = "0a9f3b7c5d"


@dataclass(frozen=True)
class Turns:
    """The marks of an answer in a conversation.

    It begins after the tokens `begin` and ends with the token `end`, which is part of it.
    """

    begin: tuple[int, ...]
    end: int

    @classmethod
    def of(cls, tokenizer: Any) -> Turns:
        """The marks of a tokenizer's chat template.

        Raises InputError for a model without a chat template, and for a template with other marks.
        """
        asked = [{"role": "user", "content": MARK}]
        whole = chat_tokens(tokenizer, asked)
        before = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=False)
        ids = token_ids(tokenizer, before, True, add_special_tokens=False)
        known = zip(whole, ids, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], known))
        answered = [*asked, {"role": "assistant", "content": MARK[::-1]}]
        text = tokenizer.apply_chat_template(answered, tokenize=False)
        around, _, after = text.partition(MARK[::-1])
        # where the question's own mark announces the answer, as [/INST] does
        between = around.rpartition(MARK)[2]
        begin = whole[shared:] or token_ids(tokenizer, between, True, add_special_tokens=False)
        end = token_ids(tokenizer, after, True, add_special_tokens=False)[:1]
        if not begin or not end:
            raise InputError(
                "this chat template does not mark where an answer begins and ends: leave "
                "out --answers"
            )
        return cls(tuple(begin), end[0])

    def answers(self, tokens: Tensor) -> Tensor:
        """Whether token t+1 belongs to an answer that begins in the row, bool [B,S] at t.

        tokens [B,S].
        """
        mask = torch.zeros_like(tokens, dtype=torch.bool)
        size = len(self.begin)
        if tokens.shape[1] < size:
            return mask
        mark = torch.tensor(self.begin, device=tokens.device)
        begins = (tokens.unfold(1, size, 1) == mark).all(-1)
        for b, begin in begins.nonzero().tolist():
            first = begin + size  # of the answer
            ends = (tokens[b, first:] == self.end).nonzero()
            mask[b, first - 1 : first + int(ends[0]) if len(ends) else None] = True
        return mask
