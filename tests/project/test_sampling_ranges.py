"""Everything that takes a sampling parameter accepts and refuses the same values: those of the one
table.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from support import tiny
from support.commands import as_command, commands

from longdraft import hf_generate
from longdraft import sampling_parameters as table
from longdraft.bench import fields as records
from longdraft.core import Sampler, Sequences
from longdraft.engine.requests import make_request
from longdraft.errors import InputError
from longdraft.hf.sampler import IN_RANGE, sampler_of
from longdraft.sampling_parameters import EXACT, SAMPLER, SEED, TEMPERATURE, TOP_K, TRACE, Parameter
from longdraft.server.openai.responses import ResponsesRequest
from longdraft.server.openai.schema import ChatRequest, CompletionRequest
from longdraft.server.traces import TraceRequest

TABLE = [p for p in vars(table).values() if isinstance(p, Parameter)]
REQUESTS = (CompletionRequest, ChatRequest, ResponsesRequest, TraceRequest, records.SpeedFields)
HTTP = {
    "penalty": "repetition_penalty",
    "frequency": "frequency_penalty",
    "presence": "presence_penalty",
}
OPTION = {"window": "penalty_window"}
COMMANDS = commands()
ROOT = Path(__file__).resolve().parents[2]
Accepts = Callable[[Any], bool]


def values(p: Parameter) -> list[Any]:
    """The ends of a range, its neighbors outside and inside, and what is no number of its type."""
    if p.kind is int:
        return [
            p.low - 1,
            p.low,
            p.low + 1,
            p.default,
            p.high - 1,
            p.high,
            p.high + 1,
            1 << 80,
            1.5,
            math.nan,
            "hot",
        ]
    ends = [math.nextafter(end, way) for end in (p.low, p.high) for way in (-math.inf, math.inf)]
    return [
        *ends,
        p.low,
        p.default,
        (p.low + p.high) / 2,
        p.high,
        math.inf,
        -math.inf,
        math.nan,
        "hot",
    ]


def accepts(call: Callable[[Any], Any], value: Any) -> bool:
    """Whether a call takes a value; any error but a refusal of this value passes through."""
    try:
        call(value)
    except (InputError, ValidationError, typer.BadParameter):
        return False
    return True


def library(p: Parameter, sampler: type[Sampler] = Sampler) -> Iterator[tuple[str, Accepts]]:
    if p in SAMPLER:
        yield "Sampler", partial(accepts, lambda v: sampler(**{p.name: v}))
    if p is SEED:
        lm = tiny.target("llama-loops")
        yield (
            "a run",
            partial(accepts, lambda v: Sequences.of([[1, 2]], 4, lm.new_cache(1, 8), Sampler(), v)),
        )
        yield (
            "a request",
            partial(
                accepts, lambda v: make_request(lm, 64, [1, 2], 4, v, (), Sampler(), None, False)
            ),
        )


def of_model(model: type[BaseModel], p: Parameter) -> Iterator[tuple[str, Accepts]]:
    """The model's field for a parameter, if it has one, without the other fields."""
    info = next(
        (model.model_fields[n] for n in (HTTP.get(p.name), p.name) if n in model.model_fields), None
    )
    if info is None or (
        model is CompletionRequest and p is table.MAX_TOKENS
    ):  # it takes 0, with echo
        return
    strict = ConfigDict(strict=True, allow_inf_nan=False)
    alone = create_model(
        "Alone", __config__=strict, x=(Annotated[(info.annotation, Field(), *info.metadata)], ...)
    )
    yield model.__name__, partial(accepts, lambda v: alone(x=v))


def of_command(name: str, command: Any, p: Parameter) -> Iterator[tuple[str, Accepts]]:
    """The command's option for a parameter, as it reads words."""
    for option in command.params:
        if option.name == OPTION.get(p.name, p.name):
            read = partial(option.process_value, typer.Context(command))
            yield f"longdraft {name}", partial(accepts, lambda v, read=read: read(str(v)))


def transformers(p: Parameter) -> Iterator[tuple[str, Accepts]]:
    """A processor that has the value, whatever its constructor would have said; hf_generate's own
    seed.
    """
    for kind in (kind for kind, parameter in IN_RANGE.items() if parameter is p):

        def sampled(value: Any, kind: Any = kind) -> None:
            process = kind.__new__(kind)
            vars(process).update({p.name: value, "prompt_ignore_length": None})
            sampler_of([process, process], True, torch.zeros(1, 1, dtype=torch.long), [0], 8)

        yield "hf", partial(accepts, sampled)
    if p is SEED:

        def seeded(value: Any) -> None:
            with pytest.raises(
                AttributeError, match="config"
            ):  # after the seed, the model is looked at
                hf_generate(
                    None,
                    None,
                    logits_processor=[],
                    stopping_criteria=[],
                    generation_config=None,
                    seed=value,
                )

        yield "hf_generate", partial(accepts, seeded)


def surfaces(p: Parameter) -> Iterator[tuple[str, Accepts]]:
    yield from library(p)
    yield from transformers(p)
    for model in REQUESTS:
        yield from of_model(model, p)
    for name, command in COMMANDS.items():
        yield from of_command(name, command, p)


def disagreements(p: Parameter, found: Iterator[tuple[str, Accepts]]) -> list[str]:
    """Each surface and value where a surface and the table disagree."""
    return [
        f"{name}: {v}"
        for name, taken in found
        for v in values(p)
        if taken(v) != accepts(p.check, v)
    ]


def on_page(ranges: list[dict[str, Any]], texts: list[list[str]]) -> list[list[bool]]:
    """Which texts the page's own function takes in each range, by Node."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no node here")
    script = (files("longdraft.server.page") / "form.js").read_text(encoding="utf-8")
    function = re.search(r"^(?:export )?(function inRange\(.*?^})", script, re.M | re.S)
    assert function is not None
    call = "ranges.map((range, i) => texts[i].map((text) => inRange(Number(text), range)))"
    code = (
        "const [ranges, texts] = "
        f"{json.dumps([ranges, texts])};{function[1]};console.log(JSON.stringify({call}))"
    )
    return json.loads(
        subprocess.run([node, "-e", code], capture_output=True, text=True, check=True).stdout
    )


@pytest.mark.parametrize("p", TABLE, ids=lambda p: p.name)
def test_all_accept_the_same_values(p):
    assert disagreements(p, surfaces(p)) == []


def test_nothing_is_left_out():
    everywhere = {"Sampler", "hf", *(model.__name__ for model in REQUESTS)}
    benches = ("speed", "cost", "acceptance", "tasks", "peers", "peers-tasks", "shape-cost")
    commands = ("generate", "chat", "audit", "demo", "serve", "train text")
    commanded = {f"longdraft {name}" for name in commands}
    commanded |= {f"longdraft bench {name}" for name in benches}
    assert {name for name, _ in surfaces(TEMPERATURE)} == everywhere | commanded
    assert {"a run", "a request", "hf_generate", "TraceRequest", "longdraft train eagle"} <= {
        name for name, _ in surfaces(SEED)
    }
    for p in TABLE:
        taken = [accepts(p.check, v) for v in values(p)]
        assert any(taken) and not all(taken)


@dataclass(frozen=True)
class OwnSampler(Sampler):
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature > 2:
            raise InputError("temperature is above 2")


class OwnTrace(TraceRequest):
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0


def own_command(temperature: Annotated[float, typer.Option(min=0, max=2)] = 0.0) -> None:
    """Its option has a range of its own."""


OWN = {
    "library": lambda: library(TEMPERATURE, OwnSampler),
    "request": lambda: of_model(OwnTrace, TEMPERATURE),
    "command": lambda: of_command("own", as_command(own_command), TEMPERATURE),
}


@pytest.mark.parametrize("planted", OWN)
def test_a_range_of_its_own_is_noticed(planted):
    assert disagreements(TEMPERATURE, OWN[planted]())


def page_disagrees(ranges: list[dict[str, Any]]) -> bool:
    """Whether the page takes other numbers than the table's, of those that JavaScript has
    exactly.
    """
    taken = on_page(ranges, [[str(v) for v in values(p)] for p in TRACE])
    expected = [
        [accepts(p.check, v) and (p.kind is float or abs(v) <= EXACT) for v in values(p)]
        for p in TRACE
    ]
    return taken != expected


def test_the_page_accepts_the_same_values():
    ranges = [p.in_json for p in TRACE]
    assert all(json.loads(json.dumps(r)) == r for r in ranges)
    assert not page_disagrees(ranges)
    for i, planted in (
        (0, {"high": 2}),
        (1, {"above": False}),
        (2, {"low": 0}),
        (3, {"whole": False}),
    ):
        assert page_disagrees([r | planted if i == j else r for j, r in enumerate(ranges)]), planted


def test_the_table_in_the_documentation_is_this_one():
    lines = (ROOT / "docs" / "lossless.md").read_text(encoding="utf-8").splitlines()
    rows = [f"| `{p.name}` | {p.allowed} | {p.default} | {p.about} |" for p in TABLE]
    start = lines.index(rows[0])
    assert lines[start : start + len(rows) + 1] == [*rows, ""]


def test_off_is_off_however_it_is_said():
    assert Sampler(top_k=-1) == Sampler(top_k=0) == Sampler()
    with pytest.raises(InputError, match="top-k is -2: give a whole number from -1 to 2147483648"):
        TOP_K.check(-2)
