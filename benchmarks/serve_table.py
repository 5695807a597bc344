"""The table of speed in docs/server.md, from the records of benchmarks/serve.py.

    python benchmarks/serve_table.py benchmarks/records/2026-11-23-serve-paced.jsonl.gz

Prints Markdown.
"""

from __future__ import annotations

import sys
from typing import Any

from arguments import Arguments, status

COLUMNS = (
    "kernels",
    "method",
    "one by one",
    "four at once",
    "gain",
    "over plain",
    "first token",
    "beside 3 streams",
)
COLUMNS += ("longest wait", "known prompt", "overhead")


def row(record: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    """A record's cells. plain: that of plain decoding with the same kernels."""
    r = record
    peer = "overhead" not in record
    # all that older records measured
    name = r["method"] if not peer or "peer_build" in r else f"{r['method']} (wheel)"
    return [
        "" if peer else r["kernels"],
        name,
        f"{r['one_by_one_tokens_per_s']:.0f}",
        f"{r['at_once_tokens_per_s']:.0f}",
        f"{r['batch_gain']:.2f}x",
        "" if r is plain else f"{r['at_once_tokens_per_s'] / plain['at_once_tokens_per_s']:.2f}x",
        f"{r['first_token_s']:.2f} s",
        f"{r['first_token_beside_streams_s'] / r['first_token_s']:.2f}x",
        f"{r['longest_gap_s']:.2f} s",
        f"{r['known_first_token_s'] / r['first_token_s']:.1%}",
        "" if peer else f"{r['overhead']:.1%}",
    ]


def table(records: list[dict[str, Any]]) -> str:
    plain = {r["kernels"]: r for r in records if r["method"] == "plain"}
    cells = [row(r, plain[r["kernels"]]) for r in records]
    lines = [COLUMNS, ["---"] * 2 + ["---:"] * (len(COLUMNS) - 2), *cells]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.take_records()
    return parser


def main(words: list[str] | None = None) -> None:
    print(table(options().parse(words).records), end="")


if __name__ == "__main__":
    sys.exit(status(main))
