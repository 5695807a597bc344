"""Loading a model shows a bar on a terminal, and lines in a server's log, if it takes long."""

from __future__ import annotations

import io
from contextlib import contextmanager, nullcontext

import pytest
from support import gguf_files as files
from support.place import SHORT

from longdraft.cli import loading_views as bars
from longdraft.cli import serve
from longdraft.models.gguf.file import Stored
from longdraft.models.loading import load
from longdraft.models.loading_progress import between, unseen, viewed, viewing


class Terminal(io.StringIO):
    """Standard error as a terminal shows it."""

    def isatty(self) -> bool:
        return True


@contextmanager
def at_once(seconds, show):
    """In place of `delayed`: loading has taken long from the beginning."""
    assert seconds == bars.PATIENCE == 2
    show()
    yield


@pytest.fixture
def long(monkeypatch):
    monkeypatch.setattr(bars, "delayed", at_once)


@pytest.fixture
def terminal(monkeypatch):
    """terminal() -> standard error from now on; pytest sets its own at the beginning of each
    test.
    """

    def begin() -> Terminal:
        monkeypatch.setenv("TERM", "xterm")
        screen = Terminal()
        monkeypatch.setattr("sys.stderr", screen)
        return screen

    return begin


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(files.saved(tmp_path_factory.mktemp("loading"), quantized="Q8_0"))


ERASED = "\x1b[2K"


def test_a_bar_is_shown_and_erased(terminal, long):
    screen = terminal()
    with bars.loading_bar("a.gguf") as report:
        report(0.5)
    assert "loading a.gguf" in screen.getvalue() and screen.getvalue().endswith(ERASED)


def test_an_interrupt_erases_it_too(terminal, long):
    screen = terminal()
    with pytest.raises(KeyboardInterrupt), bars.loading_bar("a.gguf"):
        raise KeyboardInterrupt
    assert "loading a.gguf" in screen.getvalue() and screen.getvalue().endswith(ERASED)


def test_what_is_loaded_soon_shows_nothing(terminal):
    screen = terminal()
    said = []
    with bars.loading_bar("a.gguf") as report, bars.loading_lines("a.gguf", said.append) as line:
        report(0.5)
        line(0.5)
    assert screen.getvalue() == "" and not said


def test_a_pipe_shows_no_bar(long, capsys):
    with bars.loading_bar("a.gguf") as report:
        report(0.5)
    assert capsys.readouterr() == ("", "")


def test_lines_begin_and_end_and_tell_the_fraction(long, monkeypatch):
    said = []
    with bars.loading_lines("a.gguf", said.append) as report:
        report(0.25)
    assert said[0] == "loading a.gguf" and said[-1].startswith("loaded a.gguf in ")
    assert len(said) == 2  # PAUSE has not passed
    monkeypatch.setattr(bars, "PAUSE", 0)
    with bars.loading_lines("a.gguf", said.append) as report:
        report(0.25)
    assert said[3] == "loading a.gguf: 25%"


def test_an_error_ends_lines_without_a_last_one(long):
    said = []
    with pytest.raises(KeyboardInterrupt), bars.loading_lines("a.gguf", said.append):
        raise KeyboardInterrupt
    assert said == ["loading a.gguf"]


def test_loading_a_file_reports_all_of_it(model):
    seen = []
    with viewing(lambda name: nullcontext(lambda fraction: seen.append((name, fraction)))):
        load(model)
    assert viewed(model).__enter__() is unseen  # nobody looks any more
    assert {name for name, _ in seen} == {model}
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions) and fractions[0] == 0 and fractions[-1] == 1
    assert len(set(fractions)) > 20  # tensors
    assert between(seen.append, 0.5, 0.7)(0.5) is None and seen[-1] == 0.6


@pytest.mark.full
def test_commands_show_it(cli, terminal, long, model):
    screen = terminal()
    assert cli("generate", "--prompt-file", "a.txt", "-m", model, *SHORT)[0] == 0
    assert "loading" in screen.getvalue()


def test_an_interrupted_command_ends(cli, terminal, long, model, monkeypatch):
    screen = terminal()
    read = Stored.read
    rest = iter([read] * 5)

    def until_interrupted(stored, *args):
        method = next(rest, None)
        if method is None:
            raise KeyboardInterrupt
        return method(stored, *args)

    monkeypatch.setattr(Stored, "read", until_interrupted)
    assert cli("generate", "--prompt-file", "a.txt", "-m", model, *SHORT)[0] == 130
    assert "loading" in screen.getvalue() and ERASED in screen.getvalue()


def test_a_server_without_a_terminal_logs_lines(long, model, capsys):
    with serve.loading_shown():
        load(model)
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"longdraft: note: loading {model}"
    assert last.startswith(f"longdraft: note: loaded {model} in ")


def test_a_server_on_a_terminal_shows_the_bar(terminal, long, model):
    screen = terminal()
    with viewing(bars.loading_bar), serve.loading_shown():
        load(model)
    assert "loading" in screen.getvalue() and "note" not in screen.getvalue()
