"""The run under AddressSanitizer is one, and it can fail (tests/harder.py)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from longdraft.ops import native

FOLDER = os.environ.get("LONGDRAFT_TEST_BUILDS", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="not a run under AddressSanitizer: python tests/harder.py asan"
)
READS = """
import ctypes, sys
import torch
from longdraft.ops import native
native.FOLDER = native.Path(sys.argv[1])
lib, x = native.library(), torch.arange(16)
lib.longdraft_planted.argtypes = [ctypes.c_void_p, ctypes.c_int64]
print(lib.longdraft_planted(x.data_ptr(), int(sys.argv[2])))
"""


def test_these_builds_are_the_ones_that_run():
    library = native.library()
    assert library is not None and Path(library._name).is_relative_to(FOLDER)
    assert hasattr(library, "longdraft_planted") and hasattr(ctypes.CDLL(None), "__asan_init")


def test_a_planted_fault_is_caught():
    """One number beyond a tensor's end; the last one within is read in peace."""
    for place, fine in ((15, True), (16, False)):
        found = subprocess.run(
            [sys.executable, "-c", READS, FOLDER, str(place)], capture_output=True, text=True
        )
        assert (found.returncode == 0) == fine
        assert fine or (
            "heap-buffer-overflow" in found.stderr and "longdraft_planted" in found.stderr
        )
        assert not fine or found.stdout == "15\n"
