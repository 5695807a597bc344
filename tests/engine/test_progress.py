"""While a long prompt is read, a terminal shows progress; a short prompt, a file or a pipe shows
nothing.
"""

from __future__ import annotations

import io
import time

import pytest
from support import tiny
from support.place import SHORT

from longdraft.cli import common
from longdraft.engine.decode_session import DecodeSession
from longdraft.models.lm import LM


class Terminal(io.StringIO):
    """Standard error as a terminal shows it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    """terminal() -> standard error from now on; pytest sets its own at the beginning of each
    test.
    """

    def begin(term: str = "xterm") -> Terminal:
        monkeypatch.setenv("TERM", term)
        screen = Terminal()
        monkeypatch.setattr("sys.stderr", screen)
        return screen

    return begin


def patience(monkeypatch, seconds: float) -> None:
    monkeypatch.setattr(common, "PATIENCE", seconds)


def test_every_chunk_is_reported():
    lm = tiny.target("llama")
    prompts = tiny.prompts(70, 1, 31)
    seen = []
    DecodeSession(lm, prompts, 4, report=seen.append)
    assert seen == [69, 30]
    lm.prefill(prompts[0], lm.new_cache(1, 80), chunk=30, report=seen.append)
    assert seen[2:] == [30, 30, 10]


@pytest.mark.timing
def test_a_prompt_that_takes_long(terminal, monkeypatch):
    """The bar appears while a part is read, counts tokens, and is gone at the end."""
    screen = terminal()
    patience(monkeypatch, 0.05)
    with common.reading([[1] * 31, [1] * 71]) as tick:
        tick(40)
        deadline = time.monotonic() + 20
        while "40/100" not in screen.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "reading the prompt" in screen.getvalue() and "40/100" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")  # the line is erased


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_prompt_that_takes_less_shows_nothing(terminal, monkeypatch, term):
    screen = terminal(term)
    with common.reading([[1] * 101]) as tick:
        tick(100)
    assert common.PATIENCE == 2 and screen.getvalue() == ""


@pytest.mark.timing
def test_nothing_is_shown_after_an_error(terminal, monkeypatch):
    screen = terminal()
    patience(monkeypatch, 0.05)
    with pytest.raises(KeyboardInterrupt), common.reading([[1] * 101]):
        raise KeyboardInterrupt
    time.sleep(0.2)
    assert screen.getvalue() == ""


@pytest.mark.full
@pytest.mark.timing
@pytest.mark.parametrize(
    "command", [("generate", "--prompt-file", "long.txt", *SHORT), ("demo", "--context", "480")]
)
def test_commands_show_it_on_standard_error_alone(cli, terminal, monkeypatch, command):
    screen = terminal()
    patience(monkeypatch, 0)
    monkeypatch.setattr(LM, "_commit", slowly())
    words = (*command, "-m", "tiny", "--max-new-tokens", "4", "--dtype", "float32")
    words = (*words, "--prompt-tokens", "480") if command[0] == "generate" else words
    status, out, _ = cli(*words)
    assert (
        status == 0
        and "reading the prompt" in screen.getvalue()
        and "reading the prompt" not in out
    )
    patience(monkeypatch, 60)
    screen = terminal()
    assert cli(*words)[0] == 0 and "reading the prompt" not in screen.getvalue()


def slowly():
    """LM._commit, which lets the bar's thread start first."""
    original = LM._commit

    def commit(*args, **kwargs):
        time.sleep(0.1)
        return original(*args, **kwargs)

    return commit


@pytest.mark.full
@pytest.mark.timing
def test_a_pipe_shows_nothing(cli, monkeypatch):
    patience(monkeypatch, 0)
    monkeypatch.setattr(LM, "_commit", slowly())
    _, _, err = cli("generate", "--prompt-file", "a.txt", "-m", "tiny", *SHORT, "--json")
    assert err == ""
