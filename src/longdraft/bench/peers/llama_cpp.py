"""llama.cpp by the package xllamacpp: alone, with its n-gram speculation or with a draft model."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

from longdraft.bench.peers.base import CannotRun, Peer, PeerOutput, Reading, Work
from longdraft.bench.peers.llama_server import LlamaServer, package
from longdraft.core.rules import Rules
from longdraft.engine.generate import Stats

NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")
REMEMBERING = ("ngram-mod", "ngram-cache")  # these draft from the outputs of earlier requests as well
DRAFT = "draft-simple"
SPARE = 64  # slots beyond the last token, for drafts


class LlamaCpp(Peer):
    """file: the model, GGUF. kind: llama.cpp's name of a speculation. draft: a GGUF file that drafts."""

    def __init__(self, label: str, file: Path, kind: str = "none", draft: Path | None = None):
        self.lib, self.file, self.draft = package(), file, draft
        version = f"xllamacpp {self.lib.__version__}"
        options = {"speculation": kind, "file": file.name} | ({} if draft is None else {"draft": draft.name})
        super().__init__("llama.cpp", label, version, options)
        name = f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}"
        self.type = getattr(getattr(self.lib, "common_speculative_type", None), name, None)
        if self.type is None:
            raise CannotRun(f"{version} does not offer {kind}")
        self.forgets = kind not in REMEMBERING

    def read(self, work: Work) -> Reading:
        if len(work.prompts) > 1:
            raise CannotRun("it is measured with one row only, without --batch")
        if work.target.rules() != Rules():
            raise CannotRun("it does not apply the rules in the model's generation_config")
        return _Reading(self, work)

    def start(self, work: Work, folder: str) -> LlamaServer:
        p, threads = self.lib.CommonParams(), torch.get_num_threads()
        p.model.path, p.slot_save_path = str(self.file), folder + "/"
        p.n_ctx = len(work.prompts[0]) + work.new_tokens + SPARE
        p.n_parallel, p.cache_ram_mib, p.fit_params, p.verbosity = 1, 0, False, 0
        p.speculative.types = [self.type]
        if self.draft is not None:
            p.speculative.draft.mparams.path = str(self.draft)
        for each in (p, p.speculative.draft):
            each.cpuparams.n_threads = each.cpuparams_batch.n_threads = threads
        self._scale(p, getattr(work.target.config, "rope_parameters", None) or {})
        return LlamaServer(p)

    def _scale(self, p: Any, rope: dict[str, Any]) -> None:
        """The scaling of the model's rotations; a kind that only a GGUF file can describe is left to the file."""
        kind = rope.get("rope_type")
        if kind not in ("yarn", "linear"):
            return
        p.rope_scaling_type = getattr(self.lib.llama_rope_scaling_type, f"LLAMA_ROPE_SCALING_TYPE_{kind.upper()}")
        p.rope_freq_scale = 1 / rope["factor"]
        if kind == "yarn":
            p.yarn_orig_ctx = int(rope["original_max_position_embeddings"])
            p.yarn_beta_fast, p.yarn_beta_slow = rope.get("beta_fast") or 32.0, rope.get("beta_slow") or 1.0


class _Reading(Reading):
    """The prompt is read by the first server and restored in those of the other kinds of speculation.

    A kind that remembers earlier outputs gets a new server for each decode, which is not timed.
    """

    def __init__(self, peer: LlamaCpp, work: Work):
        self.peer, self.work = peer, work
        key = (peer.name, peer.draft)  # a draft model reads the prompt as well
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
            raise CannotRun(f"its file has {vocab} tokens, the model {self.work.target.vocab}: give the same model's")
        begin = perf_counter()
        timings = server.complete(self.work, 1)["timings"]
        seconds = perf_counter() - begin
        server.save()
        return seconds, timings["prompt_per_second"]

    def decode(self, limit: int) -> PeerOutput:
        if self.server is None or not self.peer.forgets:
            self.server = None  # frees its memory before the next one is loaded
            self.server = self.peer.start(self.work, self.folder.name)
            self.server.restore()
        begin = perf_counter()
        found = self.server.complete(self.work, limit)
        seconds, tokens, timings = perf_counter() - begin, found["tokens"], found["timings"]
        if len(tokens) != limit:
            raise CannotRun(f"it ended after {len(tokens)} of {limit} tokens")
        drafted, accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        steps = max(limit - accepted, 1)
        own = {"prefill_tokens_per_s": self.own_rate, "decode_tokens_per_s": timings["predicted_per_second"]}
        own |= {"drafted": drafted, "accepted": accepted}
        figures = {"mean_acceptance_length": limit / steps, "verify_steps": steps, "peer_timings": own}
        stats = Stats(self.prefill_s, decode_s=seconds, verify_s=seconds, emitted=limit)
        return PeerOutput([tokens], stats, figures)

    def close(self) -> None:
        self.server = None
