"""Options that several commands of `longdraft bench` have, and groups of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longdraft.cli import common
from longdraft.cli.option_groups import DrafterOptions, TargetOptions
from longdraft.cli.sampling_options import Penalty, Temperature, TopP
from longdraft.errors import InputError
from longdraft.sampling_parameters import TEMPERATURE, TOP_P

if TYPE_CHECKING:
    from longdraft.bench.inputs import Text
    from longdraft.bench.selection import Entry
    from longdraft.core.sampling import Sampler
    from longdraft.models.lm import LM

Batch = Annotated[int, typer.Option(min=1, max=1024, help="Number of rows decoded in a batch.")]
Context = Annotated[str, typer.Option(help="Number of prompt tokens; several with commas.")]
Repeat = Annotated[int, typer.Option(min=1, max=1 << 20, help="How often everything is measured.")]
ByStep = Annotated[
    bool,
    typer.Option(
        help="Methods take turns at each step, not at each decoding, each with a cache of its own:"
        " for a machine whose speed changes."
    ),
]
Ask = Annotated[
    str,
    typer.Option(help="Ask this about each text, in the model's chat template; answers may end."),
]
Out = Annotated[Path | None, typer.Option(help="Append the records to this file, as JSON lines.")]
LENGTHS = "4096"  # the default of --context


def lengths(context: str) -> list[int]:
    """The numbers of tokens in --context. Raises InputError."""
    parts = [p.strip() for p in context.split(",") if p.strip()]
    if not parts or not all(p.isdecimal() and int(p) for p in parts):
        raise InputError(
            f"context is {context!r}: give token counts of 1 or more, like 4096 or 4096,8192"
        )
    return [int(p) for p in parts]


@dataclass(frozen=True)
class ComparedMethods:
    """The methods that are measured side by side."""

    methods: Annotated[
        str,
        typer.Option(
            help="Methods with commas; vegas@gamma=4 sets an option; hf-dynamic and hf-static are"
            " baselines."
        ),
    ] = "plain,vegas"
    option: Annotated[
        list[str],
        typer.Option(
            "-o", "--option", help="METHOD.KEY=VALUE: an option of a method; may be repeated."
        ),
    ] = field(default_factory=list)
    drafter_options: DrafterOptions = DrafterOptions()

    def entries(self, target: str, seed: int) -> list[Entry]:
        """The methods in their order; see DrafterOptions.drafter_weights. Raises InputError."""
        from longdraft.bench.selection import parse

        weights = self.drafter_options.drafter_weights(target, seed)
        return parse(self.methods, self.option, weights)


@dataclass(frozen=True)
class LoadedModel:
    """A model that is loaded, and the folder where its prompts are kept."""

    model: common.Model = "bundled"
    target_options: TargetOptions = TargetOptions()
    prompt_cache: common.PromptCache = None

    def __post_init__(self) -> None:
        self._folder()

    def _folder(self) -> Path | None:
        """Raises InputError."""
        if self.prompt_cache is None:
            return None
        return common.check_prompt_cache(self.prompt_cache, folder=True)

    @property
    def trained(self) -> str:
        """The model's name if drafters may have been trained for it."""
        return self.target_options.trained(self.model)

    def load(self) -> tuple[LM, Any, Any]:
        """The target, its tokenizer, and its kept prompts. Raises InputError."""
        folder = self._folder()
        target, tokenizer = common.load_target(self.model, self.target_options)
        return target, tokenizer, common.prompt_files(folder, target)


@dataclass(frozen=True)
class MeasuredTexts:
    """The texts that a measurement reads."""

    text: Annotated[
        str,
        typer.Option(
            help="code, book or code,book: texts that the bundled model was not trained on."
        ),
    ] = "code"
    prompt_file: common.PromptFiles = field(default_factory=list)

    def read(self, tokenizer: Any) -> list[Text]:
        """Raises InputError."""
        from longdraft.bench import inputs

        names = [name.strip() for name in self.text.split(",")]
        return inputs.texts(names, self.prompt_file, tokenizer)


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn."""

    temperature: Temperature = TEMPERATURE.default
    top_p: TopP = TOP_P.default
    penalty: Penalty = None

    def sampler(self, target: LM) -> Sampler:
        """Raises InputError."""
        from longdraft.core.sampling import Sampler

        return Sampler(self.temperature, top_p=self.top_p, penalty=self.penalty)


@dataclass(frozen=True)
class RecommendedSampling(SamplingOptions):
    """How tokens are drawn, or that the model's makers say so."""

    recommended: Annotated[
        bool,
        typer.Option(
            "--recommended", help="Sample as the model's makers recommend, instead of greedily."
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.recommended and replace(self, recommended=False) != RecommendedSampling():
            raise InputError(
                "--recommended sets the sampling: leave --temperature, --top-p, --penalty out"
            )

    def sampler(self, target: LM) -> Sampler:
        """Raises InputError for a model of which nothing is known."""
        from longdraft.models.recommended import recommended_sampler

        return recommended_sampler(target) if self.recommended else super().sampler(target)
