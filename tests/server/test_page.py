"""The page as a document, without a browser: it loads nothing, its policy fits it, and no trace can
end its element.

tests/page has what a browser shows of it.
"""

from __future__ import annotations

import json
import re
import tomllib
from base64 import b64encode
from fnmatch import fnmatch
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

from longdraft.proposers import PROPOSERS
from longdraft.server.page import page

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "longdraft" / "server" / "page"
ENDINGS = [
    "</script>",
    "</SCRIPT >",
    "<!--<script>",
    "-->",
    "]]>",
    "</textarea><script>hit()</script>",
]


class Document(HTMLParser):
    """Every element's attributes, and the text of scripts and styles."""

    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] in ("script", "style") and data.strip():
            self.texts.append((*self.elements[-1], data))


def hashed(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def directives(policy: str) -> dict[str, str]:
    return dict(part.strip().split(" ", 1) for part in policy.split(";"))


@pytest.mark.parametrize("trace", [None, '{"a": 1}'])
def test_the_policy_has_the_hashes_of_what_is_in_the_document(trace):
    html, policy = page(trace)
    found = Document(html)
    [style] = [text for tag, _, text in found.texts if tag == "style"]
    [script] = [
        text
        for tag, attributes, text in found.texts
        if tag == "script" and attributes["type"] == "module"
    ]
    expected = {
        "default-src": "'none'",
        "script-src": hashed(script),
        "style-src": hashed(style),
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert directives(policy) == expected
    [meta] = [
        a["content"] for _, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    del expected["frame-ancestors"]  # has no effect in a document
    assert directives(meta or "") == expected


def test_the_document_loads_nothing():
    html, _ = page()
    found = Document(html)
    loads = [
        a.get(name) or ""
        for _, a in found.elements
        for name in ("src", "href", "action", "srcset", "data")
    ]
    assert [x for x in loads if x and not x.startswith(("data:", "#"))] == []
    inline = [
        name for _, a in found.elements for name in a if name.startswith("on") or name == "style"
    ]
    assert inline == []  # the policy would stop them
    code = "".join(text for _, _, text in found.texts)
    assert not re.search(
        r"@import|url\(|^\s*import\b|\bimport\(|sendBeacon|WebSocket|EventSource|XMLHttpRequest",
        code,
        re.M,
    )
    # a name, which is not loaded
    assert set(re.findall(r'https?://[^"\s]+', code)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"\bfetch\(([^)]*)", code) == [
        'path, { ...options, headers, cache: "no-store", credentials: "same-origin" }'
    ]
    assert set(re.findall(r'\bask\("([^"]+)"', code)) == {
        "v1/longdraft/methods",
        "v1/longdraft/trace",
    }


def test_texts_never_become_markup_or_code():
    code = "".join(file.read_text(encoding="utf-8") for file in FOLDER.glob("*.js"))
    assert "textContent" in code
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new "
        r"Function|setHTML",
        code,
    )


def test_an_embedded_trace_cannot_end_its_element():
    trace = {"texts": [*ENDINGS, "\u2028\u2029\\u003c"], "</script>": "<"}
    html, _ = page(json.dumps(trace, ensure_ascii=False))
    found = Document(html)
    [data] = [text for _, attributes, text in found.texts if attributes.get("id") == "trace"]
    assert "<" not in data and json.loads(data) == trace
    assert [t for t, _ in found.elements] == [t for t, _ in Document(page("{}")[0]).elements]


@pytest.mark.parametrize("trace", [None, '{"a": 1}'])
def test_the_labels_of_what_drafts_are_those_of_the_drafters(trace):
    """The server writes them into the document, so that the page has them without a server too."""
    [labels] = [
        text
        for _, attributes, text in Document(page(trace)[0]).texts
        if attributes.get("id") == "labels"
    ]
    assert json.loads(labels) == PROPOSERS
    scripts = "".join(file.read_text(encoding="utf-8") for file in FOLDER.glob("*.js"))
    assert [label for label in PROPOSERS.values() if label in scripts] == []


def test_without_a_trace_there_is_no_element_for_it():
    assert not any(a.get("id") == "trace" for _, a in Document(page()[0]).elements)
    assert not re.search(r"<!-- \w+ -->", page("{}")[0])


def test_every_file_is_in_the_document_and_in_the_package():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = config["tool"]["setuptools"]["package-data"]["longdraft"]
    html, _ = page()
    for file in FOLDER.iterdir():
        if file.suffix in (".py", "") or file.name == "index.html":
            continue
        assert any(fnmatch(f"server/page/{file.name}", pattern) for pattern in patterns), file.name
        first = file.read_text(encoding="utf-8").split("\n", 1)[0]
        assert first.replace("'", "&#x27;") in html or first in html, file.name
