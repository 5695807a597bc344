"""llama.cpp, from source or as a wheel: alone, with its n-gram speculation or with a draft
model.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

from longdraft.bench.peers.base import CannotRun, Peer, PeerOutput, Reading, Work
from longdraft.bench.peers.llama_server import Build, LlamaServer, LlamaServerSettings
from longdraft.core.rules import Rules
from longdraft.core.sampling import Sampler
from longdraft.engine.generate import Stats

# these draft from the outputs of earlier requests as well
REMEMBERING = (
    "ngram-mod",
    "ngram-cache",
)
DRAFT = "draft-simple"
SPARE = 64  # slots beyond the last token, for drafts


class LlamaCpp(Peer):
    """file: the model, GGUF. kind: llama.cpp's name of a speculation. draft: a GGUF file that
    drafts.
    """

    def __init__(
        self, label: str, build: Build, file: Path, kind: str = "none", draft: Path | None = None
    ):
        build.check(kind)
        self.build = build
        self.file = file
        self.kind = kind
        self.draft = draft
        options = {"speculation": kind, "file": file.name} | (
            {} if draft is None else {"draft": draft.name}
        )
        super().__init__(build.name, label, build.version, options)
        self.origin |= {"peer_build": build.facts}
        self.forgets = kind not in REMEMBERING

    def read(self, work: Work) -> Reading:
        if len(work.prompts) > 1:
            raise CannotRun("it is measured with one row only, without --batch")
        if work.target.rules() != Rules():
            raise CannotRun("it does not apply the rules in the model's generation_config")
        return _Reading(self, work)

    def start(self, work: Work, folder: str) -> LlamaServer:
        return self.build.start(self.settings(work, folder))

    def settings(self, work: Work, folder: str) -> LlamaServerSettings:
        slots = len(work.prompts[0]) + work.new_tokens + SPARE
        rope = getattr(work.target.config, "rope_parameters", None) or {}
        threads = torch.get_num_threads()
        return LlamaServerSettings(
            self.file, slots, threads, folder, self.kind, self.draft, rope=rope
        )


class _Reading(Reading):
    """The prompt is read by the first server and restored in those of the other kinds of
    speculation.

    A kind that remembers earlier outputs gets a new server for each decode, which is not timed.
    """

    def __init__(self, peer: LlamaCpp, work: Work):
        self.peer = peer
        self.work = work
        # a draft model reads the prompt as well
        key = (
            peer.name,
            str(peer.build.facts),
            peer.draft,
        )
        known = work.shared.get(key)
        self.folder = TemporaryDirectory(prefix="longdraft-") if known is None else known[0]
        self.server: LlamaServer | None = None
        if known is None:
            self.server = peer.start(work, self.folder.name)
            known = work.shared[key] = (self.folder, *self._read(self.server))
        _, self.prefill_s, self.own_rate = known

    def _read(self, server: LlamaServer) -> tuple[float, float]:
        """Seconds by our clock, tokens per second by its own."""
        if (vocab := server.vocab()) != self.work.target.vocab:
            raise CannotRun(
                f"its file has {vocab} tokens, the model {self.work.target.vocab}: give "
                "the same model's"
            )
        begin = perf_counter()
        timings = server.complete(self.work, 1)["timings"]
        seconds = perf_counter() - begin
        server.save()
        return seconds, timings["prompt_per_second"]

    def decode(self, limit: int, sampler: Sampler | None = None) -> PeerOutput:
        if self.server is None or not self.peer.forgets:
            self.close()  # frees its memory before the next one is loaded
            self.server = self.peer.start(self.work, self.folder.name)
            self.server.restore()
        work = self.work if sampler is None else replace(self.work, sampler=sampler)
        begin = perf_counter()
        answer = self.server.complete(work, limit)
        seconds = perf_counter() - begin
        tokens = answer["tokens"]
        timings = answer["timings"]
        if len(tokens) != limit:
            raise CannotRun(f"it ended after {len(tokens)} of {limit} tokens")
        drafted = timings.get("draft_n", 0)
        accepted = timings.get("draft_n_accepted", 0)
        steps = max(limit - accepted, 1)
        own: dict[str, Any] = {"prefill_tokens_per_s": self.own_rate}
        own |= {
            "decode_tokens_per_s": timings["predicted_per_second"],
            "drafted": drafted,
            "accepted": accepted,
        }
        figures = {
            "mean_acceptance_length": limit / steps,
            "verify_steps": steps,
            "peer_timings": own,
        }
        stats = Stats(self.prefill_s, decode_s=seconds, verify_s=seconds, emitted=limit)
        return PeerOutput([tokens], stats, figures)

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        self.server = None
