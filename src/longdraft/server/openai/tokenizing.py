"""Tokens of texts and conversations, and facts about a tokenizer, as vLLM's server gives them."""

from __future__ import annotations

from typing import Any

from longdraft.server.decode.service import Service
from longdraft.server.decode.talk import prompted
from longdraft.server.http.long_texts import MOST_TOKENIZED
from longdraft.server.openai.schema import TokenizeRequest


async def tokenized(service: Service, body: TokenizeRequest) -> dict[str, Any]:
    """The tokens that a completion of the prompt, or a chat with the messages, begins with."""
    if body.messages is not None:
        tools = [tool.model_dump(exclude={"function": {"strict"}}) for tool in body.tools] or None
        messages = [message.plain for message in body.messages]
        _, messages, tools = prompted(service.tokenizer, messages, tools)
        tokens = await service.conversation(messages, tools, body.turn)
    else:
        tokens = await service.tokens(
            body.prompt or "", body.add_special_tokens is not False, MOST_TOKENIZED
        )
    answer: dict[str, Any] = {
        "tokens": tokens,
        "count": len(tokens),
        "max_model_len": service.room,
    }
    if body.return_token_strs:
        answer["token_strs"] = await service.aside(
            len(tokens), service.tokenizer.convert_ids_to_tokens, tokens
        )
    return answer


def about_tokenizer(service: Service) -> dict[str, Any]:
    """The chat template, the special tokens by name, and the maximum length in tokens."""
    template = getattr(service.tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    special = {name: getattr(service.tokenizer, name, None) for name in names}
    return {"chat_template": template, **special, "model_max_length": service.room}
