"""Turns logits into the token that each node emits, in the same way in plain decoding."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from longdraft import sampling_parameters as parameters
from longdraft.core.constraint import Constraint
from longdraft.core.processors import Settings, apply, path_tokens, penalized, repeated, within
from longdraft.core.rows import Rows
from longdraft.core.rules import Rules
from longdraft.core.tree import Tree
from longdraft.errors import InputError
from longdraft.ops import Warpers, argmax, draw, gumbel


@dataclass(frozen=True)
class Sampler:
    """Sampling settings: a node's token depends only on its own path, seed and position.

    How the node was drafted and the other rows change nothing. temperature 0 is greedy, and one
    below 1e-30 becomes 0; a top_k of -1 becomes 0. These change the logits, in this order: bias is
    added to those of its tokens; penalty divides those of tokens among the last `window` ones
    (TokenSwift eq. 3); frequency is subtracted once for every time that a token has been generated,
    and presence once if it was at all (OpenAI's penalties; the prompt does not count); the
    constraint excludes tokens. All go by each node's own path. Then follow Transformers' processors
    in Transformers' order: the model's rules, temperature, top_k, top_p, min_p, eta. What the
    constraint excludes stays excluded, and the rules are void after a node where they leave none of
    what it allows. rules None: those of the model that is sampled; Rules(): no rules. A penalty
    replaces the rules' repetition_penalty, also one of 1, which is off; None leaves it. Raises
    InputError for a value out of range (`longdraft.sampling_parameters`).
    """

    temperature: float = parameters.TEMPERATURE.default
    top_k: int = parameters.TOP_K.default
    top_p: float = parameters.TOP_P.default
    min_p: float = parameters.MIN_P.default
    eta: float = parameters.ETA.default
    penalty: float | None = None
    window: int = parameters.WINDOW.default
    rules: Rules | None = None
    frequency: float = parameters.FREQUENCY.default
    presence: float = parameters.PRESENCE.default
    bias: tuple[tuple[int, float], ...] = ()  # token, number
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        for parameter in parameters.SAMPLER:
            if (parameter.name, getattr(self, parameter.name)) != ("penalty", None):
                parameter.check(getattr(self, parameter.name))
        for token, number in self.bias:
            parameters.BIAS.check(number, f"bias of token {token}")
            if token < 0:
                raise InputError(f"bias has token {token}: give token ids of 0 or more")
        if self.temperature < parameters.COLD:
            object.__setattr__(self, "temperature", 0.0)
        if self.top_k < 0:  # so that equal samplers compare equal
            object.__setattr__(self, "top_k", 0)
        if self.penalty is not None and self.rules is not None:
            object.__setattr__(self, "rules", self.rules.without("repetition_penalty"))

    def under(self, rules: Rules) -> Sampler:
        """The same sampler with a model's rules, unless it has its own."""
        return replace(self, rules=rules) if self.rules is None else self

    def processed(self, logits: Tensor, tree: Tree, rows: Rows, start: int = 0) -> Tensor:
        """Processed logits [B,W,V], float32, of nodes [start, start+W).

        Their softmax is the distribution of the next token.
        """
        logits = self._changed(logits.float(), tree, rows, start)
        settings = self._settings
        rules = (self.rules or Rules()).settings
        if self.constraint is not None and rules:
            logits = within(logits, apply(rules, logits, tree, rows, start))
            settings = settings[len(rules) :]
        return apply(settings, logits, tree, rows, start) if settings else logits

    def scores(
        self,
        logits: Tensor,
        tree: Tree,
        rows: Rows,
        start: int = 0,
        seed: Tensor | None = None,
        tokens: Tensor | None = None,
        summed: bool = False,
    ) -> Tensor:
        """Scores [B,W,V] whose argmax is the draw (Gumbel top-k).

        Their top-k are draws without replacement. Drafter and target add the same noise at the same
        position, which couples their draws. seed [B]: seeds to use instead of the rows' own. tokens
        [V]: the tokens that the logits are of (None: all), for a `bare` sampler. summed: greedy
        scores are log-probabilities too, so that those of a path can be summed.
        """
        processed = self.processed(logits, tree, rows, start)
        if self.temperature == 0:
            return processed.log_softmax(-1) if summed else processed
        position = rows.length[:, None] + tree.depth[:, start : start + processed.shape[1]]
        vocab = processed.shape[-1] if tokens is None else int(tokens.max()) + 1
        noise = gumbel(rows.seed if seed is None else seed, position, vocab, tokens)
        return processed.log_softmax(-1) + noise

    def law(self, logits: Tensor, tree: Tree, rows: Rows, start: int = 0) -> Tensor:
        """The distribution [B,W,V] that nodes [start, start+W) are drawn from.

        Greedy sampling gives the best token probability 1.
        """
        processed = self.processed(logits, tree, rows, start)
        if self.temperature == 0:
            return torch.zeros_like(processed).scatter_(-1, processed.argmax(-1, keepdim=True), 1.0)
        return processed.softmax(-1)

    @property
    def described(self) -> dict[str, Any]:
        """Its fields as records have them; the constraint in a few words."""
        return (
            asdict(replace(self, constraint=None))
            | {"penalty": self.divisor}
            | ({} if self.constraint is None else {"constraint": self.constraint.about})
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def adds(self) -> bool:
        """Whether something is added to logits."""
        return bool(self.frequency or self.presence or self.bias or self.constraint)

    @property
    def bare(self) -> bool:
        """Whether the temperature is the only setting that changes the distribution."""
        shaping = [
            f for f in fields(self) if f.name not in ("temperature", "penalty", "window", "rules")
        ]
        unchanged = all(getattr(self, f.name) == f.default for f in shaping) and self.divisor == 1
        return unchanged and not (self.rules or Rules()).settings

    @cached_property
    def warpers(self) -> Warpers | None:
        """All settings that change the distribution besides the penalty.

        None if others change it too.
        """
        if self.eta or (self.rules or Rules()).settings:
            return None
        if self.temperature == 0:
            return Warpers()
        return Warpers(self.temperature, self.top_k, self.top_p, self.min_p)

    def draw(self, logits: Tensor, tree: Tree, rows: Rows) -> Tensor:
        """The token [B,T] that each node of the tree emits: the argmax of `scores`.

        One kernel computes it where possible. The kernel sums probabilities in another order, so
        for logits within rounding of top-p's limit it may differ from `scores`; it is the same for
        plain and speculative decoding.
        """
        if self.temperature > 0 and self.warpers is not None:
            drawn = draw(
                self._changed(logits, tree, rows, 0),
                self.warpers,
                rows.seed,
                rows.length[:, None] + tree.depth,
            )
            if drawn is not None:
                return drawn
        return argmax(self.scores(logits, tree, rows))

    def chain(self, count: int, rows: Rows) -> ChainDraws | None:
        """The draws of a chain of `count` tokens below the roots; None: draw node by node."""
        return ChainDraws.of(count, [self] * len(rows.length), rows)

    def forced(self, rows: Rows) -> list[list[int]]:
        """The tokens that each row must emit next by the constraint."""
        return [[] for _ in rows.eos] if self.constraint is None else self.constraint.forced(rows)

    def failure(self, rows: Rows, row: int) -> str:
        """The reason why a row's ended text does not satisfy the constraint.

        Empty if it does, or if the text goes on.
        """
        return "" if self.constraint is None else self.constraint.failure(rows, row)

    def prepare(self, tree: Tree, rows: Rows) -> None:
        """Begin computing what `draw` needs for this tree, while the pass computes its logits."""
        if self.constraint is not None:
            self.constraint.prepare(tree, rows)

    @property
    def constrained(self) -> bool:
        """Whether a constraint may force tokens."""
        return self.constraint is not None

    @property
    def divisor(self) -> float:
        """The number that the penalty divides by; 1: no penalty."""
        return 1.0 if self.penalty is None else self.penalty

    @property
    def lag(self) -> int:
        """The number of newest tokens that the penalty counts; 0: no penalty."""
        return 0 if self.divisor == 1 else self.window

    def of_rows(self, rows: slice) -> Sampler:
        """The sampler of these rows alone."""
        return self

    @cached_property
    def _settings(self) -> Settings:
        """The settings of a GenerationConfig that have an effect."""
        settings = dict((self.rules or Rules()).settings)
        if self.temperature > 0:
            chosen = {
                "top_k": self.top_k or None,
                "top_p": float(self.top_p) if self.top_p < 1 else None,
            }
            chosen |= {"min_p": self.min_p or None, "eta_cutoff": self.eta or None}
            if self.temperature != 1:
                chosen["temperature"] = float(self.temperature)
            used = {name: value for name, value in chosen.items() if value is not None}
            settings |= {"do_sample": True, **used} if used else {}
        return tuple(settings.items())

    def _changed(self, logits: Tensor, tree: Tree, rows: Rows, start: int) -> Tensor:
        """Logits after the bias, the penalties and the constraint.

        The same tensor if there are none of them.
        """
        if self.bias:
            tokens, numbers = (
                torch.tensor(x, device=logits.device) for x in zip(*self.bias, strict=True)
            )
            logits = logits.float().index_add(
                -1, tokens, numbers.float().expand(*logits.shape[:-1], -1)
            )
        if self.divisor != 1:
            logits = self._penalized(logits.float(), tree, rows, start)
        if self.frequency or self.presence:
            logits = repeated(logits, tree, rows, start, self.frequency, self.presence)
        if self.constraint is None:
            return logits
        return self.constraint.masked(logits, tree, rows, start)

    def _penalized(self, logits: Tensor, tree: Tree, rows: Rows, start: int) -> Tensor:
        """Penalize the tokens among each node's last `window`.

        Committed tokens count by distance, drafted ones by path.
        """
        return penalized(
            logits, path_tokens(tree, rows, start, logits.shape[1], self.window), self.divisor
        )


@dataclass
class ChainDraws:
    """The draws of a chain of `count` tokens in all rows.

    Row b draws as samplers[b] does, with noise of seed [B] at position [B] and on. All samplers
    have `warpers` and add nothing to logits. recent [B,N]: what penalties count before the first
    draw, the chain's root last and -1 where a row has fewer tokens; None without a penalty.
    """

    count: int
    samplers: list[Sampler]
    seed: Tensor
    position: Tensor
    recent: Tensor | None = None

    @staticmethod
    def of(count: int, samplers: list[Sampler], rows: Rows) -> ChainDraws | None:
        """The draws below the roots of these rows; None if a sampler has other settings."""
        if any(s.warpers is None or s.adds for s in samplers):
            return None
        recent = None
        lag = max(s.lag for s in samplers)
        if lag:
            n = min(lag, int(rows.length.max()))
            position = rows.length[:, None] - torch.arange(n, 0, -1, device=rows.tokens.device)
            recent = torch.where(position >= 0, rows.tokens.gather(1, position.clamp(min=0)), -1)
        return ChainDraws(count, samplers, rows.seed, rows.length, recent)

    @property
    def warpers(self) -> list[Warpers]:
        return [s.warpers or Warpers() for s in self.samplers]

    def first(self, logits: Tensor) -> Tensor:
        """The first token [B] of each row, given the logits [B,1,V] of its parent.

        Needs a native build.
        """
        return torch.cat([self._first(b, logits[b : b + 1]) for b in range(len(self.samplers))])

    def _first(self, b: int, logits: Tensor) -> Tensor:
        sampler = self.samplers[b]
        row = slice(b, b + 1)
        if self.recent is not None and sampler.lag:
            recent = self.recent[row, -sampler.window :]
            recent = torch.where(recent < 0, recent[:, -1:], recent)
            logits = penalized(logits.float(), recent[:, None], sampler.divisor)
        drawn = draw(logits, self.warpers[b], self.seed[row], self.position[row, None])
        assert drawn is not None
        return drawn[:, 0]

    def after(self, first: Tensor) -> ChainDraws:
        """The draws that are left after the first token [B] of each row."""
        recent = None if self.recent is None else torch.cat([self.recent, first[:, None]], 1)
        return ChainDraws(self.count - 1, self.samplers, self.seed, self.position + 1, recent)
