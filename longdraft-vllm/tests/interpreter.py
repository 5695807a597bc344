"""Imported before vLLM, with TRITON_INTERPRET=1 in the environment: vLLM for CPUs then uses
Triton's interpreter.

vLLM uses Triton on CPUs only if Triton has a backend for them. An empty one is enough: interpreted
kernels are not compiled.
"""

from __future__ import annotations

from types import SimpleNamespace

from triton.backends import backends

backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False))
