"""Stands in for llama.cpp's llama-server: a program that answers over HTTP as the tests of peers
need it.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

KINDS = "none,draft-simple,ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod,ngram-cache"
WORDS = sys.argv[1:]


def value(option: str, default: str = "") -> str:
    return WORDS[WORDS.index(option) + 1] if option in WORDS else default


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
        saved = Path(value("--slot-save-path")) / "prompt"
        status = 200
        found = {}
        if self.path == "/v1/models":
            found = {"data": [{"meta": {"n_vocab": 256}}]}
        elif self.path == "/slots/0?action=save":
            saved.write_text("keys and values " + value("--flash-attn"))
        elif self.path == "/slots/0?action=restore":
            # what was computed with another kind of attention has another layout
            status = (
                200 if saved.exists() and saved.read_text().endswith(value("--flash-attn")) else 404
            )
        else:
            timings = {"prompt_per_second": 100.0, "predicted_per_second": 50.0}
            text = Path(value("--model")).read_bytes().removeprefix(b"GGUF")
            tokens = json.loads(text or "{}").get("tokens", [7] * body["n_predict"])
            found = {"tokens": tokens[: body["n_predict"]], "timings": timings}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    if "--version" in WORDS:
        print("version: 0 (0c1e57098)\nbuilt with GNU 12.2.0 for Linux x86_64", file=sys.stderr)
    elif "--help" in WORDS:
        print(f"--threads N   threads\n--spec-type {KINDS}\n              kinds of speculation")
    else:
        print(
            "0.00 system_info: n_threads = 2 / 2 | CPU : AVX2 = 1 | FMA = 1 | OPENMP = 1 | ",
            file=sys.stderr,
        )
        if not Path(value("--model")).is_file():
            sys.exit("0.01 E error: failed to open the model")
        server = ThreadingHTTPServer((value("--host"), int(value("--port"))), Handler)
        print(
            f"0.02 listening on http://127.0.0.1:{server.server_port}", file=sys.stderr, flush=True
        )
        server.serve_forever()


if __name__ == "__main__":
    main()
