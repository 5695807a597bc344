"""The page at `GET /`: speculative decoding made visible.

It is one HTML document that loads nothing else.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files

from longdraft.proposers import PROPOSERS
from longdraft.server.page.bundle import bundle

ENTRY = "main.js"


def page(trace: str | None = None) -> tuple[str, str]:
    """The document, and the Content-Security-Policy to send with it.

    trace: a saved trace (JSON), which the page then replays, also without a server. The policy is
    in the document too, because a file has no headers; `frame-ancestors` works only as a header.
    """
    before, after, policy = _parts()
    if trace is not None:
        # `<` occurs only inside JSON's strings: no text can end the element
        safe = trace.replace("<", "\\u003c")
        before += f'<script type="application/json" id="trace">{safe}</script>\n'
    return before + after, f"{policy}; frame-ancestors 'none'"


@cache
def _parts() -> tuple[str, str, str]:
    """The document before and after an embedded trace, and the policy without `frame-ancestors`."""
    script = bundle(ENTRY, _read)
    style = _read("style.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "connect-src 'self';"
        " img-src 'self' data:; base-uri 'none'; form-action 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    filled = {
        "csp": meta,
        "style": f"<style>{style}</style>",
        "example": escape(_read("example.txt")),
    }
    filled["labels"] = (
        f'<script type="application/json" id="labels">{json.dumps(PROPOSERS)}</script>'
    )
    filled["script"] = f'<script type="module">{script}</script>'
    template, last = _read("index.html").split("<!-- trace -->\n")
    before, after = (
        re.sub(r"<!-- (\w+) -->", lambda m: filled[m[1]], part) for part in (template, last)
    )
    return before, after, policy


def _read(name: str) -> str:
    return (files("longdraft.server.page") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
