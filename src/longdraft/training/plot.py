"""Plots a run's log."""

from __future__ import annotations

from pathlib import Path

from longdraft.core.files import parse
from longdraft.errors import InputError


def draw(run: Path) -> Path:
    """Plot run/log.jsonl as run/loss.png.

    Loss over tokens and, for a drafter, held-out acceptance. Raises InputError.
    """
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'longdraft[plots]'") from None
    steps, probes = read(run)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(
        [s["tokens"] / 1e6 for s in steps], [s["loss"] for s in steps], lw=1, label="training loss"
    )
    axes.set(xlabel="million tokens", ylabel="nats per token", title=run.name)
    points = [(p["tokens"] / 1e6, p["acceptance"]) for p in probes if "acceptance" in p]
    if points:
        other = axes.twinx()
        other.plot(
            *zip(*points, strict=True),
            "o-",
            color="tab:green",
            label="implied acceptance length, held-out",
        )
        other.set_ylabel("tokens per verification")
        other.legend(loc="lower right")
    axes.legend(loc="upper right")
    figure.savefig(run / "loss.png", dpi=150)
    return run / "loss.png"


def read(run: Path) -> tuple[list[dict], list[dict]]:
    """The step events and probe events of a run, the later one where a step was repeated.

    Raises InputError.
    """
    try:
        events = [
            parse(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{run} holds no run ({error}): give the --work folder of `longdraft train`"
        ) from None
    if any(not isinstance(e, dict) or "event" not in e for e in events):
        raise InputError(
            f"{run}/log.jsonl is not the log of `longdraft train`: give its --work folder"
        )
    kinds = ({e["step"]: e for e in events if e["event"] == kind} for kind in ("step", "probe"))
    steps, probes = ([by_step[k] for k in sorted(by_step)] for by_step in kinds)
    if not steps:
        raise InputError(f"{run}/log.jsonl has no step yet: train first")
    return steps, probes
