"""What holds for an option of the command line that makes another target: --rope, --weights, --kv,
--activations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., tuple[int, str, str]]  # the fixture `cli`


def check_bench(
    cli: Run, folder: Path, option: str, values: list[str | None], *words: str, context: int = 64
) -> None:
    """Records of `bench` state the option, a report has a table for each value, and random weights
    do not have it.

    values: None leaves the option out. words: more words of each line.
    """
    out = folder / "records.jsonl"
    line = [
        "bench",
        "speed",
        "-m",
        "tiny",
        "--prompt-file",
        "long.txt",
        "--context",
        str(context),
        "--repeat",
        "1",
    ]
    line += ["--max-new-tokens", "8", "--dtype", "float32", "--out", str(out)]
    for value in values:
        assert cli(*line, *words, *([f"--{option}", value] if value else []))[0] == 0
    records = [json.loads(record) for record in out.read_text().splitlines()]
    assert [r[option] for r in records] == [value for value in values for _ in range(2)]
    assert cli("report", str(out), "--out", str(folder))[0] == 0
    report = (folder / "report.md").read_text()
    given = [value for value in values if value]
    assert [len(re.findall(rf"\([^`\n]*--{option} {value}", report)) for value in given] == [
        1
    ] * len(given)
    shape = ("bench", "shape-cost", "2x64", "--accept", "2", "--context", str(context))
    status, _, err = cli(*shape, f"--{option}", given[0])
    assert status == 2 and "No such option" in err and f"--{option}" in err


def check_audit(cli: Run, folder: Path, option: str, value: str) -> dict[str, Any]:
    """An audit with the option has no difference, and is not resumed without it -> what it
    printed.
    """
    words = [
        "audit",
        "-m",
        "tiny",
        "--prompt-file",
        "a.txt",
        "--tokens",
        "40",
        "--out",
        str(folder / "audit.json"),
    ]
    status, out, _ = cli(*words, f"--{option}", value, "--json")
    result = json.loads(out)
    assert (
        status == 0
        and result["settings"][option] == value
        and result["failures"] == 0
        and result["complete"]
    )
    status, _, err = cli(*words, "--resume")
    assert status == 2 and f"another {option}" in err
    return result
