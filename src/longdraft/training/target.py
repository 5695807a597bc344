"""Small targets trained from scratch: a Qwen3, or a hybrid.

On this machine's Python files and on books.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from longdraft.errors import InputError
from longdraft.families import QWEN3
from longdraft.models.loading import BUNDLED
from longdraft.training import checkpoint, data, guide, hybrid, probes, tokenizer
from longdraft.training.rows import IGNORE, batch
from longdraft.training.trainer import TrainingSettings

MODULES = ("argparse", "tarfile", "difflib", "subprocess", "inspect", "pickle", "mailbox")
MODULES += ("optparse", "doctest", "imaplib", "zipfile", "pathlib", "typing", "turtle")
# Excluded from training, also of the tokenizer: files of the standard library, three books, two
# packages.
HELD_OUT = [
    *(f"stdlib/{name}.py" for name in MODULES),
    *(f"books/{name}.txt" for name in ("dracula", "great-expectations", "moby-dick")),
    *("typer/*", "accelerate/*"),
]
GUIDANCE = 0.3  # weight of the attention guidance beside the loss


def prepare(
    folder: Path, sources: data.Sources, vocab: int, positions: int, tokenizer_of: str = ""
) -> tuple[data.Corpus, data.Corpus]:
    """Make the tokenizer and both corpora unless they exist; -> (training, held out).

    They are under folder/data.
    tokenizer_of: 'bundled' or the folder of a model whose tokenizer to use; "": train a new one.
    Raises InputError.
    """
    home = folder / "data"
    if not (home / "done").exists():
        seen, unseen = data.split(data.collect(sources), HELD_OUT)
        if not seen:
            raise InputError("nothing to train on: all text is held out or unreadable")
        if tokenizer_of:
            made = tokenizer.load(BUNDLED if tokenizer_of == "bundled" else Path(tokenizer_of))
            if (size := made.get_vocab_size()) > vocab:
                raise InputError(
                    f"the tokenizer of {tokenizer_of} has {size} entries: give --vocab "
                    f"{size} or more"
                )
        else:
            made = tokenizer.train(tokenizer.sample([d.text for d in seen], 12_000_000), vocab)
        tokenizer.save(made, home / "tokenizer", positions)
        data.tokenize(seen, made, tokenizer.EOS_ID).save(home / "train")
        data.tokenize(unseen, made, tokenizer.EOS_ID).save(home / "heldout")
        (home / "done").touch()
    return data.load(home)


def build(
    vocab: int, layers: int, hidden: int, heads: int, mlp: int, positions: int, seed: int
) -> Any:
    """A new Qwen3 with multi-head attention; input and output embeddings are separate.

    Raises InputError.
    """
    if hidden % heads or (hidden // heads) % 2:
        raise InputError(
            f"--hidden is {hidden}: give a multiple of 2 * --heads, which is {2 * heads}"
        )
    config = QWEN3.config_class(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=False,
        use_cache=True,
        **tokenizer.SPECIAL,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    return QWEN3.causal_class(config)


ARCHITECTURES = {"qwen3": build, "qwen3_5_text": hybrid.build}  # by model_type


def loss(model, tokens: torch.Tensor, labels: torch.Tensor, bf16: bool) -> torch.Tensor:
    """Mean next-token loss of tokens, labels [B,S+1].

    bf16: autocast, while weights stay float32.
    """
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16), hybrid.in_segments():
        hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        wanted = labels[:, 1:].flatten()
        if hasattr(F, "linear_cross_entropy"):  # torch >= 2.13: the logits are never stored
            return F.linear_cross_entropy(
                hidden.flatten(0, 1), model.lm_head.weight, wanted, ignore_index=IGNORE
            )
        logits = model.lm_head(hidden).float().flatten(0, 1)
        return F.cross_entropy(logits, wanted, ignore_index=IGNORE)


def objective(model, corpus: data.Corpus, settings: TrainingSettings, copies: float, guide_to: int):
    """The function step -> loss, a pure function of the weights and the step.

    Before step `guide_to` attention is guided.
    """
    s = settings
    vocab = model.config.vocab_size

    def loss_of(step: int) -> torch.Tensor:
        count, length = s.plan.shape(step)
        tokens, labels, sources = batch(
            corpus, count, length, s.seed, step, code=s.code, copies=copies, vocab=vocab
        )
        if step >= guide_to:
            return loss(model, tokens, labels, s.bf16)
        plain, extra = guide.guided(model, lambda: loss(model, tokens, labels, s.bf16), sources)
        return plain + GUIDANCE * extra

    return loss_of


def export(
    folder: Path, out: Path, model, heldout: data.Corpus, facts: dict, contexts: list[int]
) -> dict:
    """Write the run's newest checkpoint as a model folder in bfloat16; -> training.json's record.

    Raises InputError.
    """
    path = checkpoint.latest(folder / "checkpoints")
    state = checkpoint.load(path, model, [])
    draft = out.with_name(f".{out.name}.writing")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        figures = probes.full(model, heldout, model.config.vocab_size, contexts) if contexts else {}
        weights = {
            name: value.to(torch.bfloat16) for name, value in checkpoint.weights(model).items()
        }
        save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
        config = {
            **model.config.to_diff_dict(),
            "architectures": [type(model).__name__],
            "dtype": "bfloat16",
        }
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for file in (folder / "data" / "tokenizer").iterdir():
            shutil.copy(file, draft)
        files = {"patterns": HELD_OUT, "files": heldout.names}
        (draft / data.HOLDOUT).write_text(json.dumps(files, indent=1) + "\n")
        record = {
            "parameters": sum(p.numel() for p in model.parameters()),
            **facts,
            **state,
            "full_probes": figures,
        }
        (draft / "training.json").write_text(json.dumps(record, indent=1) + "\n")
        out.mkdir(parents=True, exist_ok=True)
        for file in sorted(draft.iterdir()):
            file.chmod(0o644)  # safetensors writes 0600
            os.replace(file, out / file.name)  # each file is replaced atomically
    except OSError as error:
        raise InputError(f"could not write {out}: {error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return record
