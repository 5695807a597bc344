"""Sequence length, rows and learning-rate factor of each step, as pure functions of the step."""

from __future__ import annotations

from dataclasses import dataclass

from longdraft.errors import InputError


@dataclass(frozen=True)
class Plan:
    """Consecutive stages of training.

    The learning rate warms up, stays constant, and falls to 0 over the plan's last tokens.
    """

    stages: tuple[tuple[int, int], ...]  # (sequence length, steps)
    step_tokens: int  # a step has as many rows as fit, at least one
    decay: float = 1 / 3  # share of all tokens over which the rate falls
    warmup: int = 100  # steps

    @property
    def steps(self) -> int:
        return sum(steps for _, steps in self.stages)

    def shape(self, step: int) -> tuple[int, int]:
        """-> (rows, sequence length) of a step."""
        for length, steps in self.stages:
            if step < steps:
                return max(1, self.step_tokens // length), length
            step -= steps
        raise IndexError(step)

    def tokens(self, steps: int) -> int:
        """Tokens of the first `steps` steps."""
        total = 0
        for length, count in self.stages:
            done = min(steps, count)
            total += done * length * max(1, self.step_tokens // length)
            steps -= done
        return total

    def rate(self, step: int) -> float:
        """Factor of the learning rates, above 0 at the first and the last step."""
        left = 1 - self.tokens(step) / self.tokens(self.steps)
        return min(1.0, (step + 1) / (min(self.warmup, self.steps // 10) + 1), left / self.decay)


def parse_stages(texts: list[str], positions: int) -> tuple[tuple[int, int], ...]:
    """`512:7000` -> (512, 7000). Raises InputError."""
    stages = []
    for text in texts:
        length, _, steps = text.partition(":")
        if not (length.isdecimal() and steps.isdecimal() and int(length) >= 8 and int(steps) >= 1):
            raise InputError(
                f"--stage {text!r}: give LENGTH:STEPS, both whole numbers, such as "
                "512:7000 (length >= 8)"
            )
        if int(length) > positions:
            raise InputError(f"--stage {text}: longer than the model's {positions} positions")
        stages.append((int(length), int(steps)))
    return tuple(stages)
