"""From a name to a model that is safe to run: what cannot run right is refused in one line, never run wrong."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from huggingface_hub.utils import logging as hub
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from longdraft.backends.architecture import windows_of
from longdraft.backends.attention import NAME
from longdraft.core.rules import end_tokens
from longdraft.core.tree import Tree
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.memory import align_weights
from longdraft.models.untrusted import OURS, check_tokenizer, check_weights, neutral

BUNDLED = Path(__file__).parents[1] / "assets" / "models" / "target"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PATIENCE = 5.0  # seconds
HOW = "give 'bundled', a folder with config.json and *.safetensors, or a Hub id like org/name"
# Architectures whose every pass the tests compare with stock attention; any other is compared once when it is loaded.
TRIED = {"llama", "qwen2", "qwen3", "mistral", "gpt_oss", "qwen3_moe"}


def load(name: str = "bundled", dtype: str = "bfloat16", device: str | None = None) -> tuple[LM, Any]:
    """A target and its tokenizer from 'bundled', a local folder or a Hub id (the only case that uses the network).

    Weights come from safetensors alone and no code of the model's folder is run. Raises InputError.
    """
    lm = load_lm(name, dtype, device)
    lm.rules()  # if one is refused, then here, and not when the first text begins
    where = lm.hf.name_or_path
    local = Path(where).is_dir() or not reachable(name)
    _try(name, lambda: check_tokenizer(where, lm.hf.config, local))
    tokenizer = _try(
        name, lambda: AutoTokenizer.from_pretrained(where, local_files_only=local, trust_remote_code=False)
    )
    lm.end_tokens = end_tokens(lm.hf.generation_config, tokenizer)
    return lm, tokenizer


def load_lm(name: str, dtype: str = "bfloat16", device: str | None = None) -> LM:
    """A model without its tokenizer. Raises InputError."""
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}: choose {' or '.join(DTYPES)}")
    where, local = _place(name)
    local = local or not reachable(name)
    options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    _try(name, lambda: check_weights(where, local))
    config = _try(name, lambda: neutral(AutoConfig.from_pretrained(where, **options)))
    _try(name, lambda: refuse(config))
    options |= {"config": config, "dtype": DTYPES[dtype], "use_safetensors": True, "output_loading_info": True}
    hf, info = _try(name, lambda: AutoModelForCausalLM.from_pretrained(where, **options, **OURS))
    if info["missing_keys"]:
        raise InputError(
            f"{name} lacks weights ({sorted(info['missing_keys'])[0]} and others): its safetensors are incomplete"
        )
    hf = hf.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if config.model_type not in TRIED:
        _try(name, lambda: probe(hf))
    align_weights(hf)
    return LM(hf, name)


def token_ids(tokenizer: Any, text: str, control: bool = False, **options: Any) -> list[int]:
    """The ids of a text. A special token that it spells, such as <|im_end|>, is read as text unless `control`.

    Special is what the tokenizer marks so; ids that it adds itself, such as that of the beginning, are as ever.
    """
    if type(tokenizer).__name__ != "MistralCommonBackend":  # which reads no special token from text, nor this option
        options["split_special_tokens"] = not control
    return list(tokenizer(text, verbose=False, **options)["input_ids"])


def quiet(threads: int | None) -> None:
    """The libraries say nothing; torch uses so many threads."""
    hub.set_verbosity_error()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if threads is not None:
        torch.set_num_threads(threads)


@cache
def reachable(name: str) -> bool:
    """Whether the Hub has this model. Where it does not answer within seconds, what was fetched before must do.

    Asked first, because a download tries a Hub that does not answer again and again. Raises InputError.
    """
    try:
        HfApi().model_info(name, timeout=PATIENCE)
    except (RepositoryNotFoundError, GatedRepoError) as error:
        why = "is gated: accept its terms on the Hub" if isinstance(error, GatedRepoError) else "is not there"
        raise InputError(f"the Hub says that {name} {why}; {HOW}") from None
    except Exception:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            raise InputError(
                f"cannot reach the Hub for {name}, and it was not fetched before: connect to the network, or {HOW}"
            ) from None
        return False
    return True


def _place(name: str) -> tuple[str, bool]:
    """Where to load from, and whether that is this machine."""
    if name == "bundled":
        if not (BUNDLED / "model.safetensors").exists():
            raise InputError(
                f"the bundled model is not in this installation ({BUNDLED}): reinstall longdraft, or {HOW}"
            )
        return str(BUNDLED), True
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if folder.exists() or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name):
            raise InputError(f"no model folder at {name}: {HOW}")
        return name, False
    if not (folder / "config.json").is_file():
        raise InputError(f"{name} has no config.json: {HOW}")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(p.name for kind in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(kind))
        why = f"only pickled weights ({pickled[0]}), which can run code when read" if pickled else "no weights"
        raise InputError(f"{name} has {why}: convert them to safetensors, or {HOW}")
    return str(folder), True


def _try(name: str, action: Any) -> Any:
    """Transformers' own errors as one line."""
    try:
        return action()
    except InputError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"cannot load {name}: {reason[:300].rstrip('.')}; {HOW}") from error


def refuse(config: Any) -> None:
    """Raises InputError for what cannot run right: no causal LM, no attention interface, layers without keys."""
    kind = getattr(config, "model_type", "?")
    try:
        cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise InputError(f"{kind} is not a causal language model of Transformers: use one that is") from None
    windows_of(config)
    c = config.get_text_config()
    ropes = getattr(c, "rope_parameters", None) or {}
    if any(r.get("rope_type") == "longrope" for r in (ropes, *ropes.values()) if isinstance(r, dict)):
        why = "longrope rotates differently once the text is long, and cached keys do not follow"
        raise InputError(f"{kind}'s {why}: use a model of another rope type")
    stateful = getattr(cls, "_is_stateful", False)
    if stateful or not getattr(cls, "_supports_attention_backend", False):
        why = "keeps a state that cannot be rolled back" if stateful else "has no attention interface in Transformers"
        raise InputError(f"{kind} {why}, so longdraft cannot run it: use a Llama, Qwen or Mistral, say")


@torch.inference_mode()
def probe(hf: Any, tokens: int = 12) -> None:
    """Compare one pass with stock attention on an architecture that the tests do not cover. Raises InputError."""
    config = hf.config.get_text_config()
    ids = torch.arange(3, 3 + tokens, device=hf.device)[None] % config.vocab_size
    window = getattr(config, "sliding_window", None)
    if window:
        config.sliding_window = tokens // 3  # so that so few tokens show whether both apply it to the same layers
    try:
        hf.set_attn_implementation("eager")
        stock = hf(input_ids=ids, use_cache=False).logits.float()
        lm = LM(hf)
        cache = lm.new_cache(1, 2 * tokens)
        lm.prefill(ids[0, : tokens // 2].tolist(), cache)
        ours = lm(Tree.chain(ids[:, tokens // 2 :]), cache).float()
    finally:
        if window:
            config.sliding_window = window
    error = (ours - stock[:, tokens // 2 :]).abs().max() / stock.abs().max()
    if not error < 0.05:
        raise InputError(
            f"{hf.config.model_type}: {NAME}'s attention differs from Transformers' own by {float(error):.1%}"
            " of the largest logit, so its output would be wrong: use another architecture"
        )
