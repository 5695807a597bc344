"""Programs that stand in for other engines."""

from __future__ import annotations

import sys
from pathlib import Path


def program(file: Path, script: str) -> Path:
    """Make `file` an executable that runs support/SCRIPT with this interpreter, in a new folder ->
    the file.
    """
    file.parent.mkdir()
    file.write_text(f"#!{sys.executable}\n" + (Path(__file__).parent / script).read_text())
    file.chmod(0o755)
    return file
