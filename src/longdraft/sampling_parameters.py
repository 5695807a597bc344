"""The parameters of sampling, in one table.

The library, `longdraft.hf`, the command line, the server and its page read it. A range is the same
everywhere, and as wide as anyone needs. OpenAI documents temperatures up to 2, but other servers
and our commands take higher ones; vLLM's clients send a top_k of -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Generic, TypeVar

from longdraft.errors import InputError

N = TypeVar("N", int, float)
EXACT = (1 << 53) - 1  # the largest whole number that is exact in JavaScript, and in a double


@dataclass(frozen=True)
class Parameter(Generic[N]):
    """A parameter: its values are of `kind`, from `low` to `high`; `above`: without `low` itself.

    name: as in Python.
    """

    name: str
    kind: type[N]
    low: N
    high: N
    default: N
    about: str
    above: bool = False

    def check(self, value: Any, name: str = "") -> None:
        """Raises InputError for a value out of range.

        name: the parameter's name in the message (default: its own).
        """
        kind = Integral if self.kind is int else Real
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        if not (is_number and self._holds(value)):
            raise InputError(
                f"{name or self.name.replace('_', '-')} is {value}: give {self.allowed}"
            )

    def _holds(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high) and not (self.above and value == self.low)

    @property
    def span(self) -> str:
        """The range in words."""
        if self.above:
            return f"above {self.low}, {self.high} at most"
        return f"from {self.low} to {self.high}"

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        return f"{'a whole number' if self.kind is int else 'a number'} {self.span}"

    @property
    def limits(self) -> dict[str, Any]:
        """The range as keywords of pydantic's `Field`."""
        return {"gt" if self.above else "ge": self.low, "le": self.high}

    @property
    def in_json(self) -> dict[str, Any]:
        """The range for a page.

        A whole number that is not exact there is out of it: another would be sent.
        """
        low = self.low
        high = self.high
        if self.kind is int:
            low = max(-EXACT, min(EXACT, low))
            high = max(-EXACT, min(EXACT, high))
        span = Parameter(self.name, self.kind, low, high, self.default, self.about, self.above)
        return {
            "whole": self.kind is int,
            "low": low,
            "high": high,
            "above": self.above,
            "allowed": span.allowed,
        }


TEMPERATURE = Parameter(
    "temperature", float, 0, 10_000, 0.0, "Sampling temperature; 0 is greedy decoding."
)
COLD = 1e-30  # a temperature below this is greedy: noise is lost in the logits that it divides
TOP_K = Parameter(
    "top_k", int, -1, 1 << 31, 0, "Sample from the k most likely tokens; 0 or -1 is off."
)
TOP_P = Parameter(
    "top_p", float, 0, 1, 1.0, "Nucleus sampling: cumulative probability; 1 is off.", above=True
)
MIN_P = Parameter(
    "min_p", float, 0, 1, 0.0, "Drop tokens below this share of the highest probability; 0 is off."
)
ETA = Parameter("eta", float, 0, 1, 0.0, "Eta sampling: the cutoff of probabilities; 0 is off.")
PENALTY = Parameter(
    "penalty", float, 0.001, 1000, 1.0, "Divide the logits of recent tokens by this; 1 is off."
)
WINDOW = Parameter(
    "window", int, 1, 1 << 31, 1024, "Number of recent tokens that the penalty considers."
)
FREQUENCY = Parameter(
    "frequency", float, -2, 2, 0.0, "Subtracted from a logit per generated occurrence; 0 is off."
)
PRESENCE = Parameter(
    "presence", float, -2, 2, 0.0, "Subtracted from the logits of generated tokens; 0 is off."
)
# the fields of a Sampler
SAMPLER = (
    TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
    ETA,
    PENALTY,
    WINDOW,
    FREQUENCY,
    PRESENCE,
)

BIAS = Parameter("bias", float, -100, 100, 0.0, "Added to the logit of a token.")
# torch.manual_seed's range: as there, a seed is taken as an int64.
SEED = Parameter("seed", int, -(1 << 63), (1 << 64) - 1, 0, "Seed of random numbers.")
MAX_TOKENS = Parameter("max_tokens", int, 1, (1 << 31) - 1, 256, "Maximum number of new tokens.")
# the numbers of a trace's request, which the page asks for
TRACE = (
    TEMPERATURE,
    TOP_P,
    TOP_K,
    SEED,
    MAX_TOKENS,
)
