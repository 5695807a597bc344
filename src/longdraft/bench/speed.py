"""Task `speed`: all methods take turns at decoding the same prompts, which are prefilled once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from longdraft.bench.inputs import Text
from longdraft.bench.peers.agreement import FIRST, FirstTokens
from longdraft.bench.peers.base import Absent, CannotRun, Peer, Reading, Work
from longdraft.bench.peers.choice import left_out
from longdraft.bench.peers.transformers import STOCK
from longdraft.bench.selection import Entry, setting
from longdraft.core import PromptSpec, Sampler, match
from longdraft.drafters import Drafter, Oracle, PlainDecoding
from longdraft.engine import generate as engine
from longdraft.engine.decode_session import DecodeSession, first_difference
from longdraft.engine.generate import Stats
from longdraft.errors import InputError
from longdraft.methods.spec import MethodSpec
from longdraft.models.lm import LM
from longdraft.prompts.prompt_file import PromptFiles
from longdraft.recording.decode_figures import DecodedRows, speedups, traffic
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance

WARM = 16  # tokens that each method decodes before anything is timed
LEFT_OUT = "left out"  # the task of a record that says why a peer was not measured


@dataclass
class Speed:
    """The parameters of one run. entries always include plain decoding, which speedups and equality
    refer to.

    by_step: our methods take turns at each step, not at each decoding. left_out: a line on each
    peer that could not do its part; the run goes on without it. kept: where prompts are kept;
    records of one that was loaded have the time of its reading when it was stored.
    """

    target: LM
    tokenizer: Any  # None: records have no text
    entries: list[Entry]
    texts: list[Text]
    contexts: list[int]
    new_tokens: int
    batch: int
    repeat: int
    sampler: Sampler
    seed: int
    accept: float | None
    by_step: bool = False
    kept: PromptFiles | None = None
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not any(e.name == "plain" for e in self.entries):
            self.entries = [MethodSpec("plain", "plain"), *self.entries]

    def check(self) -> None:
        """Raises InputError for whatever would fail later."""
        for e in self.entries:
            if isinstance(e, MethodSpec):
                e.check(self.target, self.accept if e.speculative else None)
        for text, context in product(self.texts, self.contexts):
            engine.check(
                self.target,
                text.prompts(context, self.batch),
                self.new_tokens,
                PlainDecoding(),
                match,
            )
        if any(isinstance(e, Peer) for e in self.entries) and self.new_tokens < 2:
            raise InputError("other engines need --max-new-tokens 2 or more")
        if any(e.name in STOCK for e in self.entries) and self.sampler.temperature > 0:
            raise InputError("hf-dynamic and hf-static need --temperature 0")

    @property
    def steps(self) -> int:
        return len(self.texts) * len(self.contexts) * (len(self.entries) * self.repeat + 1)

    def run(
        self, log: RecordFile, tick: Callable[[str], None], shared: dict[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields each record as it is written; in the end, speedups are computed from the medians
        of all repeats.

        shared: the provenance, where other records have the same.
        """
        shared = shared or provenance(self.target, self.seed)
        for text, context in product(self.texts, self.contexts):
            tick(f"{text.name} {context}: prefill")
            cell = Cell(self, text, context)
            done = []
            try:
                for r, entry in cell.turns():
                    tick(f"{text.name} {context}: {entry.label} {r + 1}/{self.repeat}")
                    output = cell.run(entry, self.new_tokens)
                    for left in cell.newly_left_out():
                        done.append(shared | left | {"context": context})
                        log.append(done[-1])
                        yield done[-1]
                    if output is None:
                        continue
                    done.append(
                        shared | cell.describe(entry, output) | {"context": context, "repeat": r}
                    )
                    for d in done:
                        if "tokens_per_s" in d:
                            d |= speedups(d, [p for p in done if p["method"] == "plain"])
                    log.append(done[-1])
                    yield done[-1]
            finally:
                cell.close()
            log.amend(done)


class Cell:
    """One text at one context: the prompts, their cache, and plain decoding's output before any
    drafter has run.

    damage: what a method changed that it must not change, by the method's label; the prompts are
    then prefilled again.
    """

    def __init__(self, job: Speed, text: Text, context: int):
        self.job = job
        self.text = text
        self.damage: dict[str, str] = {}
        self.ours = self._prefill(text.prompts(context, job.batch))
        self.plain = self.ours.rows()
        self.work = Work(job.target, self.ours.prompts, job.new_tokens, job.sampler, job.seed)
        self.reading: tuple[Peer, Reading] | None = (
            None  # of the peer whose turn it is: each takes its memory
        )
        self.first = FirstTokens()
        self.agreements: dict[str, dict[str, Any]] = {}
        self.left_out: list[dict[str, Any]] = []
        self.entries = list(job.entries)
        self.depths = {
            e.label: e.chain_depth(job.target) for e in job.entries if isinstance(e, MethodSpec)
        }
        self.differences: dict[str, tuple[list[list[int]], dict[str, Any] | None]] = {}
        self.by_step: dict[str, DecodedRows] = {}  # of the present repeat, not yet asked for

    @property
    def reused(self) -> bool:
        """Whether prompts were loaded and not read."""
        return any(self.ours.known)

    @property
    def prefill_s(self) -> float:
        """Seconds of reading the prompts, when they were kept if they were not read now."""
        read_s = self.ours.read_s
        return self.ours.prefill_s if read_s is None or self.job.kept is None else read_s

    def turns(self) -> Iterator[tuple[int, Entry]]:
        """Our methods take turns, in every repeat from another one on; before, each has decoded a
        little. By step, all of a repeat decode before the first one's turn.

        Peers run one after another, each with all its repeats, since several would not fit into
        memory; between the repeats of ours, so that a machine that becomes slower or faster is
        seen.
        """
        ours: list[Entry] = [e for e in self.entries if not isinstance(e, Peer)]
        peers: list[Entry] = [e for e in self.entries if isinstance(e, Peer)]
        count = self.job.repeat
        for entry in ours:
            self.run(entry, min(WARM, self.job.new_tokens))
        for r in range(count):
            turn = r % len(ours)
            order = ours[turn:] + ours[:turn]
            if self.job.by_step:
                self._decode_by_step([e for e in order if isinstance(e, MethodSpec)])
            yield from ((r, entry) for entry in order)
            for peer in peers[len(peers) * r // count : len(peers) * (r + 1) // count]:
                yield from ((again, peer) for again in range(count))
                self._end_turn()

    def close(self) -> None:
        """Free what the peers hold."""
        self._end_turn()
        self.work.shared.clear()

    def _end_turn(self) -> None:
        if self.reading is not None:
            self.reading[1].close()
        self.reading = None

    def newly_left_out(self) -> list[dict[str, Any]]:
        """A record on each peer that was left out since the last call."""
        left = self.left_out
        self.left_out = []
        return left

    def _prefill(self, prompts: list[list[int]]) -> DecodeSession:
        job = self.job
        eos = None if self.text.ends else ()
        methods = [e for e in job.entries if isinstance(e, MethodSpec)]
        keep = PromptSpec.union(e.build(job.target).prompt_captures() for e in methods)
        runs = DecodeSession(
            job.target,
            prompts,
            job.new_tokens,
            job.sampler,
            job.seed,
            eos,
            keep=keep,
            kept=job.kept,
        )
        runs.seal()
        return runs

    def run(self, entry: Entry, limit: int) -> DecodedRows | None:
        """The new tokens of each row, and what they cost; None: a peer could not decode them and is
        left out.
        """
        if isinstance(entry, Peer):
            return self._run_peer(entry, limit)
        if entry.label in self.by_step:
            return self.by_step.pop(entry.label)
        output = self._empty()
        for step in self.ours.decode(self._drafter(entry), output.stats, limit):
            output.take(step)
        if damage := self.ours.altered():
            self.damage[entry.label] = damage
            self.ours = self._prefill(self.ours.prompts)
        return output

    def _empty(self) -> DecodedRows:
        """The output of a decoding that begins."""
        return DecodedRows([[] for _ in self.ours.prompts], Stats(prefill_s=self.prefill_s))

    def _drafter(self, entry: MethodSpec) -> Drafter:
        accept = self.job.accept
        if accept is not None and entry.speculative:
            return Oracle(entry.build(self.job.target), self.plain, accept)
        return entry.paced(self.job.target)

    def _decode_by_step(self, entries: list[MethodSpec]) -> None:
        """All decode at once, each over a copy of the prompts' cache: the next step is that of the
        method with the fewest new tokens, so that all meet the machine at the same speed.
        """
        outputs = {e.label: self._empty() for e in entries}
        copies = {e.label: self.ours.copy() for e in entries}
        running = {
            e.label: copies[e.label].decode(self._drafter(e), outputs[e.label].stats)
            for e in entries
        }
        while running:
            label = min(running, key=lambda name: outputs[name].stats.emitted)
            step = next(running[label], None)
            if step is None:
                del running[label]
            else:
                outputs[label].take(step)
        damaged = {label: damage for label, runs in copies.items() if (damage := runs.altered())}
        self.damage |= damaged
        self.by_step = outputs

    def _run_peer(self, peer: Peer, limit: int) -> DecodedRows | None:
        if peer not in self.entries:
            return None
        try:
            if self.reading is None or self.reading[0] is not peer:
                self._end_turn()
                self.reading = peer, peer.read(self.work)
                self._compare_first(peer, self.reading[1])
            return self.reading[1].decode(limit)
        except CannotRun as why:
            self.entries.remove(peer)
            self._end_turn()
            if not isinstance(peer, Absent):  # of those a line says so already
                self.job.left_out.append(
                    f"at {len(self.work.prompts[0])} {left_out(peer.label, why)}"
                )
            about = setting("speed", peer, self.text, len(self.work.prompts), self.job.sampler)
            self.left_out.append(
                about | {"task": LEFT_OUT, "new_tokens": self.job.new_tokens, "reason": str(why)}
            )
            return None

    def _compare_first(self, peer: Peer, reading: Reading) -> None:
        """Its first greedy tokens, before anything is timed, which also warms it up. Raises
        CannotRun.
        """
        rows = reading.decode(max(2, min(FIRST, self.job.new_tokens)), Sampler()).rows
        if self.job.tokenizer is not None:  # random weights have ties everywhere
            self.agreements[peer.label] = self.first.compare(self.ours, peer.label, rows)

    def _difference(self, entry: Entry, rows: list[list[int]]) -> dict[str, Any] | None:
        """The place where an output leaves plain decoding's. Another engine draws other samples, so
        only its greedy output is compared, and a repetition of it once.
        """
        if not isinstance(entry, Peer):
            return first_difference(self.ours, self.plain, rows)
        if self.job.sampler.temperature > 0:
            return None
        if entry.label not in self.differences or self.differences[entry.label][0] != rows:
            self.differences[entry.label] = rows, first_difference(self.ours, self.plain, rows)
        return self.differences[entry.label][1]

    def describe(self, entry: Entry, output: DecodedRows) -> dict[str, Any]:
        """The fields of a record for one decoding."""
        job = self.job
        damage = self.damage.get(entry.label)
        difference = self._difference(entry, output.rows)
        comparable = not isinstance(entry, Peer) or job.sampler.temperature == 0
        record = setting("speed", entry, self.text, len(output.rows), job.sampler)
        record["pace"] = entry.pace and job.accept is None
        if not isinstance(entry, Peer):
            record["prompt_reused"] = self.reused
            record["by_step"] = job.by_step
        text_of = job.tokenizer.decode if job.tokenizer else lambda row: ""
        record |= output.describe(self.ours.prompts, text_of, self.depths.get(entry.label, 0))
        equal = difference is None and damage is None if comparable else None
        record |= {"equal": equal, "first_difference": difference}
        if entry.speculative and not isinstance(entry, Peer):
            record["metrics"] = {"speculative_decoding": output.stats.drafts.metrics()}
        record["prompt_tokens_per_s"] = sum(map(len, self.ours.prompts)) / output.stats.prefill_s
        if entry.label in self.agreements:
            record["first_tokens"] = self.agreements[entry.label]
        if damage:
            record["damage"] = damage
        if job.accept is not None:
            record["oracle"] = job.accept
        if entry.name == "plain":
            record |= traffic(self.ours, output)
        return record
