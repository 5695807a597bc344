"""One coding agent does a small task: python agent_client.py AGENT

The server's model says what a script has: first a call of the agent's own tool that lacks its
arguments, then the right one, and at last a text. So what is tested is the protocol. Server and
agent share this process's network, which run.py reduces to the loopback device where it can.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from agents import AGENTS, MADE, SAID, Agent, Place
from common import Skip, check, equal
from server import TEMPLATE
from support.scripted import Script
from support.served import loaded, serving, url_of

from longdraft.models.text import text_of
from longdraft.server.http.server_log import LOG

MOST_S = 400
CONTEXT = 65536
TAIL = 8  # tokens with which a prompt begins the answer; an answer that an agent drops ends there
TITLE = "A small task"  # for requests beside the task, which do not offer the tool


class Answer(Script):
    begun = True


class ScriptedModel(logging.Handler):
    """Answers instead of the server's engine, and keeps what was asked and how requests ended.

    mark: see Agent. asked: the tokens of each prompt that has it. refused: requests with an
    error, as the log has them.
    """

    def __init__(self, mark: str, answers: list[str]):
        super().__init__()
        self.mark = mark
        self.answers = answers
        self.asked: list[list[int]] = []
        self.refused: list[dict[str, Any]] = []

    def submit(self, **request: Any) -> Answer:
        prompt = list(request["prompt"])
        if self.mark not in text_of(loaded()[1], prompt):
            return Answer(TITLE, "eos")
        self.asked.append(prompt)
        return Answer(self.answers[min(len(self.asked), len(self.answers)) - 1], "eos")

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        if fields.get("status", 200) >= 400:
            self.refused.append(fields)


def run(agent: Agent) -> None:
    loaded()[1].chat_template = TEMPLATE
    session = {"batch": 4, "slots": CONTEXT, "chunk": 256, "queue": 32}
    LOG.setLevel(logging.INFO)
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        serving(session=session) as server,
    ):
        home, work = (Path(folder) / name for name in ("home", "work"))
        home.mkdir()
        work.mkdir()
        (work / "walk.py").write_text("def walk(path): ...\n")
        if shutil.which("git"):
            subprocess.run(["git", "init", "-q", str(work)], check=True)
        place = Place(url_of(server), Path(os.environ["CLIENT_FOLDER"]), home, work)
        model = ScriptedModel(agent.mark, agent.answers(place))
        LOG.addHandler(model)
        server.engine.submit = model.submit  # type: ignore[method-assign]
        try:
            test(agent, place, model)
        finally:
            end_all(place)


def end_all(place: Place) -> None:
    """End what the agent left behind (Cline has a daemon): all processes with its home."""
    home = f"HOME={place.home}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if home in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)


def test(agent: Agent, place: Place, model: ScriptedModel) -> None:
    variables = {"HOME": str(place.home), "PWD": str(place.work), "PATH": os.environ["PATH"]}
    ended = subprocess.Popen(
        agent.words(place),
        cwd=place.work,
        env=variables | agent.variables(place),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    printed = ""

    @check
    def ends_well() -> None:
        nonlocal printed
        try:
            printed = ended.communicate(timeout=MOST_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(ended.pid, 9)
            printed = ended.communicate()[0]
            raise AssertionError(f"it ran for {MOST_S} s: {printed[-300:]}") from None
        assert ended.returncode == 0, f"status {ended.returncode}: {printed[-300:]}"

    @check
    def makes_the_file() -> None:
        equal((place.work / MADE).read_text(), "hello\n")

    @check
    def prints_the_last_answer() -> None:
        assert SAID in printed, printed[-300:]

    @check
    def sends_the_results_of_its_tools() -> None:
        without_tools(agent)
        texts = [text_of(loaded()[1], prompt) for prompt in model.asked]
        counts = [text.count(agent.result) for text in texts]
        equal(counts, [0, agent.errors, 1 + agent.errors])

    @check
    def is_never_refused() -> None:
        equal(model.refused, [])

    @check
    def goes_on_where_it_was() -> None:
        """Each prompt begins with the one before it, so that nothing is read twice."""
        without_tools(agent)
        first, second, third = model.asked
        for before, after in ((first, second), (second, third)):
            known = before[:-TAIL]
            equal(after[: len(known)] == known, True)


def without_tools(agent: Agent) -> None:
    if not agent.tool:
        raise Skip("it asks once, without tools")


if __name__ == "__main__":
    run(next(agent for agent in AGENTS if agent.name == sys.argv[1]))
