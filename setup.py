"""Builds the native kernels where there is a C++ compiler; without one the package installs and runs on torch alone."""

from __future__ import annotations

from setuptools import Extension, setup

FLAGS = ["-O3", "-std=c++17", "-fopenmp", "-Wno-psabi"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
BUILDS = {
    "_amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
    "_avx512": AVX512,
    "_avx2": ["-mavx2", "-mfma"],
}
HERE = "src/longdraft/ops/native/"
HEADERS = [f"{name}.h" for name in ("attention", "cached", "draw", "linear", "paths", "simd", "team", "tiles", "types")]

# No -fopenmp when linking: the OpenMP runtime is the one torch has loaded, so that there is one pool of threads.
setup(
    ext_modules=[
        Extension(
            f"longdraft.ops.native.{build}",
            [HERE + name for name in ("step.cpp", "select.cpp", "noise.cpp", "read.cpp", "pin.cpp")],
            depends=[HERE + name for name in HEADERS],
            extra_compile_args=FLAGS + flags,
            optional=True,
        )
        for build, flags in BUILDS.items()
    ]
)
