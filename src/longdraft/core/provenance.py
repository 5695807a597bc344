"""The origin of a record: versions, checkout, command line, time."""

from __future__ import annotations

import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch
import transformers

from longdraft.host import processor as host
from longdraft.host.checkout import checkout as checkout
from longdraft.version import __version__


def versions() -> dict[str, str]:
    """Versions of longdraft and of what its numbers depend on."""
    return {
        "longdraft": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def processor(device: torch.device | str = "cpu") -> str:
    """The model name of the processor or GPU.

    An x86 processor's has its family and model, as names can be vague.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return host.name()


def command() -> str:
    """The command line of this run, with absolute paths shortened for use on other machines."""
    return shlex.join(["longdraft", *(relative(word) for word in sys.argv[1:])])


def relative(word: str) -> str:
    """A path below the working directory relative to it.

    Any other absolute path is reduced to its name; all else is unchanged.
    """
    path = Path(word)
    here = Path.cwd()
    if not path.is_absolute():
        return word
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
