"""OpenVINO GenAI in a separate process and environment: alone, with prompt lookup or with a draft
model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from longdraft.bench.peers.base import CannotRun, Peer, PeerOutput, Reading, Work
from longdraft.bench.peers.worker import Worker, installed
from longdraft.core.rules import Rules
from longdraft.core.sampling import Sampler
from longdraft.engine.generate import Stats

NAME = "openvino"
PACKAGE = "openvino-genai"
KEYS = "u8"  # OpenVINO's default for keys and values on processors
SCRIPT = Path(__file__).parent / "openvino_process.py"


class OpenVINO(Peer):
    """python: an interpreter that has the package. file: the model, GGUF. draft: a GGUF file that
    drafts.
    """

    def __init__(
        self, label: str, python: Path, file: Path, kind: str = "none", draft: Path | None = None
    ):
        options = {"speculation": kind, "file": file.name} | (
            {} if draft is None else {"draft": draft.name}
        )
        super().__init__(NAME, label, installed(python, PACKAGE), options)
        self.python = python
        self.file = file
        self.kind = kind
        self.draft = draft
        self.origin |= {"peer_build": {"key_value_precision": KEYS}}

    def read(self, work: Work) -> Reading:
        if len(work.prompts) > 1:
            raise CannotRun("it is measured with one row only, without --batch")
        if work.sampler.temperature > 0:
            raise CannotRun("it is measured greedily only, with --temperature 0")
        if work.target.rules() != Rules():
            raise CannotRun("it does not apply the rules in the model's generation_config")
        rope = getattr(work.target.config, "rope_parameters", None) or {}
        if rope.get("rope_type", "default") in ("yarn", "linear"):
            raise CannotRun("it has no option for scaled rotary positions")
        return _Reading(self, work)


class _Reading(Reading):
    """The prompt is read by the first decode, whose time until the first token is the prefill;
    others start there.
    """

    def __init__(self, peer: OpenVINO, work: Work):
        self.work = work
        self.worker = Worker(peer.python, SCRIPT)
        try:
            draft = None if peer.draft is None else str(peer.draft)
            about = {
                "file": str(peer.file),
                "threads": torch.get_num_threads(),
                "kind": peer.kind,
                "draft": draft,
            }
            told = self.worker.ask(do="load", keys=KEYS, **about)
            peer.origin["peer_build"] = told["facts"] | {"key_value_precision": KEYS}
            self.load_s = told["load_s"]
            self.prefill_s = self._ask(1)["times"][0]
        except BaseException:
            self.worker.close()
            raise

    def _ask(self, limit: int) -> dict[str, Any]:
        answer = self.worker.ask(do="decode", prompt=self.work.prompts[0], limit=limit)
        if len(answer["tokens"]) != limit or not answer["times"]:
            raise CannotRun(f"it ended after {len(answer['tokens'])} of {limit} tokens")
        return answer

    def decode(self, limit: int, sampler: Sampler | None = None) -> PeerOutput:
        answer = self._ask(limit)
        counts = answer["counts"]
        times = answer["times"]
        emitted = sum(counts[1:])
        steps = len(counts) - 1
        seconds = times[-1] - times[0]
        if not steps:
            raise CannotRun(f"it gave all {limit} tokens at once, so their time is not known")
        own: dict[str, Any] = {"peer_timings": {"load_s": self.load_s, "first_token_s": times[0]}}
        own |= {"mean_acceptance_length": emitted / steps, "verify_steps": steps}
        stats = Stats(self.prefill_s, decode_s=seconds, verify_s=seconds, emitted=emitted)
        return PeerOutput([answer["tokens"]], stats, own)

    def close(self) -> None:
        self.worker.close()
