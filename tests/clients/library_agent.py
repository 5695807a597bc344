"""An agent made with a library does a task: python library_agent.py LIBRARY URL MODEL TASK

It has one tool, which writes a file of the current folder, and prints its last answer. Run by the
Python of the library's environment, which has nothing of this project.
"""

from __future__ import annotations

import sys
from pathlib import Path


def write_file(name: str, content: str) -> str:
    """Writes a file.

    Args:
        name: the name of the file
        content: the text that it gets
    """
    Path(name).write_text(content)
    return "written"


def smolagents(url: str, model: str, task: str) -> str:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    server = OpenAIServerModel(model, api_base=url, api_key="none")
    agent = ToolCallingAgent(tools=[tool(write_file)], model=server, max_steps=6)
    return str(agent.run(task))


def openai_agents(url: str, model: str, task: str, responses: bool = False) -> str:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)  # it would send each run to OpenAI
    kind = OpenAIResponsesModel if responses else OpenAIChatCompletionsModel
    server = kind(model, AsyncOpenAI(base_url=url, api_key="none"))
    tools = [function_tool(write_file)]
    agent = Agent("writer", instructions="Write files.", tools=tools, model=server)
    return Runner.run_sync(agent, task, max_turns=6).final_output


def openai_agents_responses(url: str, model: str, task: str) -> str:
    return openai_agents(url, model, task, responses=True)


if __name__ == "__main__":
    print(globals()[sys.argv[1]](*sys.argv[2:]))
