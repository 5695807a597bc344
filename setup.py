"""Builds the native kernels where there is a C++ compiler; without one the package installs and
runs on torch alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import runpy
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from glob import glob
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = "src/longdraft/ops/native/"
# Apple's compiler has no OpenMP: there the kernels use one thread.
FLAGS = [
    "-O3",
    "-g0",  # Python asks for -g, which makes the files 20 times as large
    "-std=c++17",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",
    "-Wno-unknown-pragmas" if sys.platform == "darwin" else "-fopenmp",
]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
X86: dict[str, list[str]] = {  # probe.cpp checks for exactly these
    "_amx": [*AVX512, "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-bf16"],
    "_avx512bf16": [*AVX512, "-mavx512bf16", "-mavx512vnni"],
    "_avx512vnni": [*AVX512, "-mavx512vnni"],
    "_avx512": AVX512,
    "_avxvnni": ["-mavx2", "-mfma", "-mf16c", "-mavxvnni"],
    "_avx2": ["-mavx2", "-mfma", "-mf16c"],
}
# Python's own variable for cross-compiling ("linux-aarch64") names another machine than this one.
MACHINE = os.environ.get("_PYTHON_HOST_PLATFORM", platform.machine()).rsplit("-", 1)[-1].lower()
BUILDS: dict[str, list[str]] = {}
if MACHINE in ("x86_64", "amd64"):
    BUILDS = X86
elif MACHINE in ("aarch64", "arm64"):
    BUILDS = {"_neon": []}
# LONGDRAFT_BUILDS="avx2,avx512" compiles these alone, and "all" every one. Without it an editable
# install compiles what this processor can run; everything else, such as a wheel, has them all.
ASKED = os.environ.get("LONGDRAFT_BUILDS", "")
if ASKED not in ("", "all"):
    BUILDS = {name: flags for name, flags in BUILDS.items() if name[1:] in ASKED.split(",")}
HEADERS = sorted(glob(HERE + "*.h"))
SOURCES = (  # those that take longest first
    "products.cpp",
    "attention_bf16.cpp",
    "attention_float.cpp",
    "step.cpp",
    "layout.cpp",
    "select.cpp",
    "noise.cpp",
    "recurrence.cpp",
    "read.cpp",
    "pin.cpp",
    "memory.cpp",
)


def write_layout(folder: Path) -> None:
    """Write the rows of layout.cpp's table into a folder, from the header that Python reads too."""
    interface = runpy.run_path(HERE + "interface.py")["Interface"]
    header = Path(HERE, "interface.h").read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "layout.inc").write_text(interface(header).rows())


def extension(name: str, sources: Sequence[str], flags: Sequence[str]) -> Extension:
    return Extension(
        f"longdraft.ops.native.{name}",
        [HERE + source for source in sources],
        depends=HEADERS,
        extra_compile_args=list(flags),
        optional=True,
    )


def runs(probe: Path, build: Extension) -> bool:
    """Whether this processor can run the build; yes where the probe could not be compiled."""
    if not probe.exists():
        return True
    name = build.name.rpartition(".")[2]
    return bool(ctypes.CDLL(str(probe.resolve())).longdraft_runs(name.encode()))


def compile_at_once(compiler: Any, pool: ThreadPoolExecutor) -> Any:
    """The compiler, which has each source of a list compiled in a thread of the pool."""
    several = copy(compiler)

    def compile(sources: Sequence[str], **options: Any) -> list[str]:
        lists = pool.map(lambda source: compiler.compile([source], **options), sources)
        return [path for objects in lists for path in objects]

    several.compile = compile
    return several


class SeparateObjects(build_ext):
    """Each build has its own folder of objects: builds run at the same time, and their sources have
    the same names.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = True  # each build takes minutes; an editable install drops this option

    def build_extensions(self) -> None:
        write_layout(Path(self.build_temp))
        self.compiler.add_include_dir(self.build_temp)
        if self.editable_mode and not ASKED:
            probe, *builds = self.extensions
            self.build_extension(probe)
            path = Path(self.get_ext_fullpath(probe.name))
            self.extensions = [probe, *(build for build in builds if runs(path, build))]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self.compiler = compile_at_once(self.compiler, pool)
            super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        separate = copy(self)
        separate.build_temp = str(Path(self.build_temp) / ext.name)
        build_ext.build_extension(separate, ext)

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", os.sep) + ".so"


class AnyPython(bdist_wheel):
    """The builds are C libraries that ctypes loads, so one wheel serves every version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


# The probe is compiled without these flags, so that any processor can run it; it tells which of the
# others can run.
# No -fopenmp when linking: the kernels use the OpenMP runtime that torch has loaded, so there is
# one pool of threads.
setup(
    cmdclass={"build_ext": SeparateObjects, "bdist_wheel": AnyPython},
    ext_modules=[extension("_probe", ["probe.cpp"], ["-O2", "-g0", "-std=c++17"])]
    + [extension(build, SOURCES, FLAGS + flags) for build, flags in BUILDS.items()],
)
