"""Write the table of docs/adding-an-architecture.md from the table of features.

python docs/features.py            # after a row of backends/features/table.py has changed
python docs/features.py --check    # exit status 1 if the page is not what the table says
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from measured import ROOT, filled, table, write_or_check

from longdraft.backends.cuda import CudaBackend
from longdraft.backends.features.feature import Feature
from longdraft.backends.features.table import FEATURES
from longdraft.backends.native import NativeBackend

PAGE = ROOT / "docs" / "adding-an-architecture.md"
SOURCES = ROOT / "src" / "longdraft"
COLUMNS = ("feature", "models", "file", "how longdraft computes it", "also on")


def rows(features: Iterable[type[Feature]] = FEATURES) -> list[tuple[str, ...]]:
    """A row for each feature: its name, models and file, how it is computed, and on what else."""
    lines = list[tuple[str, ...]]()
    for kind in features:
        module = sys.modules[kind.__module__]
        file = Path(str(module.__file__)).resolve().relative_to(SOURCES.resolve())
        backends = [b.name for b in (NativeBackend, CudaBackend) if kind in b.SUPPORTED]
        others = ", ".join(f"`{name}`" for name in backends)
        lines.append(
            (f"`{kind.__name__}`", kind.models, f"`{file.as_posix()}`", kind.computed, others)
        )
    return lines


def page() -> str:
    """The page with the table of all features."""
    lines = table(COLUMNS, rows()).replace("---:", "---")
    return filled(PAGE.read_text(encoding="utf-8"), "features", lines)


def main(arguments: list[str]) -> int:
    return write_or_check({PAGE: page()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
