"""`longdraft audit --url`: checks that a server's speculation is lossless."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longdraft.cli import common
from longdraft.errors import InputError

if TYPE_CHECKING:
    from longdraft.audit.remote.endpoint import Endpoint
    from longdraft.audit.remote.remote_audit import AuditPlan, RemoteAudit

BOOK = Path(__file__).parents[1] / "assets" / "text" / "great-expectations.txt"
KEY = "LONGDRAFT_AUDIT_KEY"
MOST = 50_000  # tokens of a prompt
ONE_KEY = "speculative."  # llama-server's keys contain this dot


@dataclass(frozen=True)
class UrlOptions:
    """The server to audit, and the size of the audit."""

    url: Annotated[
        str | None,
        typer.Option(
            help="Audit the speculation of an OpenAI-compatible server at this address instead of "
            f"a method here; a key is read from {KEY}."
        ),
    ] = None
    baseline: Annotated[
        str | None,
        typer.Option(
            help="With --url: the address of a server of the same model without speculation."
        ),
    ] = None
    off: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="With --url: a field of requests that turns speculation off; VALUE is JSON. "
            "a.b=VALUE is a field of an object.",
        ),
    ] = None
    model_name: Annotated[
        str | None, typer.Option(help="With --url: the model's name (default: the first listed).")
    ] = None
    chat: Annotated[
        bool, typer.Option("--chat", help="With --url: ask for chats, not for completions.")
    ] = False
    lengths: Annotated[
        str, typer.Option(help="With --url: lengths of the prompts, in tokens of four characters.")
    ] = "100,1000,4000,12000,30000"
    at_once: Annotated[str, typer.Option(help="With --url: numbers of requests at a time.")] = (
        "1,4,8"
    )
    samples: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000,
            help="With --url: samples per test, text and server; 0: greedy answers only.",
        ),
    ] = 64
    error_rate: Annotated[
        float,
        typer.Option(help="With --url: probability that a lossless server fails a sampling test."),
    ] = 1e-3
    timeout: Annotated[
        float, typer.Option(min=1, help="With --url: seconds to wait for one answer.")
    ] = 600.0

    def endpoints(self) -> tuple[Endpoint, Endpoint]:
        """The audited server, and the one that decodes plainly. Raises InputError."""
        from longdraft.audit.remote.endpoint import Endpoint

        if (self.baseline is None) == (self.off is None):
            raise InputError("--url needs plain decoding to compare with: give --baseline or --off")
        key = os.environ.get(KEY)
        audited = Endpoint(self.url or "", self.model_name, self.chat, {}, key, self.timeout)
        fields = {} if self.off is None else off_fields(self.off)
        address = self.baseline or self.url or ""
        return audited, Endpoint(address, self.model_name, self.chat, fields, key, self.timeout)

    def plan(self, files: list[Path], tokens: int, seed: int, tolerance: float | None) -> AuditPlan:
        """The texts and sizes. Raises InputError."""
        from longdraft.audit.remote.passages import passages
        from longdraft.audit.remote.remote_audit import AuditPlan
        from longdraft.cli import prompts

        if not 0 < self.error_rate < 1:
            raise InputError(f"--error-rate {self.error_rate:g} is not between 0 and 1")
        sources = [(p.name, p.text) for p in prompts.gather(None, files or [BOOK], None)]
        for name, text in sources:
            if not text.strip():
                raise InputError(f"{name} has no text: give another --prompt-file")
        return AuditPlan(
            passages(
                [(Path(name).name, text) for name, text in sources],
                _numbers("--lengths", self.lengths, MOST),
            ),
            tokens,
            _numbers("--at-once", self.at_once, 256),
            self.samples,
            seed=seed,
            error_rate=self.error_rate,
            tolerance=tolerance,
        )


def off_fields(text: str) -> dict[str, Any]:
    """The fields of a request that --off names: JSON, or a word."""
    name, equals, given = text.partition("=")
    if not name or not equals:
        raise InputError(f"--off {text} is not FIELD=VALUE: for example --off speculative=false")
    try:
        value: Any = json.loads(given)
    except ValueError:
        value = given
    parts = [name] if name.startswith(ONE_KEY) else name.split(".")
    for part in reversed(parts):
        value = {part: value}
    return value


def _numbers(option: str, text: str, most: int) -> list[int]:
    """Increasing positive numbers, from a list with commas."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers[-1] > most:
        raise InputError(f"{option} {text}: give numbers from 1 to {most}, with commas between")
    return numbers


def audit_url(
    options: UrlOptions,
    files: list[Path],
    tokens: int,
    seed: int,
    tolerance: float | None,
    as_json: bool,
) -> None:
    """Audit a server and print the result; the exit status is 1 for faults."""
    from rich.console import Console

    from longdraft.audit.remote import remote_report
    from longdraft.audit.remote.remote_audit import RemoteAudit

    job = RemoteAudit(*options.endpoints(), options.plan(files, tokens, seed, tolerance))
    job.prepare()
    interrupted, reason = _watch(job)
    found = remote_report.record(job)
    if interrupted:
        found["interrupted"] = True
    if reason:
        found["ended_early"] = reason
    if as_json:
        print(json.dumps(found))
    else:
        console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
        console.print(remote_report.table(found))
        for line in remote_report.sentences(found):
            console.print(line, soft_wrap=True, markup=False)
        if interrupted:
            typer.echo("Interrupted: these are the results so far.")
    if reason:
        typer.echo(f"longdraft: the audit ended early: {reason}", err=True)
    status = remote_report.exit_status(found)
    if reason and not status:
        status = 2
    if interrupted and status != 1:
        status = 130
    if status:
        raise typer.Exit(status)


def _watch(job: RemoteAudit) -> tuple[bool, str | None]:
    """Run the audit with a progress bar; returns whether it was interrupted, and the error that
    ended it. Raises InputError before there are results.
    """
    from rich.progress import TaskProgressColumn, TimeRemainingColumn

    with common.progress(job.steps, TaskProgressColumn(), TimeRemainingColumn()) as tick:
        try:
            job.run(tick)
        except KeyboardInterrupt:
            return True, None
        except InputError as error:
            if not job.compared:
                raise
            return False, str(error)
    return False, None
