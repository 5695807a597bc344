"""Coding agents that people use: how each is installed, told where the server is, and started."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = "tiny"
MADE = "made.txt"
SAID = "The file is made."
TASK = f"Make a file named {MADE} that says hello."


def called(tool: str, **arguments: Any) -> str:
    """A call as the server's model writes it."""
    function = {"name": tool, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(function)}\n</tool_call>"


@dataclass(frozen=True)
class Place:
    """One run of an agent: the server's address, the agent's environment and home, and the folder
    that it works in.
    """

    url: str
    environment: Path
    home: Path
    work: Path

    @property
    def made(self) -> str:
        return str(self.work / MADE)

    def npm(self, program: str) -> str:
        return str(self.environment / "node_modules" / ".bin" / program)

    def pip(self, program: str) -> str:
        return str(self.environment / "bin" / program)

    def write(self, name: str, text: str) -> str:
        """Write a file of the home -> its path."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)


@dataclass(frozen=True)
class Agent:
    """packages: see Client. tool: the agent's own, which makes the file; none: it reads edits in
    the text. arguments, words and variables: of a call of the tool, of the command line and of the
    environment. last: the model's last answer. result: the text before a result in a prompt.
    """

    name: str
    packages: tuple[str, ...]
    tool: str
    arguments: Callable[[Place], dict[str, Any]]
    words: Callable[[Place], list[str]]
    variables: Callable[[Place], dict[str, str]] = lambda place: {}
    npm: bool = True
    last: str = SAID
    errors: bool = True  # a call that fails has a result
    result: str = "<tool>"

    @property
    def mark(self) -> str:
        """A text that prompts of the task have, and requests beside it have not."""
        return f'"name": "{self.tool}"' if self.tool else TASK

    def answers(self, place: Place) -> list[str]:
        """What the model says: a call that lacks its arguments, the right one, the last answer."""
        if not self.tool:
            return [self.last]
        return [called(self.tool), called(self.tool, **self.arguments(place)), self.last]


def shell(place: Place) -> dict[str, Any]:
    return {"cmd": f"echo hello > {MADE} && cat {MADE}"}


def codex(place: Place) -> list[str]:
    provider = f'{{name="longdraft", base_url="{place.url}/v1", wire_api="responses"}}'
    settings = ["-c", "model_provider=longdraft", "-c", f"model_providers.longdraft={provider}"]
    return [*codex_words(place), *settings, TASK]


def codex_oss(place: Place) -> list[str]:
    return [*codex_words(place), "--oss", "--local-provider", "ollama", TASK]


def codex_words(place: Place) -> list[str]:
    words = [place.npm("codex"), "exec", "--skip-git-repo-check"]
    # its own sandbox needs rights that a container may lack
    return [*words, "-s", "danger-full-access", "-m", MODEL, "-C", str(place.work)]


def claude(place: Place) -> list[str]:
    how = ["--output-format", "json", "--dangerously-skip-permissions"]
    return [place.npm("claude"), "-p", TASK, *how]


def claude_variables(place: Place) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "IS_SANDBOX": "1",  # it refuses to run without questions as root elsewhere
    }


def opencode_variables(place: Place) -> dict[str, str]:
    model = {"name": MODEL, "limit": {"context": 65536, "output": 4096}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",  # is a part of it
        "name": "longdraft",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
        "models": {MODEL: model},
    }
    settings = {"provider": {"longdraft": provider}, "autoupdate": False, "share": "disabled"}
    return {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


def qwen(place: Place) -> list[str]:
    return [place.npm("qwen"), "--auth-type", "openai", "--yolo", "-p", TASK]


def qwen_variables(place: Place) -> dict[str, str]:
    settings = {"privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False}}
    place.write(".qwen/settings.json", json.dumps(settings))
    return {
        "OPENAI_BASE_URL": f"{place.url}/v1",
        "OPENAI_API_KEY": "none",
        "OPENAI_MODEL": MODEL,
    }


def continue_words(place: Place) -> list[str]:
    model = [
        f"name: {MODEL}",
        "provider: openai",
        f"model: {MODEL}",
        f"apiBase: {place.url}/v1",
        "apiKey: none",
        "capabilities: [tool_use]",
    ]
    settings = ["name: local", "version: 1.0.0", "schema: v1", "models:", "  - " + model[0]]
    settings += [f"    {line}" for line in model[1:]]
    path = place.write("config.yaml", "\n".join(settings))
    return [place.npm("cn"), "-p", TASK, "--config", path, "--auto"]


def cline(place: Place) -> list[str]:
    program = place.npm("cline")
    where = f"-k none -b {place.url}/v1 -m {MODEL}"
    run = f'"$0" -P openai-compatible -m {MODEL} "$1"'
    return ["sh", "-c", f'"$0" auth -p openai-compatible {where} && {run}', program, TASK]


def mini_variables(place: Place) -> dict[str, str]:
    return {
        "OPENAI_API_BASE": f"{place.url}/v1",
        "OPENAI_API_KEY": "none",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def aider(place: Place) -> list[str]:
    how = ["--yes-always", "--no-auto-commits", "--no-check-update", "--no-show-model-warnings"]
    edits = ["--edit-format", "whole", "--no-detect-urls", "--analytics-disable"]
    return [place.pip("aider"), "--model", f"openai/{MODEL}", *how, *edits, "--message", TASK]


def aider_variables(place: Place) -> dict[str, str]:
    return {
        "OPENAI_API_BASE": f"{place.url}/v1",
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def library(name: str) -> Callable[[Place], list[str]]:
    """The command line of an agent that library_agent.py makes with a library."""
    script = str(Path(__file__).parent / "library_agent.py")
    return lambda place: [place.pip("python"), "-P", script, name, f"{place.url}/v1", MODEL, TASK]


def file(place: Place) -> dict[str, Any]:
    return {"name": MADE, "content": "hello\n"}


AGENTS = [
    Agent("codex", ("@openai/codex@>=0.171.0",), "exec_command", shell, codex),
    Agent(
        "codex-oss",
        ("@openai/codex@>=0.171.0",),
        "exec_command",
        shell,
        codex_oss,
        lambda place: {"CODEX_OSS_BASE_URL": f"{place.url}/v1"},
    ),
    Agent(
        "claude-code",
        ("@anthropic-ai/claude-code@>=2.1.332",),
        "Write",
        lambda place: {"file_path": place.made, "content": "hello\n"},
        claude,
        claude_variables,
    ),
    Agent(
        "opencode",
        ("opencode-ai@>=1.18.33",),
        "write",
        lambda place: {"filePath": place.made, "content": "hello\n"},
        lambda place: [place.npm("opencode"), "run", "-m", f"longdraft/{MODEL}", TASK],
        opencode_variables,
    ),
    Agent(
        "qwen-code",
        ("@qwen-code/qwen-code@>=0.24.4",),
        "write_file",
        lambda place: {"file_path": place.made, "content": "hello\n"},
        qwen,
        qwen_variables,
    ),
    Agent(
        "continue",
        ("@continuedev/cli@>=1.5.47",),
        "Write",
        lambda place: {"filepath": place.made, "content": "hello\n"},
        continue_words,
        lambda place: {"CONTINUE_TELEMETRY_ENABLED": "0"},
    ),
    Agent(
        "cline",
        ("cline@>=3.0.65",),
        "run_commands",
        lambda place: {"commands": [f"echo hello > {place.made}"]},
        cline,
        lambda place: {"CLINE_TELEMETRY_DISABLED": "1", "CLINE_NO_AUTO_UPDATE": "1"},
    ),
    Agent(
        "mini-swe-agent",
        ("mini-swe-agent>=2.4.6",),
        "bash",
        lambda place: {"command": f"echo hello > {MADE}"},
        lambda place: [
            *(place.pip("mini"), "-m", f"openai/{MODEL}", "-y", "--exit-immediately"),
            *("-t", TASK),
        ],
        mini_variables,
        npm=False,
        last=called("bash", command=f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo '{SAID}'"),
        errors=False,
    ),
    Agent(
        "smolagents",
        ("smolagents[openai]>=1.26.0",),
        "write_file",
        file,
        library("smolagents"),
        npm=False,
        last=called("final_answer", answer=SAID),
        errors=False,
        result="<user>Observation:",
    ),
    Agent(
        "openai-agents",
        ("openai-agents>=0.24.0",),
        "write_file",
        file,
        library("openai_agents"),
        npm=False,
    ),
    Agent(
        "openai-agents-responses",
        ("openai-agents>=0.24.0",),
        "write_file",
        file,
        library("openai_agents_responses"),
        npm=False,
    ),
    Agent(
        "aider",
        ("aider-chat>=0.86.2",),
        "",
        lambda place: {},
        aider,
        aider_variables,
        npm=False,
        last=f"{SAID}\n\n{MADE}\n```\nhello\n```\n",
    ),
]
