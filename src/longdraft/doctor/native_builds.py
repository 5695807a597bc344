"""The builds of the native kernels: the one in use, problems with better ones, and a check."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict, dataclass
from itertools import takewhile

from longdraft.doctor.part import Finding, PartReport
from longdraft.ops import native
from longdraft.ops.native import self_check as check

ARM = ("aarch64", "arm64")
X86 = ("x86_64", "amd64")
AGAIN = "install longdraft from its sources (pip install . in a checkout)"
WITHOUT = {
    "win32": "nothing, or use WSL: the kernels are not built on Windows",
    "darwin": f"install Apple's compiler (xcode-select --install), then {AGAIN}",
}


@dataclass(frozen=True)
class KernelBuild:
    """A build for this kind of processor, and the reason why it is not used.

    state: "in use", "can run", "turned off" or "cannot run"; why: of the last two.
    """

    name: str
    state: str
    why: str = ""

    @property
    def line(self) -> str:
        return f"  {self.name:<11} {self.why or self.state}"


def known() -> list[str]:
    """The builds that there are for this kind of processor, best first."""
    machine = platform.machine().lower()
    return [kind for kind in native.NEEDS if machine in (ARM if kind == "_neon" else X86)]


def compiled(kind: str) -> bool:
    """Tells whether this installation has that build, usable or not."""
    return (native.FOLDER / f"{kind}.so").exists()


def described(kind: str, used: str | None) -> KernelBuild:
    """A build and its state.

    used: the build that is used; None: none is.
    """
    lib, why = native.opened(kind)
    if lib is None:
        return KernelBuild(kind[1:], "cannot run", why)
    if kind[1:] == used:
        return KernelBuild(kind[1:], "in use")
    order = list(native.NEEDS)
    if used is None or order.index(kind) < order.index(f"_{used}"):
        why = f"turned off by LONGDRAFT_NATIVE={os.environ.get('LONGDRAFT_NATIVE')}"
        return KernelBuild(kind[1:], "turned off", why)
    return KernelBuild(kind[1:], "can run")


def builds() -> PartReport:
    lib = native.library()
    used = None if lib is None else native.name_of(lib)
    listed = [described(kind, used) for kind in known()]
    facts = {"used": used, "builds": [asdict(build) for build in listed]}
    none = "none: torch computes everything (the eager backend)"
    if not any(map(compiled, known())):
        return PartReport([none], facts, [_nothing_built()])
    first = none if used is None else used
    return PartReport([first, *(build.line for build in listed)], facts, _problems(listed))


def _nothing_built() -> Finding:
    if not known():
        return Finding(
            f"there are no kernels for {platform.machine()}",
            "nothing, or use an x86-64 or Arm processor",
        )
    do = WITHOUT.get(sys.platform, f"install g++, then {AGAIN}")
    return Finding("no kernels were compiled, so decoding is slower", do)


def _problems(listed: list[KernelBuild]) -> list[Finding]:
    """The problems that keep better builds than the one in use from being used.

    Limits of the processor and of the system are none of them.
    """
    better = list(takewhile(lambda build: build.state != "in use", listed))
    unused = [b.name for b in better if b.state == "cannot run" and native.runs(f"_{b.name}")]
    missing = [name for name in unused if not compiled(f"_{name}")]
    broken = [name for name in unused if name not in missing]
    problems = []
    if any(b.state == "turned off" for b in better):
        problems.append(
            Finding("LONGDRAFT_NATIVE turns better builds off", "unset LONGDRAFT_NATIVE")
        )
    if os.environ.get("LONGDRAFT_CPU") == "haswell":
        problems.append(
            Finding("LONGDRAFT_CPU hides what the processor offers", "unset LONGDRAFT_CPU")
        )
    if missing:
        problems.append(
            Finding(
                f"not compiled, but could run: {', '.join(missing)}", f"install g++, then {AGAIN}"
            )
        )
    if broken:
        problems.append(
            Finding(f"compiled for another version: {', '.join(broken)}", AGAIN, fails=True)
        )
    return problems


def self_check() -> PartReport:
    lib = native.library()
    if lib is None:
        return PartReport(["nothing to check: no kernels are used"], {"ok": None})
    name = native.name_of(lib)
    if not (fault := check.fault(lib)):
        return PartReport(
            [f"ok: {name} computes attention and products as the reference does"], {"ok": True}
        )
    do = f"set LONGDRAFT_NATIVE=0 to decode without {name}, and report this with the whole output"
    line = f"{name} computes something else than the reference"
    return PartReport([line], {"ok": False, "fault": fault}, [Finding(fault, do, fails=True)])
