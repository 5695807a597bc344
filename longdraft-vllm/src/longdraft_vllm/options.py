"""The methods inside vLLM, in one table: names, what each needs of vLLM, and options.

A user gives options by --additional-config '{"longdraft": {...}}'. Those that longdraft's method
has too are checked by its record, which has their defaults. longdraft is imported only then, not by
every process of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

PACKAGE = __package__ or "longdraft_vllm"
# the options that belong to no method
KEYED = "keyed_noise"
PACE = "pace"


@dataclass(frozen=True)
class Offered:
    """A method that vLLM can be given, as the class of this name.

    method: longdraft's name for it. module: where the class is. drafts_from: "text" is what vLLM
    gives to every proposer; for "logits" of the target, vLLM's older runner needs a worker of the
    plugin's own; if the "target" itself drafts, a scheduler that reserves slots, too. usual: how
    often drafts are accepted, before anything is known. options: those of longdraft's method that
    it has. extra: others, with defaults.
    """

    name: str
    method: str
    module: str
    drafts_from: Literal["text", "logits", "target"]
    usual: float
    options: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """What a user gives as `model` in --speculative-config."""
        return f"{PACKAGE}.{self.name}"

    def load(self) -> type:
        return getattr(import_module(f"{PACKAGE}.{self.module}"), self.name)


METHODS = {
    offered.name: offered
    for offered in (
        Offered(
            "Suffix",
            "suffix",
            "proposers",
            "text",
            0.6,
            ("nodes", "factor", "min_probability", "earlier"),
        ),
        Offered("Lookup", "lookup", "proposers", "text", 0.6, ("n", "count")),
        Offered("Recycle", "recycle", "recycle", "logits", 0.4),
        Offered("Fill", "fill", "fill", "logits", 0.6),
        Offered(
            "Vegas",
            "vegas",
            "views",
            "target",
            0.95,
            ("keep_ratio", "min_budget", "reach"),
            {"every": None},
        ),
        Offered(
            "MagicdecStream",
            "magicdec-stream",
            "views",
            "target",
            0.9,
            ("sink", "keep_ratio", "min_budget"),
        ),
    )
}


def chosen(vllm_config: Any) -> Offered | None:
    """The method that the user has chosen, if it is one of these."""
    spec = vllm_config.speculative_config
    if spec is None or spec.method != "custom_class":
        return None
    return next((offered for offered in METHODS.values() if offered.model == spec.model), None)


def given(vllm_config: Any) -> dict[str, Any]:
    """All options that the user gave."""
    extra = getattr(vllm_config, "additional_config", None)
    return dict(extra.get("longdraft", {})) if isinstance(extra, dict) else {}


def keyed_noise(vllm_config: Any) -> bool:
    """Whether seeded requests are to draw by keyed noise. Raises ValueError."""
    found = given(vllm_config).get(KEYED, False)
    if not isinstance(found, bool):
        raise ValueError(f"{KEYED} is {found!r}: give true or false")
    return found


def paced(vllm_config: Any) -> bool:
    """Whether drafts are only made where they are expected to be faster. Raises ValueError."""
    found = given(vllm_config).get(PACE, "on")
    if found not in ("on", "off"):
        raise ValueError(f'{PACE} is {found!r}: give "on" or "off"')
    return found == "on"


def options_of(vllm_config: Any, name: str, **defaults: Any) -> dict[str, Any]:
    """Every option of this method: the user's value, else that of `defaults`, else its default.
    Raises ValueError.
    """
    from longdraft.core.options import declared, read
    from longdraft.methods import find

    offered = METHODS[name]
    own = {
        option: value for option, value in given(vllm_config).items() if option not in (KEYED, PACE)
    }
    known = [*offered.options, *offered.extra]
    if unknown := sorted(own.keys() - set(known)):
        raise ValueError(
            f"{name} has no option {', '.join(unknown)}; its options are "
            f"{', '.join([*known, KEYED, PACE])}"
        )
    values = {**offered.extra, **defaults, **own}
    shared = {option: value for option, value in values.items() if option in offered.options}
    checked = dict(read(name, declared(find(offered.method).build), shared))
    return {option: checked.get(option, values.get(option)) for option in known}
