"""A report on disk: report.md, report.html and, where matplotlib is installed, plots/*.svg."""

from __future__ import annotations

import re
from pathlib import Path

from longdraft.bench.grouping import Record
from longdraft.bench.page import page
from longdraft.bench.plots import MISSING, NAMES, available, plots
from longdraft.bench.report import markdown, sections
from longdraft.errors import InputError


def write(records: list[Record], out: Path) -> list[Path]:
    """The files written in `out`: those two, then the plots. Raises InputError."""
    report = sections(records)
    if not report:
        raise InputError(
            "the files hold no records to report: run longdraft bench speed --out FILE first"
        )
    drawn = plots(report) if available() else [[] for _ in report]
    texts = {
        "report.md": markdown(report),
        "report.html": page(report, drawn, "" if available() else MISSING),
    }
    texts |= {f"plots/{i:02}-{p.name}.svg": p.svg for i, each in enumerate(drawn, 1) for p in each}
    try:
        out.mkdir(parents=True, exist_ok=True)
        _clear(out / "plots")
        for name, text in texts.items():
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot write to {out} ({error.strerror}): give --out a folder") from None
    return [out / name for name in texts]


def _clear(folder: Path) -> None:
    """Plots of an earlier report do not stay beside those of this one."""
    for old in folder.glob("*.svg"):
        if re.fullmatch(rf"\d\d+-({'|'.join(NAMES)})\.svg", old.name):
            old.unlink()
