"""The pages of a mapped file: the system gets them back once they have been read."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor


class FilePages:
    """The bytes of a file, which nothing writes to: a page that was given back is read from the
    file again where it is needed, so that it may be given back at any time.

    Otherwise pages that were read would stay in memory beside the weights made of them, until the
    system needs room.
    """

    def __init__(self, area: mmap.mmap):
        self.whole = torch.frombuffer(area, dtype=torch.uint8)
        self._area = area
        self._advise("MADV_SEQUENTIAL", 0, len(area))

    def give_back(self, part: Tensor) -> None:
        """The system may use the pages of these consecutive bytes. Does nothing where it takes no
        advice.
        """
        begin = part.data_ptr() - self.whole.data_ptr()
        first = begin // mmap.PAGESIZE * mmap.PAGESIZE
        # the last page has the begin of the next part, unless the file ends
        behind = begin + part.nbytes
        end = behind if behind == len(self._area) else behind // mmap.PAGESIZE * mmap.PAGESIZE
        if first < end:
            self._advise("MADV_DONTNEED", first, end - first)

    def _advise(self, advice: str, begin: int, size: int) -> None:
        if hasattr(mmap, advice):
            with suppress(OSError, ValueError):
                self._area.madvise(getattr(mmap, advice), begin, size)
