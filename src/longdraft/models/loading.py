"""Loads models and tokenizers.

A model that would not run correctly is refused with a one-line error.
"""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from transformers import AutoConfig, AutoTokenizer

from longdraft.backends.packed_linear import round_inputs
from longdraft.backends.quantize import BITS, quantize
from longdraft.core.processes import ALONE, Team
from longdraft.core.rules import end_tokens
from longdraft.errors import InputError
from longdraft.models import eight_bits, fetch, mistral
from longdraft.models.alignment import Area, align_weights
from longdraft.models.classes import class_of, is_multimodal
from longdraft.models.gguf import config as gguf_config
from longdraft.models.gguf import file as gguf
from longdraft.models.gguf import marks, others
from longdraft.models.gguf import model as gguf_model
from longdraft.models.gguf import tokenizer as gguf_tokenizer
from longdraft.models.identity import digest
from longdraft.models.library_messages import only_serious
from longdraft.models.lm import AUTO, KV_BITS, LM
from longdraft.models.loading_progress import Report, between, viewed
from longdraft.models.multimodal import text_model, without_towers
from longdraft.models.quantized import reader as quantized
from longdraft.models.rope import Rope
from longdraft.models.support import TESTED, in_one_line, refuse, verify
from longdraft.models.tensor_parallel import options_for, settle
from longdraft.models.untrusted import OURS, check_tokenizer, check_weights, neutral
from longdraft.ops import native

BUNDLED = Path(__file__).parents[1] / "assets" / "models" / "target"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ACTIVATIONS = ("int8", "full")
KV = (*KV_BITS, "full")
# Fractions of the time of loading a GGUF file after which weights have been read, and after which
# they lie in the kernels' order.
READ = 0.9
ALIGNED = 0.95
TIMEOUT = 5.0  # seconds to wait for the Hub
HUB_ID = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
UNDIVIDED = "and cannot be divided among processes: start without torchrun"
HOW = (
    "give 'bundled', a model that `longdraft fetch` lists, a folder with config.json and "
    "*.safetensors, a .gguf file, hf:ORG/REPO:TYPE, ollama:NAME, or a Hub id like org/name"
)


def load(
    name: str = "bundled",
    dtype: str = "bfloat16",
    device: str | None = None,
    rope: str | None = None,
    weights: str | None = None,
    kv: str | None = None,
    team: Team = ALONE,
    activations: str | None = None,
) -> tuple[LM, Any]:
    """A target and its tokenizer.

    name: 'bundled', a folder, a .gguf file (any part of a split one), a model of `longdraft fetch`,
    ollama:NAME, hf:ORG/REPO:TYPE (a GGUF file of the Hub), or a Hub id. Only the last two use the
    network.
    rope: KIND:FACTOR (yarn:2) extends the model to this many times its positions (see
    longdraft.models.rope).
    weights: "int8" or "int4" quantizes the linear layers, which makes another model: the target is
    that one.
    kv: "int8" keeps its keys and values in 8 bits, which makes another model too; "full" does not.
    None: "int8" for a GGUF file in bfloat16 where the CPU kernels read them faster.
    activations: "int8" quantizes the inputs of packed layers (of a GGUF file, or of `weights`) to 8
    bits in groups of 32, which is faster and makes another model; "full" does not. None: "int8" for
    a GGUF file where the CPU kernels support it.
    Only safetensors and GGUF are read, and no code of the model's folder is run. Raises InputError.
    """
    with viewed(name) as report:
        hf, options, file = _read(name, dtype, device, rope, weights, kv, team, activations, report)
        tokenizer, note = _tokenizer(name, hf, file)
    options["note"] = "\n".join(filter(None, (options["note"], note))) or None
    lm = LM(hf, **options, end_tokens=end_tokens(hf.generation_config, tokenizer))
    lm.rules()  # refuses an unknown rule now, not at the first prompt
    return lm, tokenizer


def _tokenizer(name: str, hf: Any, file: gguf.GGUF | None) -> tuple[Any, str]:
    """A model's tokenizer, and what a user should know of it."""
    if file is not None:
        return _try(name, lambda: _of_gguf(file)), ""
    where = hf.name_or_path
    local = Path(where).is_dir() or not reachable(name)
    options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    _try(name, lambda: check_tokenizer(where, hf.config, local))
    with mistral.warnings_held() as held:
        made = _try(name, lambda: AutoTokenizer.from_pretrained(where, **options))
    mended = mistral.mend(made, hf.config.model_type)
    if mended is None:
        mistral.say(held)
    return made, mistral.NOTE.format(name) if mended else ""


def _of_gguf(file: gguf.GGUF) -> Any:
    """The tokenizer of a file."""
    own = file.get("general.architecture", str) in gguf_config.READ
    return gguf_tokenizer.build(file) if own else others.tokenizer(file)


def load_lm(
    name: str,
    dtype: str = "bfloat16",
    device: str | None = None,
    rope: str | None = None,
    weights: str | None = None,
    kv: str | None = None,
    team: Team = ALONE,
    activations: str | None = None,
) -> LM:
    """A model without its tokenizer. Raises InputError."""
    with viewed(name) as report:
        hf, options, _ = _read(name, dtype, device, rope, weights, kv, team, activations, report)
    return LM(hf, **options)


def _read(
    name: str,
    dtype: str,
    device: str | None,
    rope: str | None,
    weights: str | None,
    kv: str | None,
    team: Team,
    activations: str | None,
    report: Report,
) -> tuple[Any, dict[str, Any], gguf.GGUF | None]:
    """A Transformers model, the arguments of LM that say how it was loaded, and the GGUF file."""
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}: choose {' or '.join(DTYPES)}")
    if weights is not None and weights not in BITS:
        raise InputError(
            f"weights is {weights[:40]!r}: choose {' or '.join(BITS)}, or leave it out"
        )
    if activations is not None and activations not in ACTIVATIONS:
        raise InputError(
            f"activations is {activations[:40]!r}: choose {' or '.join(ACTIVATIONS)}, or "
            "leave it out"
        )
    check_kv(kv)
    scaling = None if rope is None else Rope.parse(rope)
    is_gguf = fetch.is_file(name)
    if team.size > 1 and (is_gguf or weights):
        subject = "a GGUF file's packed weights" if is_gguf else f"weights of {weights}"
        instead = "leave out --weights"
        if is_gguf:
            instead = "give a folder that `longdraft export` wrote"
        raise InputError(
            f"{subject} cannot be divided among processes: start without torchrun, or {instead}"
        )
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    note = None
    file = None
    area = None
    rounds = activations == "int8" or (activations is None and is_gguf and _can_round(device))
    if is_gguf:
        file = gguf.read(fetch.file_of(name))
        area = gguf_model.area_for(file, DTYPES[dtype])
        # what is quantized anew is rounded later
        at_once = rounds and weights is None
        hf, note = _from_gguf(file, dtype, scaling, between(report, 0, READ), area, at_once)
    else:
        on_cpu = torch.device(device).type == "cpu"
        hf, note = _from_folder(name, dtype, scaling, team, between(report, 0, READ), on_cpu)
    hf = hf.to(device)
    whole = digest(hf) if team.size > 1 else None
    if team.size > 1:
        settle(hf, team)
    verify(hf)
    stored = None if weights is None else digest(hf)
    if weights is not None:
        quantize(hf, weights)
    # later it would have to restore the order of all weights
    whole = digest(hf) if rounds else whole
    if (
        rounds
        and not (rounds := round_inputs(hf, between(report, READ, ALIGNED), in_place=True) > 0)
        and activations
    ):
        raise InputError(
            f"activations=int8 is for packed weights, and {name} has none: give a GGUF "
            "file, or weights=int8"
        )
    align_weights(hf.parameters(), area)
    loaded = {
        "name": name,
        "rope": None if scaling is None else str(scaling),
        "weights": weights,
        "kv": _kv(kv, file is not None and dtype == "bfloat16"),
    }
    loaded |= {"team": team, "activations": "int8" if rounds else None}
    report(1)
    return hf, loaded | {"note": note, "stored": stored, "digest": whole}, file


def check_kv(kv: str | None) -> None:
    """Raises InputError for a kv that no target can be loaded with."""
    if kv is not None and kv not in KV:
        raise InputError(f"kv is {kv[:40]!r}: choose {' or '.join(KV)}, or leave it out")


def _kv(kv: str | None, may_choose: bool) -> str | None:
    """The kv of an LM. may_choose: where none is given, its backend chooses."""
    if kv is None and may_choose:
        return AUTO
    return None if kv == "full" else kv


def _can_round(device: str) -> bool:
    """Whether kernels can multiply inputs of 8 bits here; without them it would only be slower."""
    lib = native.library()
    return (
        torch.device(device).type == "cpu"
        and lib is not None
        and native.name_of(lib) not in native.WITHOUT_INT8
    )


def _from_gguf(
    file: gguf.GGUF,
    dtype: str,
    scaling: Rope | None,
    report: Report,
    area: Area,
    rounds: bool,
) -> tuple[Any, str | None]:
    """A Transformers model, and notes, one a line.

    Notes of weights that do not stay packed, and of tokens' types.
    """
    path = file.path
    kind = file.required("general.architecture", str)
    notes = [marks.note(file)]
    if kind not in gguf_config.READ:
        notes.append(
            f"{path.name} has the architecture {kind}: its weights are dequantized to {dtype}"
        )
    own = kind in gguf_config.READ
    build = partial(_packed, report=report, area=area, rounds=rounds) if own else others.build
    hf = _try(str(path), lambda: build(file, kind, DTYPES[dtype], scaling))
    return hf, "\n".join(filter(None, notes)) or None


def _packed(
    file: gguf.GGUF,
    kind: str,
    dtype: torch.dtype,
    scaling: Rope | None,
    report: Report,
    area: Area,
    rounds: bool,
) -> Any:
    """The model of a file of an architecture that longdraft reads itself."""
    config = gguf_config.config_of(file)
    refuse(config)
    if scaling is not None:
        scaling.extend(config)
    # a probe would compare inputs that are rounded
    rounds = rounds and config.model_type in TESTED
    return gguf_model.build(file, config, dtype, report, area, rounds)


def _from_folder(
    name: str, dtype: str, scaling: Rope | None, team: Team, report: Report, on_cpu: bool
) -> tuple[Any, str | None]:
    """A Transformers model from 'bundled', a folder or the Hub, and notes, one a line.

    on_cpu: packed experts would be slow elsewhere.
    """
    where, local = _place(name)
    local = local or not reachable(name)
    options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    _try(name, lambda: check_weights(where, local))
    config = _try(name, lambda: AutoConfig.from_pretrained(where, **options))
    scheme = _try(name, lambda: quantized.taken(config, on_cpu and team.size == 1))
    config = _try(name, lambda: neutral(config))
    _try(name, lambda: refuse(config))
    if scaling is not None:
        scaling.extend(config)
    if scheme is not None:
        if team.size > 1:
            raise InputError(f"{name} is quantized, {UNDIVIDED}")
        read = partial(quantized.load, where, local, config, scheme, DTYPES[dtype], report)
        return _try(name, read)
    options |= {
        "config": config,
        "dtype": DTYPES[dtype],
        "use_safetensors": True,
        "output_loading_info": True,
    }
    if team.size > 1 and is_multimodal(config):
        raise InputError(
            f"{config.model_type} is multimodal, and cannot be divided among processes: write its "
            "text to a folder with `longdraft export` first, or start without torchrun"
        )
    options |= options_for(config, team)
    multimodal = is_multimodal(config)
    cls = without_towers(class_of(config)) if multimodal else class_of(config)
    packed = eight_bits.is_packed(Path(where) / eight_bits.WEIGHTS)
    read = partial(eight_bits.load_model, cls) if packed else cls.from_pretrained
    hf, info = _try(name, lambda: read(where, **options, **OURS))
    if info["missing_keys"]:
        raise InputError(
            f"{name} lacks weights ({sorted(info['missing_keys'])[0]} and others): its "
            "safetensors are incomplete"
        )
    return in_one_line(config.model_type, lambda: text_model(hf)) if multimodal else hf, None


def quiet(threads: int | None) -> None:
    """Show only the libraries' errors and warnings of wrong results, and set torch's threads.

    threads None: torch's number stays.
    """
    only_serious()
    if threads is not None:
        torch.set_num_threads(threads)


@cache
def reachable(name: str) -> bool:
    """Whether the Hub can be reached; if not, the model's cached files are used.

    Raises InputError if there are none. This is checked first, because a download would retry an
    unreachable Hub many times.
    """
    try:
        HfApi().model_info(name, timeout=TIMEOUT)
    except (RepositoryNotFoundError, GatedRepoError) as error:
        why = "does not exist"
        if isinstance(error, GatedRepoError):
            why = "is gated: accept its terms on the Hub"
        raise InputError(f"the Hub reports that {name} {why}; {HOW}") from None
    except Exception:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            raise InputError(
                f"cannot reach the Hub for {name}, which is not in its local cache: "
                f"connect to the network, or {HOW}"
            ) from None
        return False
    return True


def _place(name: str) -> tuple[str, bool]:
    """The folder or Hub id to load from, and whether it is a local folder."""
    if name == "bundled":
        if not (BUNDLED / "model.safetensors").exists():
            raise InputError(
                f"the bundled model is missing from this installation ({BUNDLED}): "
                f"reinstall longdraft, or {HOW}"
            )
        return str(BUNDLED), True
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if folder.exists() or not re.fullmatch(HUB_ID, name):
            raise InputError(f"no model folder at {name}: {HOW}")
        return name, False
    if not (folder / "config.json").is_file():
        inside = sorted(folder.glob("*.gguf"))
        raise InputError(
            f"{name} has no config.json: {f'give the file {inside[0]}' if inside else HOW}"
        )
    if not any(folder.glob("*.safetensors")):
        pickled = list[str]()
        for kind in ("*.bin", "*.pt", "*.pth", "*.ckpt"):
            pickled += [file.name for file in folder.glob(kind)]
        why = "no weights"
        if pickled:
            why = f"only pickled weights ({min(pickled)}), which can run code when read"
        raise InputError(f"{name} has {why}: convert them to safetensors, or {HOW}")
    return str(folder), True


def _try(name: str, action: Any) -> Any:
    """Turn Transformers' errors into one-line InputErrors."""
    try:
        return action()
    except InputError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"cannot load {name}: {reason[:300].rstrip('.')}; {HOW}") from error
