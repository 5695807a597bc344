"""The training loop for any model and loss: steps, log, checkpoints."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from longdraft.core import provenance
from longdraft.core.processes import ALONE, Team
from longdraft.errors import InputError
from longdraft.training import checkpoint
from longdraft.training.schedule import Plan


def optimizers(model, matrix_rate: float, other_rate: float) -> list[torch.optim.Optimizer]:
    """Optimizers with their full learning rates: Muon and AdamW.

    Muon for the matrices inside the blocks, AdamW for embeddings, head and norms.
    """
    inner = list[torch.nn.Parameter]()
    for name, p in model.named_parameters():
        if p.ndim == 2 and "embed" not in name and "head" not in name:
            inner.append(p)
    ids = {id(p) for p in inner}
    rest = [p for p in model.parameters() if id(p) not in ids]
    made: list[torch.optim.Optimizer] = []
    if inner:
        made.append(torch.optim.Muon(inner, lr=matrix_rate, weight_decay=0.01))
    if rest:
        made.append(
            torch.optim.AdamW(rest, lr=other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        )
    set_rates(made, (matrix_rate, other_rate))
    return made


def set_rates(made: list, rates: tuple[float, float]) -> None:
    """Set the learning rates at factor 1.

    They replace those of a checkpoint, so a resumed run can use others.
    """
    for each in made:
        for group in each.param_groups:
            group["full_rate"] = rates[0] if isinstance(each, torch.optim.Muon) else rates[1]


class EventLog:
    """JSON lines, one per event, written at once; a silent log writes nothing."""

    def __init__(self, path: Path, silent: bool = False):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = (Path(os.devnull) if silent else path).open("a", buffering=1)

    def write(self, event: str, **fields) -> None:
        try:
            self.file.write(json.dumps({"event": event, **fields}) + "\n")
        except OSError as error:
            raise InputError(
                f"could not write {self.file.name}: {error}; make room, then --resume"
            ) from None


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a run, apart from its model and loss."""

    plan: Plan
    work: Path  # checkpoints and log.jsonl are written here
    command: str
    rates: tuple[float, float]  # of Muon for matrices, of AdamW for all else
    seed: int = 0
    code: float = 0.65  # share of rows that are code
    bf16: bool = True
    resume: bool = False
    stop_at: int = 0
    minutes: float = 0  # of this run, which then stops to be resumed later; 0: no limit
    probe_every: int = 500
    log_every: int = 10
    save_seconds: float = 300
    patience: int = 0
    parts: int = 1
    team: Team = ALONE


def train(
    model: torch.nn.Module,
    loss_of: Callable[[int], torch.Tensor],
    settings: TrainingSettings,
    probe: Callable[[], dict] | None = None,
    facts: dict | None = None,
) -> dict:
    """Run the plan from the newest checkpoint or from step 0.

    -> state: step, tokens, seconds, runs, probes. `loss_of(step)` must be a pure function of the
    weights and the step, so that a run that is killed and resumed gives the same result. With
    several parts, a step's loss is the mean of loss_of(step * parts + 0, 1, ...), divided among the
    team. With patience, weights are also saved in work/best when probe()["acceptance"] improves,
    and the run ends after that many evaluations without improvement. facts: recorded with the run.
    Raises InputError.
    """
    s = settings
    plan = settings.plan
    parts = settings.parts
    team = settings.team
    team.share(parts)  # raises before any work is done
    made = optimizers(model, *s.rates)
    records = s.work / "checkpoints"
    log = EventLog(s.work / "log.jsonl", silent=not team.first)
    state: dict = {"step": 0, "seconds": 0.0, "runs": [], "probes": []}
    if s.resume:
        state = checkpoint.load(checkpoint.latest(records), model, made)
        set_rates(made, s.rates)
    elif checkpoint.listed(records):
        raise InputError(
            f"{records} holds a run: give --resume to continue it, or another --work to keep it"
        )
    first = state["step"]
    last = min(plan.steps, s.stop_at or plan.steps)
    if first > plan.steps:
        raise InputError(
            f"the checkpoint is at step {first} and the stages end at {plan.steps}: add steps"
        )
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    if (device := next(model.parameters()).device).type == "cuda":
        machine = torch.cuda.get_device_name(device)
    head = {"command": s.command, "time": provenance.now(), "versions": provenance.versions()}
    head |= {**provenance.checkout(), "machine": machine, "from_step": first}
    head |= {
        "stages": list(plan.stages),
        "decay": plan.decay,
        "step_tokens": plan.step_tokens,
        "rates": list(s.rates),
    }
    head |= {"code": s.code, "seed": s.seed, "bf16": s.bf16, "parts": parts, **(facts or {})}
    state["runs"] = [*state["runs"], head]
    log.write("start", **head)
    started = time.monotonic() - state["seconds"]
    began = time.monotonic()
    saved = began
    meter = Meter(log)

    def keep(step: int, where: Path = records, newest: int = 2) -> None:
        state.update(
            step=step, tokens=parts * plan.tokens(step), seconds=time.monotonic() - started
        )
        if team.first:
            checkpoint.save(where, step, model, made, state, newest)

    step = first
    over = False
    with bar(shown=team.first) as shown, asked_to_stop() as asked:
        task = shown.add_task("train", total=plan.steps, completed=first, loss=math.nan, speed=0.0)
        while step < last and not team.any(bool(asked) or over):
            rows, length = plan.shape(step)
            loss = mean_gradient(model, loss_of, step, parts, team)
            norm = update(model, made, loss, step, plan.rate(step), records)
            meter.add(parts * rows * length, loss, norm)
            step += 1
            tokens = parts * plan.tokens(step)
            if step % s.log_every == 0 or step == last:
                fields = {"tokens": tokens, "rate": plan.rate(step - 1), "length": length}
                shown.update(task, completed=step, **meter.report(step=step, **fields))
            if probe and (step % s.probe_every == 0 or step == last):
                with meter.paused():  # in all processes, because they may share the target
                    event = {"step": step, "tokens": tokens, **probe()}
                    state["probes"] = [*state["probes"], event]
                    log.write("probe", **state["probes"][-1])
                    if s.patience and not stale(state["probes"], 1):
                        keep(step, s.work / "best", 1)
                over = stale(state["probes"], s.patience)
            over = over or 0 < 60 * s.minutes <= time.monotonic() - began
            if time.monotonic() - saved >= s.save_seconds and step < last:
                with meter.paused():
                    keep(step)
                saved = time.monotonic()
        keep(step)
    log.write("end", step=step, tokens=state["tokens"], seconds=state["seconds"])
    return state


def stale(probes: list[dict], patience: int) -> bool:
    """Whether the last `patience` evaluations did not improve on the best acceptance before.

    patience 0: never.
    """
    rates = [p.get("acceptance", 0.0) for p in probes]
    if patience <= 0 or len(rates) <= patience:
        return False
    return max(rates[:-patience]) >= max(rates[-patience:])


class Meter:
    """Losses and tokens since the last report; time spent in `paused` is not counted."""

    def __init__(self, log: EventLog):
        self.log = log
        self.losses = []
        self.tokens = 0
        self.norm = 0.0
        self.window_start = time.monotonic()

    def add(self, tokens: int, loss: float, norm: float) -> None:
        self.tokens = self.tokens + tokens
        self.norm = norm
        self.losses.append(loss)

    def report(self, **fields) -> dict:
        """Log the mean loss and the speed, and start again; -> both."""
        loss = sum(self.losses) / len(self.losses)
        speed = self.tokens / (time.monotonic() - self.window_start)
        more = {"last_loss": self.losses[-1], "norm": self.norm, "tokens_per_s": round(speed)}
        self.log.write("step", loss=loss, **more, **fields)
        self.losses = []
        self.tokens = 0
        self.window_start = time.monotonic()
        return {"loss": loss, "speed": speed}

    @contextmanager
    def paused(self) -> Iterator[None]:
        before = time.monotonic()
        yield
        self.window_start += time.monotonic() - before


def mean_gradient(
    model, loss_of: Callable[[int], torch.Tensor], step: int, parts: int, team: Team
) -> float:
    """Compute a step's gradient, the mean over its parts; -> the mean loss.

    The parts are divided among the team.
    """
    total = torch.zeros(())
    for part in team.share(parts):
        loss = loss_of(step * parts + part) / parts
        loss.backward()
        total += loss.detach().float().cpu()
    team.sum([total, *(p.grad for p in model.parameters() if p.grad is not None)])
    return float(total)


def update(model, made: list, loss: float, step: int, factor: float, records: Path) -> float:
    """Run one optimizer step; -> the gradient's norm.

    If it or the loss is not finite: InputError, and no change.
    """
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    if not math.isfinite(loss) or not math.isfinite(norm):
        kept = checkpoint.listed(records)
        where = f"last good checkpoint: {kept[-1]}" if kept else "no checkpoint was written yet"
        fault = f"the loss is not a number at step {step} ({where})"
        raise InputError(f"{fault}; try --resume with lower --matrix-rate and --other-rate")
    for each in made:
        for group in each.param_groups:
            group["lr"] = group["full_rate"] * factor
        each.step()
        each.zero_grad(set_to_none=True)
    return norm


@contextmanager
def asked_to_stop() -> Iterator[list]:
    """A list that becomes non-empty on Ctrl-C or SIGTERM.

    So the current step is finished and saved.
    """
    asked: list[int] = []
    # handlers can only be set in the main thread
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    kept = {
        s: signal.signal(s, lambda number, _: asked.append(number))
        for s in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield asked
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def bar(*columns: str, shown: bool = True) -> Progress:
    """A progress bar on standard error; by default it shows a step's loss and speed."""
    step = (
        "{task.completed}/{task.total}",
        "loss {task.fields[loss]:.3f}",
        "{task.fields[speed]:.0f} tokens/s",
    )
    texts = [TextColumn(c) for c in columns or step]
    shape = (TextColumn("{task.description}"), BarColumn(), *texts, TimeRemainingColumn())
    return Progress(*shape, console=Console(stderr=True), disable=not shown)
