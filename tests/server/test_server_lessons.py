"""What published advisories about model servers teach, each a test that its fault would fail.
Advisory ids are in the docstrings; lessons that are tested elsewhere are named where they belong.
"""

from __future__ import annotations

import ast
import gzip
import hmac
import inspect
import json
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from attacks import PATHS
from clients import INSIDE, post
from fastapi.routing import APIRoute
from pydantic import ValidationError
from support import hostile_models
from support.served import address, asked, client, loaded, quiet, serving, url_of

import longdraft
from longdraft import InputError
from longdraft.cli.serve import serve
from longdraft.models.chat import chat_tokens
from longdraft.server.http import guard
from longdraft.server.http.guard import Guard
from longdraft.server.openai.schema import CompletionRequest, DetokenizeRequest
from longdraft.server.uvicorn_server import Server, ServerSettings

SOURCES = sorted(Path(longdraft.__file__).parent.rglob("*.py"))
JSON = {"Content-Type": "application/json"}


def chat(**more: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
    } | more


# Code, pickles and templates ----------------------------------------------------------------------


@pytest.mark.full
def test_code_of_a_model_folder_is_not_run():
    """CVE-2026-22807 (vLLM ran auto_map's code). test_untrusted.py loads such folders; here, no
    call asks for it.
    """
    assert {"code of the folder", "code of a repository", "a tokenizer of the folder"} <= set(
        hostile_models.CASES
    )
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            pairs = [(k.arg, k.value) for k in node.keywords] if isinstance(node, ast.Call) else []
            pairs += (
                list(zip(map(name_of, node.keys), node.values, strict=True))
                if isinstance(node, ast.Dict)
                else []
            )
            for key, value in pairs:
                assert key != "trust_remote_code" or (
                    isinstance(value, ast.Constant) and value.value is False
                ), path


def name_of(node: ast.AST | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


UNSAFE = {
    "pickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "zmq",
    "xmlrpc",
}


def unpickles(source: str) -> list[str]:
    """What in a source file could run code that a file or a message contains."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [n for n in names if n.split(".")[0] in UNSAFE]
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            given = {k.arg: ast.unparse(k.value) for k in node.keywords}
            found += [call] if call == "torch.load" and given.get("weights_only") != "True" else []
            found += [call] if given.get("allow_pickle", "False") != "False" else []
            found += [call] if call in ("eval", "exec", "__import__") else []
    return found


@pytest.mark.parametrize(
    "fault",
    [
        "import pickle",
        "from marshal import loads",
        "torch.load(f)",
        "np.load(f, allow_pickle=True)",
        "import zmq",
    ],
)
def test_what_unpickles_is_noticed(fault):
    assert unpickles(fault)


@pytest.mark.full
def test_nothing_is_unpickled():
    """CVE-2026-3059, CVE-2026-3060, CVE-2026-3989 (SGLang unpickled messages and files),
    CVE-2025-10164.
    """
    assert {
        str(p): found for p in SOURCES if (found := unpickles(p.read_text(encoding="utf-8")))
    } == {}


def test_the_server_listens_on_this_machine_alone(server):
    """The same SGLang advisories: a socket on all networks by default."""
    assert (
        ServerSettings("m", "plain").host
        == inspect.signature(serve).parameters["host"].default
        == "127.0.0.1"
    )
    assert [s.getsockname()[0] for s in server.servers[0].sockets] == ["127.0.0.1"]


@pytest.mark.full
@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% set x = cycler.__init__.__globals__.os.popen('id').read() %}",
        "{{ (messages | attr('__class__')).mro() }}",
    ],
)
def test_a_template_reaches_nothing_but_its_messages(server, http, template, monkeypatch):
    """CVE-2026-5760 (SGLang rendered a model's template outside Jinja's sandbox)."""
    tokenizer = loaded()[1]
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(InputError, match="refuses"):
        chat_tokens(tokenizer, [{"role": "user", "content": "hi"}])
    found = http.post("/v1/chat/completions", json=chat())
    assert found.status_code == 400 and not INSIDE.search(found.text.replace(template, ""))


@pytest.mark.parametrize(
    "field", ["chat_template", "chat_template_kwargs", "documents", "add_generation_prompt"]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_requests_bring_no_templates(http, field, path):
    """GHSA-542m-9234-8gvf, CVE-2025-62426 (templates, or arguments to them, in a request to
    vLLM).
    """
    body = chat() if "chat" in path else {"model": "tiny", "input": "hi"}
    for value in ("{{ 1 }}", {"tokenize": False}):
        found = http.post(path, json=body | {field: value})
        if found.status_code == 200:  # it had no effect: no template reads it
            assert field == "chat_template_kwargs" in found.headers["x-longdraft-ignored"]
            continue
        assert found.status_code == 400 and field in found.json()["error"]["message"]


@pytest.mark.parametrize("field", ["prompt_embeds", "input_embeds", "image_embeds"])
def test_requests_bring_no_tensors(http, field):
    """CVE-2025-62164 (vLLM read a serialized tensor from a request)."""
    for value in ("gAJjdG9yY2g=", [[0.5]], None):
        content = json.dumps(asked() | {field: value})
        found = http.post("/v1/completions", content=content, headers=JSON)
        # null: as if it were not there
        assert found.status_code == (200 if value is None else 400), found.text


@pytest.mark.parametrize(
    "tool",
    [
        None,
        7,
        {},
        {"type": "function"},
        {"type": "function", "function": None},
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": "("}}},
        },
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"pattern": "(" * 500, "$ref": "#"}},
        },
    ],
    ids=str,
)
def test_a_malformed_tool_ends_nothing(server, http, tool):
    """CVE-2025-48944 (vLLM's worker died of one). test_server_load.py has the request that fails
    while it decodes.
    """
    for path, body in (
        ("/v1/chat/completions", chat()),
        ("/v1/responses", {"model": "tiny", "input": "hi"}),
    ):
        assert http.post(path, json=body | {"tools": [tool]}).status_code in (200, 400)
    assert (
        http.post("/v1/chat/completions", json=chat(max_tokens=1)).status_code == 200
        and server.engine.failure is None
    )


# Limits -------------------------------------------------------------------------------------------


def test_headers_bodies_depth_and_prompts_are_bounded(http):
    """CVE-2025-48956 (vLLM read headers of any size)."""
    assert http.get("/health", headers={"X": "x" * 17_000}).status_code == 431
    assert http.get("/health", headers={"X": "x" * 200_000}).status_code == 431
    assert http.post("/tokenize", content=b" " * (5 << 20), headers=JSON).status_code == 413
    assert (
        http.post("/tokenize", content=b'{"prompt":' + b"[" * 200_000, headers=JSON).status_code
        == 400
    )
    found = http.post("/v1/completions", json=asked(prompt="a " * 9000)).json()["error"]
    assert found["code"] == "context_length_exceeded"


@pytest.mark.timing
def test_chunked_bodies_are_bounded(server):
    """CVE-2025-23310 (Triton: small chunks without end): the answer comes although the body does
    not end.
    """
    with socket.create_connection(address(server), 20) as s:
        s.sendall(
            b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        s.settimeout(0.02)
        got = b""
        for _ in range(40):
            try:
                s.sendall(b"80000\r\n" + b" " * 0x80000 + b"\r\n")
                got = s.recv(1000)
            except TimeoutError:
                continue
            except OSError:
                break
            break
    assert b" 413 " in got[:20]


@pytest.mark.parametrize(
    "value", [["a"] * 50_000, [None] * 50_000, {f"x{i}": 1 for i in range(50_000)}, [{}] * 50_000]
)
def test_a_wide_body_has_few_errors(value):
    """One error for each entry of a body of 4 MB took 4 s and 700 MB (found here)."""
    for model, name in (
        (CompletionRequest, "prompt"),
        (CompletionRequest, "logit_bias"),
        (DetokenizeRequest, "tokens"),
    ):
        for body in (
            {"model": "tiny", "prompt": "a", name: value},
            value if isinstance(value, dict) else {name: value},
        ):
            with pytest.raises(ValidationError) as found:
                model.model_validate(body)
            assert found.value.error_count() < 100


def test_compressed_bodies_are_not_unpacked(http):
    """A small body that unpacks to gigabytes."""
    bomb = gzip.compress(b" " * (32 << 20))
    for encoding in ("gzip", "deflate", "br", "GZIP", "identity, gzip"):
        found = http.post("/tokenize", content=bomb, headers=JSON | {"Content-Encoding": encoding})
        assert found.status_code == 415
    plain = b'{"prompt": "a"}'
    assert (
        http.post(
            "/tokenize", content=plain, headers=JSON | {"Content-Encoding": "identity"}
        ).status_code
        == 200
    )


@pytest.mark.timing
@pytest.mark.parametrize("path", PATHS)
def test_paths_lead_nowhere(http, server, path):
    """CVE-2025-23319 (Triton)."""
    with socket.create_connection(address(server), 20) as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        got = b"".join(iter(lambda: s.recv(65536), b""))
    known = b"200" if path.startswith("/metrics") else b"404"
    assert got.split()[1] == known and b"root:" not in got and b"ocation:" not in got


@pytest.mark.timing
def test_what_a_request_holds_is_released_on_every_path():
    """CVE-2026-9540 (vLLM: n, stop strings and log-probabilities without bounds;
    test_server_refusals.py has those).
    """
    with (
        serving(session={"batch": 2, "queue": 4}, request_s=1.0, client_requests=8) as server,
        client(server) as http,
    ):
        cases = [
            {"n": 6, "max_tokens": 4},
            {"n": 9},
            {"n": 4, "max_tokens": 250},
            {"stop": ["x"] * 17},
        ]
        bodies = [asked(**c) for c in (*cases, {"n": 2, "max_tokens": 250, "logprobs": 20})]
        with ThreadPoolExecutor(10) as pool:
            codes = Counter(
                pool.map(lambda b: post(address(server), "/v1/completions", b)[0], bodies * 4)
            )
        assert codes[400] == 8 and sum(codes.values()) == 20 and set(codes) <= {200, 400, 429, 503}
        assert http.get("/health").status_code == 200
        assert quiet(server) and server.engine.session.needed == 0
        session = server.engine.session
        app = server.guard
        assert (
            not session._open
            and not session._cancelled
            and not session._rows.reads
            and not server.engine._streams
        )
        assert isinstance(app, Guard)
        # an answer arrives before the server has done with its request
        deadline = time.monotonic() + 5
        while app.open and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not app.open


# Keys ---------------------------------------------------------------------------------------------


def unguarded(server: Server) -> set[str]:
    """The paths, of all routes and some that are written oddly, that answer something without a
    key.
    """
    inner = server.guard.app
    paths = {r.path.replace("{name:path}", "tiny") for r in inner.routes}
    assert (
        any(isinstance(r, APIRoute) for r in inner.routes)
        and {"/metrics", "/openapi.json"} <= paths
    )
    odd = {
        "/v1//metrics",
        "/health/../metrics",
        "/health/",
        "/HEALTH",
        "/health;x",
        "/health%2f",
        "/healthz",
        "/static/x",
    }
    found = set()
    with httpx.Client(base_url=url_of(server), timeout=20) as http:
        for path in paths | odd:
            for method in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"):
                for key in (
                    {},
                    {"Authorization": "Bearer wrong"},
                    {"Authorization": "Bearer"},
                    {"X-Api-Key": "wrong"},
                ):
                    if http.request(method, path, json={}, headers=key).status_code != 401:
                        found.add(path)
    return found


@pytest.mark.full
def test_every_route_needs_the_key_unless_it_is_open(monkeypatch):
    """CVE-2025-59425 (vLLM compared keys byte by byte); routes that were added and forgotten."""
    calls = []
    compare = hmac.compare_digest
    monkeypatch.setattr(
        guard.hmac, "compare_digest", lambda a, b: calls.append((a, b)) or compare(a, b)
    )
    assert {"/", "/health"} >= guard.OPEN
    with serving(keys=(b"right", b"other")) as server:
        assert unguarded(server) <= guard.OPEN
        assert {b for _, b in calls} == {b"right", b"other"} and (b"wrong", b"right") in calls
        monkeypatch.setattr(guard, "OPEN", guard.OPEN | {"/metrics"})
        assert "/metrics" in unguarded(server)  # the check can fail


@pytest.mark.full
def test_a_client_does_not_choose_its_address(monkeypatch):
    """A share counted by X-Forwarded-For would be none (found here)."""
    seen = []
    monkeypatch.setattr(Guard, "_problem", lambda self, scope, client: seen.append(client))
    with serving() as server, client(server) as http:
        http.get("/health", headers={"X-Forwarded-For": "9.9.9.9"})
    assert seen == ["127.0.0.1"]
