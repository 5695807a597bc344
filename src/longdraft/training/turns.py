"""Which tokens of a conversation the model wrote itself, found by the marks of its chat
template.
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
    """An answer begins after the tokens `begin` and ends with the token `end`, which is part of
    it.
    """

    begin: tuple[int, ...]
    end: int

    @classmethod
    def of(cls, tokenizer: Any) -> Turns:
        """Raises InputError for a model without a chat template, and for a template with other
        marks.
        """
        asked = [{"role": "user", "content": MARK}]
        whole = chat_tokens(tokenizer, asked)
        before = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=False)
        known = zip(
            whole, token_ids(tokenizer, before, True, add_special_tokens=False), strict=False
        )
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], known))
        answered = [*asked, {"role": "assistant", "content": MARK[::-1]}]
        around, _, after = tokenizer.apply_chat_template(answered, tokenize=False).partition(
            MARK[::-1]
        )
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
        """tokens [B,S] -> bool [B,S]: at t, whether token t+1 belongs to an answer that begins in
        the row.
        """
        mask = torch.zeros_like(tokens, dtype=torch.bool)
        size = len(self.begin)
        if tokens.shape[1] < size:
            return mask
        begins = (tokens.unfold(1, size, 1) == torch.tensor(self.begin, device=tokens.device)).all(
            -1
        )
        for b, begin in begins.nonzero().tolist():
            first = begin + size  # of the answer
            ends = (tokens[b, first:] == self.end).nonzero()
            mask[b, first - 1 : first + int(ends[0]) if len(ends) else None] = True
        return mask
