"""The options of the benchmarks; those that several of them have are declared here, once.

A benchmark composes its parser from them: `share` takes options unchanged, `change` takes one with
another default and the reason for it, which the help shows, and `add_argument` declares what only
this benchmark has.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from longdraft.bench.records import read_records
from longdraft.core.provenance import relative
from longdraft.errors import InputError


def at_least(low: float) -> Callable[[str], float]:
    """A type of option: a number of `low` or more, an integer where `low` is one."""
    kind, name = (int, "integer") if isinstance(low, int) else (float, "number")

    def number(word: str) -> float:
        with suppress(ValueError):
            if low <= kind(word) < math.inf:
                return kind(word)
        raise argparse.ArgumentTypeError(f"{word!r} is no {name} of {low:g} or more")

    return number


def several(kind: Callable[[str], Any] = str) -> Callable[[str], list[Any]]:
    """A type of option: values with commas between them."""

    def values(words: str) -> list[Any]:
        parts = [word.strip() for word in words.split(",") if word.strip()]
        if not parts:
            raise argparse.ArgumentTypeError("give one value or more, with commas between")
        return [kind(word) for word in parts]

    return values


def _records(word: str) -> list[dict[str, Any]]:
    try:
        records = [record for _, record in read_records(Path(word))]
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not records:
        raise argparse.ArgumentTypeError(f"{word} has no records")
    return records


SHARED: dict[str, dict[str, Any]] = {
    "--model": {
        "short": "-m",
        "default": "bundled",
        "help": "the target: 'bundled', a model that `longdraft fetch` lists, a folder or a .gguf "
        "file",
    },
    "--rope": {
        "metavar": "KIND:FACTOR",
        "help": "extend rotary positions, as `longdraft bench speed --rope` does",
    },
    "--weights": {"metavar": "int8|int4", "help": "quantize the target's linear layers on loading"},
    "--dtype": {
        "default": "bfloat16",
        "choices": ["bfloat16", "float32"],
        "help": "data type of the weights and the KV cache",
    },
    "--methods": {
        "type": several(),
        "default": "plain,vegas",
        "help": "methods, with commas between",
    },
    "--context": {
        "type": at_least(1),
        "default": 4096,
        "metavar": "N",
        "help": "tokens of the prompt",
    },
    "--contexts": {
        "type": several(at_least(1)),
        "default": "4096",
        "metavar": "N,N",
        "help": "tokens of the prompts, with commas between",
    },
    "--texts": {"type": at_least(1), "default": 3, "metavar": "N", "help": "passages of each text"},
    "--max-new-tokens": {
        "type": at_least(1),
        "default": 96,
        "metavar": "N",
        "help": "new tokens of each run",
    },
    "--temperature": {
        "type": at_least(0.0),
        "default": 1.0,
        "metavar": "T",
        "help": "of the sampled runs",
    },
    "--repeat": {
        "type": at_least(1),
        "default": 3,
        "metavar": "N",
        "help": "measurements of each kind",
    },
    "--every": {
        "type": at_least(1),
        "default": 1,
        "metavar": "N",
        "help": "of the schemas, each N-th",
    },
    "--threads": {
        "type": at_least(1),
        "metavar": "N",
        "help": "torch threads (default: torch's choice)",
    },
    "--seed": {
        "type": at_least(0),
        "default": 0,
        "metavar": "N",
        "help": "seed of all random draws",
    },
    "--out": {
        "type": Path,
        "metavar": "FILE",
        "help": "append the records to this file, as JSON lines",
    },
}


class Arguments(argparse.ArgumentParser):
    """A parser that reports a mistake in one line with status 2, and takes no abbreviations.

    file, about: the benchmark's __file__ and __doc__; the help shows the docstring.
    """

    def __init__(self, file: str, about: str | None):
        formatter = argparse.RawDescriptionHelpFormatter
        self.file = Path(file)
        super().__init__(
            self.file.name, description=about, formatter_class=formatter, allow_abbrev=False
        )

    def share(self, *names: str) -> None:
        """Take shared options unchanged, named like 'max-new-tokens'. --out is runs/NAME.jsonl of
        NAME.py.
        """
        for name in names:
            own = {"default": Path("runs", f"{self.file.stem}.jsonl")} if name == "out" else {}
            self._declare(name, own)

    def change(self, name: str, default: Any, because: str) -> None:
        """Take a shared option with another default, for a reason that the help gives."""
        self._declare(name, {"default": default}, f", because {because}")

    def _declare(self, name: str, own: dict[str, Any], reason: str = "") -> None:
        flag = f"--{name}"
        settings = SHARED[flag] | own
        flags = [settings.pop("short"), flag] if "short" in settings else [flag]
        self.add_argument(*flags, reason=reason, **settings)

    def add_argument(self, *flags: Any, reason: str = "", **settings: Any) -> argparse.Action:
        """Declare an option whose help gives its default."""
        if settings.get("default") not in (None, argparse.SUPPRESS):
            settings["help"] += f" (default: %(default)s{reason})"
        return super().add_argument(*flags, **settings)

    def take_records(self) -> None:
        """One file of records, as `records`: a list of them."""
        self.add_argument(
            "records", type=_records, metavar="RECORDS", help="a file of records, gzipped or not"
        )

    def parse(self, words: list[str] | None = None) -> argparse.Namespace:
        """The arguments (None: this process's), and as `command` the command line that records
        state.
        """
        words = sys.argv[1:] if words is None else words
        given = self.parse_args(words)
        given.command = shlex.join(["python", f"benchmarks/{self.prog}", *map(relative, words)])
        return given

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help shows all options\n")


def status(main: Callable[[], int | None]) -> int:
    """What `main` returns, or 2 after one line on standard error if its input is wrong."""
    try:
        return main() or 0
    except (InputError, OSError) as error:
        line = " ".join(str(error).split())
        print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
        return 2
