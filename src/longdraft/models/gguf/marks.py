"""Control tokens of a GGUF file that are known by their texts.

A file names one end token, or two, of the several that a model writes, and converters have given
others the type of words, which a tokenizer splits into pieces.
"""

from __future__ import annotations

import numpy as np

from longdraft.models.gguf.file import GGUF

KEY = "tokenizer.ggml."
# types of tokens
CONTROL = 3
USER_DEFINED = 4
# metadata: what ends a text, a turn or a file of code
NAMED = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
OF_TEXTS = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>")
OF_TURNS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<end_of_utterance>",
    "<|return|>",
)
OF_INFILLS = ("<EOT>", "▁<EOT>")  # Code Llama's end of the middle
# A fill-in-the-middle model that writes one of these begins another file, or pads.
OF_FILES = (
    "<|file_sep|>",
    "<file_sep>",
    "<|repo_name|>",
    "<repo_name>",
    "<reponame>",
    "<|fim_repo|>",
    "<fim-repo>",
)
PADS = ("<|fim_pad|>", "<fim_pad>", "<fim-pad>")
ENDS = (*OF_TEXTS, *OF_TURNS, *OF_INFILLS, *OF_FILES, *PADS)
OF_PARTS = ("<|fim_{}|>", "<fim_{}>", "<fim-{}>", "<|code_{}|>")
PARTS = (
    *(form.format("prefix") for form in OF_PARTS),
    *(form.format("suffix") for form in OF_PARTS),
    *(form.format("middle") for form in OF_PARTS),
    *("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
TURNS = (
    "<|im_start|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<start_of_turn>",
)
MARKS = frozenset((*ENDS, *PARTS, *TURNS))
# where the vocabulary has the second, the first ends only a part of a turn
WITHIN = {"<|end|>": "<|return|>"}


def end_ids(file: GGUF) -> list[int]:
    """The tokens that end a sequence.

    They end the text, a turn in a chat model, or a file in a model that fills in code. They are
    those that the metadata names, and those of a known text.
    """
    ids = {file.get(f"{KEY}{name}_token_id", int) for name in NAMED}
    known = _ids(file)
    texts = [text for text in ENDS if WITHIN.get(text) not in known]
    return sorted({*ids, *(known.get(text) for text in texts)} - {None})


def retyped(file: GGUF) -> list[str]:
    """Tokens with the text of a control token that the file gives another type."""
    known = _ids(file)
    kinds = file.get(f"{KEY}token_type", np.ndarray)
    return [
        text
        for text, i in known.items()
        if kinds is None or (i < len(kinds) and kinds[i] != CONTROL)
    ]


def note(file: GGUF) -> str:
    """A user's note on such tokens; empty: there are none."""
    odd = retyped(file)
    if not odd:
        return ""
    more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
    problem = f"{file.path.name} does not mark {odd[0]}{more} as control"
    return f"{problem}: longdraft reads such tokens as control"


def _ids(file: GGUF) -> dict[str, int]:
    """The tokens whose texts are known, in the vocabulary's order."""
    texts = file.get(f"{KEY}tokens", list) or []
    return {text: i for i, text in enumerate(texts) if text in MARKS}
