"""Build llama.cpp for this machine's processor, to compare with it at its best.

    python benchmarks/build_llama_cpp.py    # 20 minutes on two cores; prints the path of the server
    longdraft bench peers --peers llama.cpp --peer-llama-server LLAMA_SERVER ...

The source is that of a pinned package on PyPI, whose sha256 is checked. The wheels of such packages
are built for any processor, without AVX-512 (README of xllamacpp), so they are no measure of
llama.cpp. Needs cmake and a C++ compiler. The build stays in the user's cache folder (`longdraft
fetch`'s); what is there already is not built again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path
from urllib.request import urlopen

from arguments import Arguments, at_least, status

from longdraft.errors import InputError
from longdraft.models.fetch import cache_folder

PACKAGE = "llama_cpp_python-0.3.36"
HOST = "https://files.pythonhosted.org/packages/ec/e9"
URL = f"{HOST}/e7de2b0463ea3ffbf0ede6cb21b58c1258a8f6521aae45ca773a59fe7cf3/{PACKAGE}.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
# of ggml-org/llama.cpp, by the package's changelog: the package has no history to ask
COMMIT = "0c1e57098"
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_OPENSSL": "OFF",  # these three need libraries or a network, and do not compute
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    # else it takes both from the repository that the folder happens to lie in
    "LLAMA_BUILD_NUMBER": "0",
    "LLAMA_BUILD_COMMIT": COMMIT,
}
TARGETS = ("llama-server", "llama-bench")
BUILD_FILE = "build.json"  # written last: how it was built, for the records of `longdraft bench`


def download(file: Path) -> None:
    """Raises InputError if the file is not the pinned one."""
    with urlopen(URL, timeout=60) as answer:
        data = answer.read()
    if (found := sha256(data).hexdigest()) != SHA256:
        raise InputError(
            f"{URL} has sha256 {found}, not {SHA256}: it is not the file that was pinned"
        )
    file.write_bytes(data)


def build(folder: Path, jobs: int) -> Path:
    """The folder of llama-server and llama-bench, built if they are not there. cmake's output goes
    to stderr.
    """
    done = folder / COMMIT
    if (done / BUILD_FILE).exists():
        return done
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{PACKAGE}.tar.gz"
    if not archive.exists() or sha256(archive.read_bytes()).hexdigest() != SHA256:
        download(archive)
    source = folder / PACKAGE
    made = folder / "build"
    unpacking = folder / "unpacking"
    if not source.exists():
        with tarfile.open(archive) as packed:
            packed.extractall(unpacking, filter="data")
        (unpacking / PACKAGE).rename(source)
    settings = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    _run("cmake", "-S", str(source / "vendor" / "llama.cpp"), "-B", str(made), *settings)
    _run("cmake", "--build", str(made), "--parallel", str(jobs), "--target", *TARGETS)
    done.mkdir(exist_ok=True)
    for name in TARGETS:
        shutil.copy2(made / "bin" / name, done / name)
    facts = {"package": PACKAGE, "package_sha256": SHA256, "commit": COMMIT, "cmake": OPTIONS}
    (done / BUILD_FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    for leftover in (source, made, unpacking):
        shutil.rmtree(leftover)
    archive.unlink()
    return done


def _run(*words: str) -> None:
    try:
        subprocess.run(words, check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise InputError(str(error)) from None


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=cache_folder() / "llama.cpp",
        help="where it is built and kept",
    )
    parser.add_argument(
        "--jobs", type=at_least(1), default=os.cpu_count() or 1, help="compilers that run at once"
    )
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    print(build(given.folder.resolve(), given.jobs) / TARGETS[0])


if __name__ == "__main__":
    sys.exit(status(main))
