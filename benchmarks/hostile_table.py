"""The table of attacks in docs/server.md, from the last record of benchmarks/hostile.py.

    python benchmarks/hostile_table.py benchmarks/records/2026-11-26-hostile.jsonl.gz

Prints Markdown.
"""

from __future__ import annotations

import sys
from typing import Any

from arguments import Arguments, status


def rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    """What was done, and what was found."""
    fuzz = record["fuzz"]
    over = record["overload"]
    left = record["disconnects"]
    ends = record["signals"]
    soak = record["soak"]
    done = f"{record['fuzz']['requests']:,}"
    known = {
        k: f"{soak[k]['second_fifth']:.0f} and {soak[k]['last_fifth']:.0f}"
        for k in ("rss_mb", "threads", "files")
    }
    found = [
        (
            f"{done} malformed, oversized and odd requests, beside {fuzz['slow_clients']} "
            "slow clients",
            f"{fuzz['bad_count']} answers of 500 or more, hangs or connections closed "
            "without cause; "
            f"resident memory {fuzz['rss_change']:+.1%}; {fuzz['slow_closed']} slow clients closed",
        ),
        (
            f"{over['clients']} clients at once, {over['rows']} rows, a queue of "
            f"{over['queue']}, {over['repeats']}x",
            f"{over['answers']['200']} answers, {over['answers']['429']:,} times 429 with "
            "Retry-After, nothing else; "
            f"{over['share']:.0%} of the throughput of {over['rows']} clients",
        ),
        (
            f"{left['disconnects']:,} clients that leave in mid-stream",
            f"{left['most_steps_after']} decoding steps begin after the server has seen "
            "that a client left; "
            f"{left['rows_after']} rows and {left['slots_after']} "
            f"slots in use afterward; resident memory {left['rss_change']:+.1%}",
        ),
        (
            "`kill -9` and a restart",
            f"ready after {ends['loaded_again_s']:.1f} s (at first {ends['loaded_s']:.1f}); "
            f"{len(ends['written'])} files written",
        ),
        (
            f"SIGTERM during {ends['streams']} streams; a second one",
            f"{ends['ended_properly']} end properly, {ends['ended_with_an_error']} of them "
            "with an error event after "
            f"the grace time; status {ends['status']}; the second ends it within "
            f"{ends['second_signal_s']:.1f} s",
        ),
        (
            f"{soak['seconds'] / 60:.0f} min of streams, leaving clients, malformed "
            "requests, long and known prompts",
            f"{sum(soak['outcomes'].values()):,} requests, none failed; in the second and "
            "the last fifth of the time "
            f"{known['rss_mb']} MB, {known['threads']} threads, {known['files']} open files; "
            f"afterward {soak['rows_after']:.0f} rows in use",
        ),
    ]
    return found + ([_long(record["long"])] if "long" in record else [])


def _long(long: dict[str, Any]) -> tuple[str, str]:
    """That of prompts beyond the context, which older records do not have."""
    return (
        f"{long['at_once']} prompts of {long['bytes'] / 1e6:.1f} MB at once, "
        f"{len(long['answers'])} kinds, beside small"
        " chats",
        f"all refused; memory {long['mb_before']:.0f} MB before, {long['mb_peak']:.0f} MB at most, "
        f"{long['mb_after']:.0f} MB after; the longest small chat takes "
        f"{long['small_longest_s']:.2f} s "
        f"({long['small_alone_s']:.2f} s alone)",
    )


def table(record: dict[str, Any]) -> str:
    lines = ["| attack | result |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in rows(record))]
    return "\n".join(lines) + "\n"


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.take_records()
    return parser


def main(words: list[str] | None = None) -> None:
    print(table(options().parse(words).records[-1]), end="")


if __name__ == "__main__":
    sys.exit(status(main))
