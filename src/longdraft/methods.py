"""Named systems as expressions over the parts. Adding one: a file, a function and a line here, a line in the tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from longdraft.drafters import Drafter, Lookup, SelfDrafter
from longdraft.errors import InputError
from longdraft.model import LM
from longdraft.views import Guided, RandomPicks, Recents, SinkWindow


def plain(target: LM) -> Drafter:
    """One token per step: the baseline of every figure."""
    return Drafter()


def lookup(target: LM, n: int = 3, count: int = 10) -> Drafter:
    """Continue the latest earlier occurrence of the text's last tokens (up to n of them) by `count` tokens."""
    at_least(1, n=n, count=count)
    return Lookup(n, count)


def magicdec_stream(target: LM, gamma: int = 7, sink: int = 4, ratio: float = 0.07, floor: int = 256) -> Drafter:
    """The target drafts gamma tokens seeing the first `sink` tokens and the latest: ratio of the context in all."""
    at_least(1, gamma=gamma, floor=floor)
    at_least(0, sink=sink)
    share(ratio=ratio)
    return SelfDrafter(target, SinkWindow(sink, ratio, floor), [1] * gamma)


def vegas(target: LM, gamma: int = 7, ratio: float = 0.07, floor: int = 256, score: str = "logits") -> Drafter:
    """The target drafts gamma tokens seeing what the last verification's first and last rows scored highest."""
    at_least(1, gamma=gamma, floor=floor)
    share(ratio=ratio)
    one_of(("logits", "weights"), score=score)
    return SelfDrafter(target, Guided(ratio, floor, score), [1] * gamma)


def random_picks(target: LM, gamma: int = 7, ratio: float = 0.07, floor: int = 256, seed: int = 0) -> Drafter:
    """Control: the target drafts seeing random slots, as many as vegas picks."""
    at_least(1, gamma=gamma, floor=floor)
    share(ratio=ratio)
    return SelfDrafter(target, RandomPicks(ratio, floor, seed), [1] * gamma)


def recents(target: LM, gamma: int = 7, ratio: float = 0.07, floor: int = 256) -> Drafter:
    """Control: the target drafts seeing the latest slots alone, as many as vegas picks."""
    at_least(1, gamma=gamma, floor=floor)
    share(ratio=ratio)
    return SelfDrafter(target, Recents(ratio, floor), [1] * gamma)


@dataclass(frozen=True)
class Method:
    """build(target, **options) -> Drafter, or build(target, part, **options) where it needs a part with weights.

    needs: the kind of that part, a key of PARTS.
    """

    build: Callable[..., Drafter]
    paper: str
    needs: str | None = None

    @property
    def options(self) -> dict[str, tuple[type, Any]]:
        """{name: (type, default)}, read off the function's signature."""
        hints = get_type_hints(self.build)
        given = 2 if self.needs else 1
        parameters = list(inspect.signature(self.build).parameters.values())[given:]
        return {p.name: (hints[p.name], p.default) for p in parameters}


METHODS = {
    "plain": Method(plain, "autoregressive decoding"),
    "lookup": Method(lookup, "Prompt Lookup Decoding (Saxena 2023)"),
    "magicdec-stream": Method(magicdec_stream, "MagicDec (Chen et al. 2024) with StreamingLLM (Xiao et al. 2023)"),
    "vegas": Method(vegas, "Vegas: verification-guided sparse attention (2026)"),
}
CONTROLS = {
    "random-picks": Method(random_picks, "control"),
    "recents": Method(recents, "control"),
}


# What a method may need besides the target: kind -> (target, seed) -> a random one of that kind.
PARTS: dict[str, Callable[[LM, int], Any]] = {}


def find(name: str) -> Method:
    """Raises InputError on an unknown name."""
    known = METHODS | CONTROLS
    if name not in known:
        raise InputError(f"unknown method {name!r}: choose one of {', '.join(known)}")
    return known[name]


def build(name: str, target: LM, options: dict[str, str] | None = None, part: Any = None) -> Drafter:
    """The drafter of a named method; options as text, typed by the method's own signature. Raises InputError.

    part: the weights of a method that needs some (Method.needs).
    """
    method = find(name)
    typed = {k: _typed(name, method, k, v) for k, v in (options or {}).items()}
    if method.needs is None:
        return method.build(target, **typed)
    if part is None:
        raise InputError(f"{name} needs a drafter of kind {method.needs}: give --drafter FOLDER or --random-drafter")
    return method.build(target, part, **typed)


def _typed(name: str, method: Method, key: str, value: str) -> Any:
    if key not in method.options:
        known = ", ".join(method.options) or "none"
        raise InputError(f"{name} has no option {key!r}: its options are {known}")
    kind = method.options[key][0]
    try:
        return kind(value)
    except ValueError:
        words = {"int": "a whole number", "float": "a number"}.get(kind.__name__, kind.__name__)
        raise InputError(f"{name}'s option {key} is {value!r}: give {words}") from None


def at_least(low: int, **values: int) -> None:
    for key, value in values.items():
        if value < low:
            raise InputError(f"option {key} is {value}: give {low} or more")


def share(**values: float) -> None:
    for key, value in values.items():
        if not 0 < value <= 1:
            raise InputError(f"option {key} is {value}: give a share above 0 and up to 1")


def one_of(choices: tuple[str, ...], **values: str) -> None:
    for key, value in values.items():
        if value not in choices:
            raise InputError(f"option {key} is {value!r}: choose {' or '.join(choices)}")
