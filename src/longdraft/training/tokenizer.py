"""A byte-level BPE tokenizer from a sample of the training text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from longdraft.errors import InputError

EOS = "<|endoftext|>"  # ends a document and pads; there is no bos
EOS_ID = 0  # special tokens come first
# in a model's config
SPECIAL = {"bos_token_id": None, "eos_token_id": EOS_ID, "pad_token_id": EOS_ID}


def train(texts: Iterable[str], vocab: int) -> Tokenizer:
    """Train a tokenizer with ids 0..vocab-1, eos = 0.

    Every byte is an entry, so any text can be encoded. Raises InputError.
    """
    if not 257 < vocab <= 65536:
        raise InputError(
            f"--vocab is {vocab}: give 258 to 65536 (all bytes, an end token, and some merges)"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def sample(texts: list[str], characters: int) -> Iterator[str]:
    """Evenly spread pieces of the texts, about `characters` in all; deterministic."""
    share = min(1.0, characters / max(1, sum(map(len, texts))))
    for text in texts:
        for begin in range(0, len(text), 20_000):
            yield text[begin : begin + max(1, int(20_000 * share))]


def save(tokenizer: Tokenizer, folder: Path, positions: int) -> None:
    """Save it for AutoTokenizer.from_pretrained(folder)."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=EOS,
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(folder)


def load(folder: Path) -> Tokenizer:
    """The tokenizer in a folder. Raises InputError."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:  # a damaged file raises different errors in each library
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:160]
        raise InputError(
            f"{folder}: no readable tokenizer there ({reason}): give 'bundled' or a model's folder"
        ) from None
