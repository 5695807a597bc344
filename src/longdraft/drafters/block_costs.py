"""The cost of a call of a drafter's own block, by the bytes of its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from longdraft.costs.passes import Pass, PassCosts
from longdraft.drafters.vocabulary import DraftVocabulary, read_for_logits
from longdraft.models.lm import LM

# the Python around a native call takes this many times as long as the torch calls that a block
# consists of
AROUND = 3
PACKED = (
    17 / 32
    # bytes that native blocks read of a weight in bfloat16: codes of 8 bits, and a scale for 32 of
    # them
)


@dataclass(frozen=True)
class Read:
    """Bytes of a block's own weights, `itemsize` each, and of the target's output matrix where it
    reads all of that.
    """

    own: float
    head: float
    itemsize: int

    @property
    def weights(self) -> float:
        """How many weights."""
        return (self.own + self.head) / self.itemsize

    def bytes(self, compiled: bool) -> float:
        """Bytes that a call reads. compiled: whether native kernels compute it, which copy weights
        of bfloat16.
        """
        return self.own * (PACKED if compiled and self.itemsize == 2 else 1.0) + self.head


def weights_read(block: float, target: LM, vocabulary: DraftVocabulary | None) -> Read:
    """The reads of a block with this many bytes if its logits are computed with the target's output
    matrix, or with rows of it.
    """
    logits = read_for_logits(target, vocabulary)
    itemsize = target.dtype.itemsize
    return (
        Read(block, logits, itemsize) if vocabulary is None else Read(block + logits, 0.0, itemsize)
    )


def block_seconds(
    costs: PassCosts,
    rows: int,
    nodes: int,
    read: Read,
    keys: float = 0.0,
    drawn: float = 0.0,
    compiled: bool = False,
    calls: int = 1,
) -> float:
    """Predicted seconds of one call over `nodes` nodes of each row.

    keys: bytes that it reads. drawn: as in Pass. compiled: whether native kernels compute it, not
    torch. calls: 0 for work within a call that is counted already.
    """
    every = rows * nodes
    counted = (rows, every) if calls else (0, 0)
    work = Pass(
        *counted, read.bytes(compiled), read.weights * every, float(keys), drawn=drawn, chained=True
    )
    if compiled:
        return replace(costs, chained=calls * AROUND * costs.block).seconds(work)
    return replace(costs, chained=calls * costs.block, read=costs.module).seconds(work)
