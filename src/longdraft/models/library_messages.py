"""Shows messages of Transformers and the Hub's client on the command line.

Only errors, and warnings of a model that may compute something else than its makers meant.
"""

from __future__ import annotations

import logging
import re
import sys

from huggingface_hub.utils import logging as hub
from transformers.utils import logging as library

MAX_LINE = 400  # characters of a line
# Warnings that change no result: programming interfaces, speed, memory, training, and the report of
# weights, which loading checks itself. A warning that is not known here is shown.
HARMLESS = re.compile(
    r"deprecat|removed in v|GenerationMixin|trust_remote_code|LOAD REPORT|loss_type"
    r"|token indices sequence length|gradient|checkpointing format"
    r"|(flash|attn|attention).?implementation|flash.?attention|kernels?\b|fast path|slow"
    r"|memory|warmup|install",
    re.IGNORECASE,
)


def only_serious() -> None:
    """Print such messages, a line each, in place of all that the libraries print."""
    hub.set_verbosity_error()
    library.disable_progress_bar()
    library.set_verbosity_warning()
    library.disable_default_handler()
    library.add_handler(LINES)  # once, however often it is added
    LINES.said.clear()


class MessageHandler(logging.Handler):
    """Prints each message once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said = set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        serious = record.levelno >= logging.ERROR or not HARMLESS.search(text)
        if serious and text not in self.said:
            self.said.add(text)
            print(f"longdraft: note: Transformers warns: {text[:MAX_LINE]}", file=sys.stderr)


LINES = MessageHandler()
