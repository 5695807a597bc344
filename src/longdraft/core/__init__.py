"""The parts of a decoding step that know no model and no drafter.

Trees, caches, sampling and verification.
"""

from __future__ import annotations

from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec, PromptSpec
from longdraft.core.constraint import Constraint
from longdraft.core.row_samplers import RowSamplers
from longdraft.core.rows import Rows
from longdraft.core.rules import Rules
from longdraft.core.sampling import ChainDraws, Sampler
from longdraft.core.sampling_protocol import Sampling
from longdraft.core.sequences import Sequences, without
from longdraft.core.tree import PAD, UNBOUNDED, DraftLimits, Tree
from longdraft.core.verify import Verdict, Verifier, match, reject
from longdraft.core.view import IndexView, KVView, QueryView, is_indexable

__all__ = [
    "PAD",
    "UNBOUNDED",
    "CaptureSpec",
    "Captures",
    "ChainDraws",
    "Constraint",
    "DraftLimits",
    "IndexView",
    "KVCache",
    "KVView",
    "PromptSpec",
    "QueryView",
    "RowSamplers",
    "Rows",
    "Rules",
    "Sampler",
    "Sampling",
    "Sequences",
    "Tree",
    "Verdict",
    "Verifier",
    "is_indexable",
    "match",
    "reject",
    "without",
]
