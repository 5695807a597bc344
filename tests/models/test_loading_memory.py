"""Loading a GGUF file takes hardly more memory than its weights, although the file is mapped."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import random_gguf
from support import gguf_files as files

from longdraft.models.gguf import file as gguf

ALLOWED = 1.15  # bytes of memory for each byte of the file
# Loads a small file first, so that what the first file alone needs does not count; prints the bytes
# that the other file adds at most.
CHILD = """
import gc, sys
from pathlib import Path
import torch
from longdraft import load
from longdraft.models.gguf.pages import FilePages

def resident(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])

small, large, fault = sys.argv[1:]
torch.set_num_threads(2)
if fault == "kept":
    FilePages.give_back = lambda self, part: None
load(small, "bfloat16", "cpu")
gc.collect()
Path("/proc/self/clear_refs").write_text("5")  # from now on VmHWM is a new peak
before = resident("VmRSS")
held = load(large, "bfloat16", "cpu")
print(resident("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> tuple[Path, Path]:
    """A small file, and one of 150 MB; embeddings, which are unpacked, are a small part of both."""
    folder = tmp_path_factory.mktemp("loading")
    made = []
    for layers in (1, 16):
        shape = random_gguf.Shape("qwen3", layers, 1024, 8, 8, 128, 4096, 512)
        made.append(folder / f"{layers}.gguf")
        random_gguf.write(shape, made[-1], 0)
    return made[0], made[1]


def ratio(paths: tuple[Path, Path], fault: str) -> float:
    """The memory that loading the larger file takes, in its bytes."""
    small, large = paths
    words = [sys.executable, "-c", CHILD, str(small), str(large), fault]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    return int(done.stdout.splitlines()[-1]) / large.stat().st_size


@pytest.mark.full
@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs the peaks that Linux counts"
)
def test_loading_takes_hardly_more_than_the_file(paths):
    assert 0.9 < ratio(paths, "none") < ALLOWED
    assert ratio(paths, "kept") > 1.5  # a fault that this measure finds


@pytest.mark.parametrize("advised", [True, False])
def test_pages_that_were_given_back_are_read_again(tmp_path, monkeypatch, advised):
    """Also those that two tensors share, and on systems that take no advice."""
    if not advised:
        monkeypatch.delattr(mmap, "MADV_DONTNEED", raising=False)
        monkeypatch.delattr(mmap, "MADV_SEQUENTIAL", raising=False)
    path = files.saved(tmp_path, quantized="Q4_0")
    whole = path.read_bytes()
    stored = gguf.read(path).tensors
    before = {name: bytes(one.data.numpy()) for name, one in stored.items()}
    for one in stored.values():
        one.done(one.data)
        part = one.data[1 : one.data.nbytes // 2]
        one.done(part)
    assert {name: bytes(one.data.numpy()) for name, one in stored.items()} == before
    assert all(data in whole for data in before.values())


def test_every_part_that_is_read_is_given_back(tmp_path):
    """Each byte once, in order, of packed tensors and of others."""
    for one in gguf.read(files.saved(tmp_path, quantized="Q4_0")).tensors.values():
        given = list[tuple[int, int]]()

        def note(part, given=given):
            given.append((part.data_ptr(), part.nbytes))

        gguf.Stored(one.name, one.type, one.shape, one.data, note).read()
        assert given[0][0] == one.data.data_ptr()
        assert sum(size for _, size in given) == one.data.nbytes
