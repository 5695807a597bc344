"""Installs a wheel where there is nothing else, no compiler either, and lets it decode.

python release/try_wheel.py dist/longdraft-*x86_64.whl --python python3.11 --python python3.13
python release/try_wheel.py dist/longdraft-*x86_64.whl --haswell    # the same on an emulated
processor without AVX-512

Each Python gets a new environment. The bundled model must decode text by the best build of the
kernels, equal to plain decoding, in a folder that holds nothing else. PIP_* variables say where pip
finds the dependencies.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HASWELL = ("qemu-x86_64", "-cpu", "Haswell-noTSX,pcid=off,x2apic=off,tsc-deadline=off,invpcid=off")
PROMPT = "It was a dark night, and the man said: it was a dark night, and the man said: "


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--python", action="append", metavar="COMMAND", help="an interpreter (repeat for several)"
    )
    parser.add_argument(
        "--haswell",
        action="store_true",
        help="emulate a processor with AVX2 and no more (qemu-user)",
    )
    given = parser.parse_args()
    # by its full path: the new environment's path has nothing else
    emulator = shutil.which(HASWELL[0])
    if given.haswell and emulator is None:
        sys.exit(f"try_wheel.py: --haswell needs {HASWELL[0]}: install qemu-user")
    before = (str(emulator), *HASWELL[1:]) if given.haswell else ()
    for python in given.python or [sys.executable]:
        with tempfile.TemporaryDirectory() as folder:
            print(tried(given.wheel.resolve(), python, before, Path(folder)), flush=True)


def tried(wheel: Path, python: str, emulator: tuple[str, ...], folder: Path) -> str:
    """A line that says what happened; exits with one if the wheel does not work."""
    environment = folder / "environment"
    empty = folder / "empty"
    empty.mkdir()
    run([python, "-m", "venv", str(environment)], empty)
    inside = [str(environment / "bin" / "python"), "-I"]
    told = {
        "PATH": str(environment / "bin"),
        "HOME": str(empty),
        "CC": "/no/compiler",
        "CXX": "/no/compiler",
    }
    start = time.monotonic()
    run([*inside, "-m", "pip", "install", "-q", "--only-binary", ":all:", str(wheel)], empty, told)
    installed = time.monotonic() - start
    words = [*emulator, *inside, "-m", "longdraft", "generate", PROMPT, "--method", "vegas"]
    start = time.monotonic()
    said = run([*words, "--max-new-tokens", "32", "--compare", "--json"], empty, told)
    seconds = time.monotonic() - start
    record = json.loads(said)
    version = run(
        [*inside, "-c", "import platform; print(platform.python_version())"], empty, told
    ).strip()
    run([*emulator, *inside, "-m", "longdraft", "doctor"], empty, told)
    build = record["kernels"]
    if not record["equal"] or not build or (emulator and build != "avx2"):
        sys.exit(
            f"try_wheel.py: Python {version}, build {build}: equal to plain decoding: "
            f"{record['equal']}"
        )
    where = "emulated Haswell, " if emulator else ""
    took = f"{installed:.0f} s to install, {seconds:.0f} s to run"
    return f"{wheel.name}: {where}Python {version}: build {build}, equal; {took}"


def run(words: list[str], folder: Path, told: dict[str, str] | None = None) -> str:
    """What the command prints."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "LONGDRAFT"))
    }
    done = subprocess.run(
        words, cwd=folder, env={**kept, **(told or {})}, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"try_wheel.py: `{' '.join(words)}` failed:\n{done.stdout[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
