"""The checkout travels: it stays below 48 MB, a wheel below 24 MB (of drafters, 15 MB), and no file
is large.
"""

from __future__ import annotations

import io
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MB = 1_000_000
TREE = 48 * MB
FILE = 11 * MB
WHEEL = 24 * MB  # six builds of the kernels take one each
DRAFTERS = 15 * MB


def tracked() -> list[Path]:
    try:
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout of git")
    return [file for name in names.split("\0") if name and (file := ROOT / name).is_file()]


def check(sizes: dict[Path, int]) -> None:
    assert sum(sizes.values()) < TREE, f"the tracked files have {sum(sizes.values()) / MB:.1f} MB"
    large = {str(p): size for p, size in sizes.items() if size > FILE}
    assert not large, f"files of more than {FILE / MB:.0f} MB: {large}"


def zipped(files: list[Path]) -> int:
    """Bytes of the files in an archive compressed as a wheel is."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file)
    return len(target.getvalue())


def test_the_checkout_is_small():
    sizes = {file: file.stat().st_size for file in tracked()}
    check(sizes)
    some = next(iter(sizes))
    for broken in (sizes | {some: FILE + 1}, sizes | {Path(str(i)): FILE for i in range(5)}):
        with pytest.raises(AssertionError):
            check(broken)


@pytest.mark.full
@pytest.mark.parametrize(
    ("package", "most"), [("src", WHEEL), ("longdraft-drafters/src", DRAFTERS)]
)
def test_a_wheel_is_small(package, most):
    """Its files, and the native kernels as built here: all that a wheel contains."""
    files = [file for file in tracked() if file.is_relative_to(ROOT / package)]
    assert files and zipped([*files, *(ROOT / package).rglob("*.so")]) < most
