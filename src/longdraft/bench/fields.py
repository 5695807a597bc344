"""The fields that tables and plots read of a record, so that a record from elsewhere is refused in
one line.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from longdraft.sampling_parameters import PENALTY, SEED, TEMPERATURE, TOP_K, TOP_P, WINDOW

Count = Annotated[int, Field(ge=1, le=1 << 48)]
NotNegative = Annotated[float, Field(ge=0)]
Above = Annotated[float, Field(gt=0)]
Shares = list[Annotated[float, Field(ge=0, le=1)]]


class _Fields(BaseModel):
    """A record may have more fields than these. Numbers are finite, and of the type that is
    stated.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class NamedFields(_Fields):
    """The fields that every record has, whatever its task."""

    task: str
    method: str
    context: Count


class RunFields(NamedFields):
    """The fields that describe a record's run; the notes under a table repeat them."""

    label: str
    run: str
    model: str
    dtype: str
    text_name: str
    text_sha256: str
    device: str
    threads: int
    seed: Annotated[int, Field(**SEED.limits)]
    native: bool
    environment: dict[str, Any]
    versions: dict[str, Any]
    git_sha: str | None
    git_dirty: bool | None
    time: str
    command: str
    rope: str | None = None
    weights: str | None = None
    kv: str | None = None
    activations: str | None = None
    kernels: str | None = None
    question: str | None = None
    interrupted: bool = False
    peer: str | None = None
    damage: str | None = None


class OptionFields(_Fields):
    """A method's options that limit how many keys its drafts read; the last two are names in older
    records.
    """

    budget: NotNegative | None = None
    keep_ratio: NotNegative | None = None
    min_budget: NotNegative = 0
    ratio: NotNegative | None = None
    floor: NotNegative = 0


class SampledFields(RunFields):
    """The fields of a record of decoding that describe its sampler and its method."""

    temperature: Annotated[float, Field(**TEMPERATURE.limits)]
    top_k: Annotated[int, Field(**TOP_K.limits)] = TOP_K.default
    window: Annotated[int, Field(**WINDOW.limits)] = WINDOW.default
    top_p: Annotated[float, Field(**TOP_P.limits)] = TOP_P.default
    penalty: Annotated[float, Field(**PENALTY.limits)] = PENALTY.default
    mean_acceptance_length: NotNegative
    acceptance_per_position: Shares
    options: OptionFields = OptionFields()


class DifferenceFields(_Fields):
    top2_gap: NotNegative | None


class SpeedFields(SampledFields):
    """One decoding of a text by one method."""

    batch: Count
    new_tokens: NotNegative | Annotated[list[NotNegative], Field(min_length=1)]
    prefill_s: NotNegative
    start_s: NotNegative = 0.0
    decode_s: NotNegative
    draft_s: NotNegative
    verify_s: NotNegative
    tokens_per_s: NotNegative
    tokens_per_s_end_to_end: NotNegative | None = None
    tokens_per_s_steady: NotNegative | None = None
    distinct_3: NotNegative
    equal: bool | None
    first_difference: DifferenceFields | None
    oracle: NotNegative = 0.0

    @model_validator(mode="after")
    def _together(self) -> SpeedFields:
        more = self.model_extra or {}
        if self.batch > 1 and not isinstance(self.new_tokens, list):
            raise ValueError("new_tokens of several rows is not a list")
        for field, names, kind in (
            ("distinct_1", ("distinct_1", "distinct_2", "distinct_4"), float),
            (
                "bandwidth_share",
                ("bandwidth_share", "bandwidth_gb_s", "bytes_per_step"),
                (int, float),
            ),
            ("peer", ("peer_version",), str),
        ):
            there = self.peer is not None if field == "peer" else field in more
            odd = next((n for n in names if there and not isinstance(more.get(n), kind)), None)
            if odd:
                raise ValueError(f"there is no {odd} beside {field}")
        return self


class SuiteFields(SpeedFields):
    """One decoding of an answer of a suite's task by one method."""

    suite: str
    kind: str
    instance: str
    turn: Count
    prompt_tokens: Count
    new_tokens: Count


class LeftOutFields(RunFields):
    """Why another engine was not measured at a context."""

    reason: str


class StepsFields(RunFields):
    """Milliseconds of one operation, turn by turn."""

    ms: Annotated[list[Above], Field(min_length=1)]
    bytes_per_step: Above
    bandwidth_gb_s: Above


class AnchoredFields(SampledFields):
    """Acceptance of one method's drafts at many positions of a text."""

    every: int
    anchors: int
    windows: int
    stderr: NotNegative | None
    stderr_clustered: NotNegative | None
    accepted: list[list[int]]

    @model_validator(mode="after")
    def _warm(self) -> AnchoredFields:
        if not any(
            isinstance((self.model_extra or {}).get(name), int)
            for name in ("warmup_rounds", "settle")
        ):
            raise ValueError("there is no warmup_rounds")
        return self


TASKS: dict[str, type[_Fields]] = {
    "speed": SpeedFields,
    "suite": SuiteFields,
    "steps": StepsFields,
    "anchored": AnchoredFields,
    "left out": LeftOutFields,
}


def fault(record: Any) -> str | None:
    """The fault of a record, in words; None if tables and plots can be made of it."""
    task = record.get("task") if isinstance(record, dict) else None
    try:
        TASKS.get(task if isinstance(task, str) else "", NamedFields).model_validate(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"][:2])
        lacking = first["type"] == "missing"
        said = first["msg"].removeprefix("Value error, ")
        return f"it lacks {where}" if lacking else f"{where}: {said}".removeprefix(": ")
    return None
