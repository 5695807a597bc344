"""Model folders that ask for code, packages, files or the network. As a program: load each, and say
what happened.

It is a process of its own because the packages asked for must look installed, and the Hub
reachable, when Transformers is imported. Nothing here can do harm: what is asked for is a recorder.
"""

from __future__ import annotations

import importlib.abc
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOUCHED: list[str] = []  # what was asked for in vain, and must not have been asked for
# of a Python file in the folder
RUN = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
Change = Callable[[Path], Any]


def edit(name: str, **fields: Any) -> Change:
    """These fields of a JSON file in the folder; it need not be there."""

    def change(folder: Path) -> None:
        file = folder / name
        found = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(found | fields))

    return change


def write(name: str, text: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    return change


def config(**fields: Any) -> Change:
    return edit("config.json", **fields)


def shards(name: Any) -> Change:
    """An index in place of the weights: all of them lie in a file of this name."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "weights.safetensors")
        index = {"metadata": {}, "weight_map": {"lm_head.weight": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


DEEP = '{"a": ' * 100_000 + "1" + "}" * 100_000
# What the folder says, and the words of the refusal; None: it loads, and says the same text as the
# folder unchanged.
CASES: dict[str, tuple[list[Change], str | None]] = {
    "nothing": ([], None),
    "attention of a Hub repository": ([config(attn_implementation="evil/kernel")], None),
    "attention of a known repository": (
        [config(attn_implementation="kernels-community/flash-attn3")],
        None,
    ),
    "flash attention": ([config(attn_implementation="flash_attention_2")], None),
    "a private name of attention": (
        [config(_attn_implementation="evil/kernel", _attn_implementation_internal="evil/kernel")],
        None,
    ),
    "experts of a package": ([config(experts_implementation="deepgemm")], None),
    "kernels": ([config(use_kernels=True, kernel_config={"RMSNorm": "evil/kernel:RMSNorm"})], None),
    "module patches": ([config(fusion_config={"patch_embeddings": True})], None),
    "another file of weights": (
        [config(transformers_weights="adapter_model.bin"), write("adapter_model.bin", "nonsense")],
        None,
    ),
    "another name": ([config(_name_or_path="evil/repo", name_or_path="evil/repo")], None),
    "code of the folder": (
        [
            config(auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}),
            write("evil.py", RUN),
        ],
        None,
    ),
    "code of a repository": (
        [
            config(
                auto_map={
                    "AutoConfig": "evil/repo--evil.C",
                    "AutoModelForCausalLM": "evil/repo--evil.M",
                }
            )
        ],
        None,
    ),
    "a model of the folder's own": (
        [config(model_type="evil", auto_map={"AutoConfig": "evil.C"}), write("evil.py", RUN)],
        "cannot load",
    ),
    "generation of the folder": ([write("custom_generate/generate.py", RUN)], None),
    "a template that runs code": (
        [write("chat_template.jinja", "{{ ''.__class__.__mro__[1].__subclasses__() }}")],
        None,
    ),
    "a tokenizer of the folder": (
        [
            edit("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]}),
            write("evil.py", RUN),
        ],
        None,
    ),
    "a tokenizer that is a model": (
        [edit("tokenizer_config.json", tokenizer_class="AutoModelForCausalLM")],
        "which is not a tokenizer",
    ),
    "a tokenizer that is a number": (
        [edit("tokenizer_config.json", tokenizer_class=7)],
        "which is not a tokenizer",
    ),
    "an adapter": (
        [
            edit(
                "adapter_config.json",
                base_model_name_or_path="evil/repo",
                peft_type="LORA",
                auto_mapping={"parent_library": "evil", "base_model_class": "C"},
            )
        ],
        "merge it into its model",
    ),
    "bitsandbytes": (
        [config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})],
        "no quantized layers, although config.json names bitsandbytes",
    ),
    "gptq": (
        [config(quantization_config={"quant_method": "gptq", "bits": 4})],
        "no quantized layers, although config.json names GPTQ",
    ),
    "awq": (
        [config(quantization_config={"quant_method": "awq", "version": "evil"})],
        "quantized by AWQ with version evil",
    ),
    "compressed-tensors": (
        [config(quantization_config={"quant_method": "compressed-tensors"})],
        "without config_groups",
    ),
    "mlx": ([config(quantization={"bits": "evil"})], "quantized by MLX with bits evil"),
    "an unknown quantization": (
        [config(quantization_config={"quant_method": "evil"})],
        "quantized (evil)",
    ),
    "an odd quantization": ([config(quantization_config=[1])], "cannot load"),
    "weights above": (
        [shards("../../x.safetensors")],
        "may only name *.safetensors files in the model's own folder",
    ),
    "weights at the root": (
        [shards("/tmp/x.safetensors")],
        "may only name *.safetensors files in the model's own folder",
    ),
    "pickled weights": (
        [shards("x.bin")],
        "may only name *.safetensors files in the model's own folder",
    ),
    "weights of no name": (
        [shards(None)],
        "may only name *.safetensors files in the model's own folder",
    ),
    "a deep config": ([write("config.json", DEEP)], "cannot load"),
    "a list for a config": ([write("config.json", "[1, 2]")], "cannot load"),
    "a deep index": ([write("model.safetensors.index.json", DEEP)], "nested too deeply"),
    "a list for generation": ([write("generation_config.json", "[1]")], "cannot load"),
    "odd end tokens": ([write("generation_config.json", '{"eos_token_id": "all"}')], "token ids"),
}


PACKAGES = (
    "evil",
    "peft",
    "bitsandbytes",
    "gptqmodel",
    "auto_gptq",
    "awq",
    "compressed_tensors",
    "mlx",
    "optimum",
    "deep_gemm",
    "sonicmoe",
    "flash_attn",
)


class Recorder(importlib.abc.MetaPathFinder):
    """Notes imports of packages that only a folder's config asks for."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in PACKAGES:
            TOUCHED.append(f"import {name}")


def no_network(*args: Any, **kwargs: Any) -> Any:
    TOUCHED.append(f"network {args[1:2] or args}")
    raise OSError("no network here")


def kernel(*args: Any, **kwargs: Any) -> Any:
    TOUCHED.append(f"kernel {args[:1]}")
    raise ImportError("no kernels here")


def watch() -> None:
    sys.meta_path.insert(0, Recorder())
    for name in ("connect", "connect_ex"):
        setattr(socket.socket, name, no_network)
    socket.getaddrinfo = socket.create_connection = no_network  # type: ignore[assignment]
    from transformers import modeling_utils
    from transformers.integrations import peft
    from transformers.models.auto import auto_factory

    modeling_utils.is_kernels_available = lambda *a: True  # type: ignore[assignment]
    modeling_utils.lazy_import_flash_attention = kernel  # type: ignore[assignment]
    peft.is_peft_available = auto_factory.is_peft_available = lambda: True  # type: ignore[assignment]


def main(root: Path) -> dict[str, dict[str, Any]]:
    """root/good -> {case: outcome, text, touched}."""
    watch()
    import longdraft

    found = {}
    for name, (changes, _) in CASES.items():
        TOUCHED.clear()
        folder = root / "now"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(root / "good", folder)
        for change in changes:
            change(folder)
        text = None
        try:
            target, tokenizer = longdraft.load(str(folder), "float32", "cpu")
            outcome = "loaded"
            text = longdraft.generate(
                target, [tokenizer("def main(argv):")["input_ids"]], max_new_tokens=8
            )[0]
        except longdraft.InputError as error:
            outcome = str(error)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        ran = [str(p.relative_to(folder)) for p in folder.rglob("ran")]
        found[name] = {"outcome": outcome, "text": text, "touched": TOUCHED + ran}
    return found


if __name__ == "__main__":
    os.environ.pop("HF_HUB_OFFLINE", None)
    print(json.dumps(main(Path(sys.argv[1]))))
