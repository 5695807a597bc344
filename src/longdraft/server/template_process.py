"""Run as a script: renders chat templates, one line of JSON each way. server/templates.py starts and ends it.

It imports neither longdraft nor torch, so that it starts quickly and has little to lose.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

MEMORY = 1 << 30  # bytes of address space: a template that builds a huge text fails here, and nothing else does


def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers.utils.chat_template_utils import render_jinja_template

    said, sys.stdout = sys.stdout, sys.stderr
    for kind, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, most))
    print("ready", file=said, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), render_jinja_template)), file=said, flush=True)


def answer(asked: dict[str, Any], render: Any) -> dict[str, str]:
    """The rendered text, or why there is none."""
    try:
        found = render([asked["messages"]], asked["tools"], None, asked["template"], **asked["given"])
        return {"text": found[0][0] if isinstance(found, tuple) else found[0]}
    except MemoryError:
        return {"error": "it writes too much text"}
    except Exception as error:  # jinja's errors, and those that templates raise
        return {"error": next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]}


if __name__ == "__main__":
    main()
