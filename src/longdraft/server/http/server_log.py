"""The server's log on standard error, as text or JSON: no client can write to it or hold it up."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Full, Queue
from threading import Thread
from time import gmtime, strftime
from traceback import format_tb
from typing import Any, TextIO

from longdraft.errors import InputError

LOG = logging.getLogger("longdraft.server")
LEVELS = ("error", "warning", "info")
FORMATS = ("text", "json")
UVICORN = logging.getLogger("uvicorn.error")
MOST_LINES = 1000  # that wait to be written; further ones are counted
MAX_VALUE = 500  # characters of a value


def say(level: int, message: str, **fields: Any) -> None:
    """Log one line; fields that are None are left out.

    Nothing that a request or an answer contains belongs in it.
    """
    LOG.log(level, message, extra={"fields": fields})


def note(text: str) -> None:
    """Log the report of a part of the server, unless it is empty."""
    if text:
        say(logging.WARNING, text)


def failure(error: BaseException) -> None:
    """Log an error of the server: its type and where it came from.

    Its message is left out, because it can quote a request.
    """
    LOG.error("failed", exc_info=error)


def safe(text: str, spaces: bool = False) -> str:
    """A text as visible ASCII, so that it cannot begin a line or a field.

    spaces: keep them.
    """
    unsafe = r"[^ -~]" if spaces else r"[^!-~]"

    def escaped(match: re.Match[str]) -> str:
        return r"\x20" if match[0] == " " else match[0].encode("unicode_escape").decode()

    return re.sub(unsafe, escaped, text[:MAX_VALUE])


def check(level: str, form: str) -> None:
    """Raises InputError for an unknown level or format."""
    for option, given, known in (("--log-level", level, LEVELS), ("--log-format", form, FORMATS)):
        if given not in known:
            raise InputError(f"{option} is {given!r}: give {', '.join(known[:-1])} or {known[-1]}")


@contextmanager
def logging_to(level: str, form: str, stream: TextIO | None = None) -> Iterator[None]:
    """Write lines of this level and above, also uvicorn's errors, to a stream.

    None: standard error.
    """
    check(level, form)
    lines = LogHandler(stream or sys.stderr, form)
    loggers = (LOG, UVICORN)
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(lines)
        logger.propagate = False
    LOG.setLevel(level.upper())
    try:
        yield
    finally:
        for logger, (old, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(lines)
            logger.setLevel(old)
            logger.propagate = propagate
        lines.close()


class LogHandler(logging.Handler):
    """Writes log lines in a thread, so that a standard error that nobody reads delays no answer.

    Lines for which there is no room are counted.
    """

    def __init__(self, stream: TextIO, form: str):
        super().__init__()
        self.stream = stream
        self.lost = 0
        self.setFormatter(AsJson() if form == "json" else AsText())
        self._queue = Queue[str | None](MOST_LINES)
        self._thread = Thread(target=self._write, name="longdraft-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._queue.put_nowait(self.format(record))
        except Full:
            self.lost += 1

    def close(self) -> None:
        """Write the waiting lines, but do not wait for a reader that does not come."""
        super().close()
        try:
            self._queue.put(None, timeout=1)
            self._thread.join(1)
        except Full:
            pass

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            self._print(line)
            if self.lost and self._queue.empty():
                fields = {
                    "msg": "lines were lost",
                    "levelno": logging.WARNING,
                    "levelname": "WARNING",
                }
                lost = self.lost
                self.lost = 0
                self._print(
                    self.format(logging.makeLogRecord(fields | {"fields": {"count": lost}}))
                )

    def _print(self, line: str) -> None:
        try:
            self.stream.write(line + "\n")
            self.stream.flush()
        except (OSError, ValueError):  # it was closed: there is nowhere to say so
            pass


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """Time, level, message and fields of a line."""
    when = strftime("%Y-%m-%dT%H:%M:%S", gmtime(record.created)) + f".{int(record.msecs):03}Z"
    facts = {
        "time": when,
        "level": record.levelname.lower(),
        "message": safe(record.getMessage(), spaces=True),
    }
    given = {k: v for k, v in getattr(record, "fields", {}).items() if v is not None}
    if record.exc_info and record.exc_info[1] is not None:
        given["error"] = type(record.exc_info[1]).__name__
    return facts | {k: safe(v) if isinstance(v, str) else v for k, v in given.items()}


def _trace(record: logging.LogRecord) -> list[str]:
    return format_tb(record.exc_info[2]) if record.exc_info else []


class AsText(logging.Formatter):
    """time LEVEL message name=value ...; lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        facts = _facts(record)
        head = f"{facts.pop('time')} {facts.pop('level').upper()} {facts.pop('message')}"
        values = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in facts.items())
        trace = [f"    {line}" for part in _trace(record) for line in part.splitlines()]
        return "\n".join([" ".join([head, *values]), *trace])


class AsJson(logging.Formatter):
    """One object in each line."""

    def format(self, record: logging.LogRecord) -> str:
        trace = _trace(record)
        facts = {k: round(v, 6) if isinstance(v, float) else v for k, v in _facts(record).items()}
        return json.dumps(facts | ({"traceback": trace} if trace else {}))
