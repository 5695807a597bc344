"""For tests of the pace: decisions at random, and a machine of made-up speed."""

from __future__ import annotations

import random
from typing import Any

from longdraft_vllm import pace
from longdraft_vllm.runner import SelfDrafting

ON = {"pace": "on"}


def at_random(monkeypatch: Any) -> None:
    """Any decisions that a clock might lead to."""
    rng = random.Random(7)
    monkeypatch.setattr(pace.Pace, "pick", lambda self, rows, shapes: rng.choice([None, *shapes]))


class Machine:
    """A clock that each pass moves by what it costs: a step 1, and more for each verified token and
    each draft.
    """

    def __init__(self, monkeypatch: Any, runner: type[Any]):
        self.now = 0.0
        self.verify = 0.0
        self.draft = 0.0
        execute = runner.execute_model
        chains = SelfDrafting._chains

        def executing(of: Any, scheduler_output: Any, *args: Any, **given: Any) -> Any:
            drafted = sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values()))
            self.now += 1.0 + self.verify * drafted
            return execute(of, scheduler_output, *args, **given)

        def drafting(of: Any, rows: Any, plans: Any) -> Any:
            self.now += self.draft * of.step.depth
            return chains(of, rows, plans)

        monkeypatch.setattr(runner, "execute_model", executing)
        monkeypatch.setattr(SelfDrafting, "_chains", drafting)
        monkeypatch.setattr(pace, "perf_counter", lambda: self.now)
