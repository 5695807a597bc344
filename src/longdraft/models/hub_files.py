"""GGUF files of the Hugging Face Hub by the names that llama.cpp gives them: hf:ORG/REPO:Q4_K_M.

Files are downloaded into the Hub's usual cache. The names that a repository lists are not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from longdraft.errors import InputError
from longdraft.models.gguf import parts

PREFIX = "hf:"
WORD = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
NAME = re.compile(rf"{PREFIX}({WORD}/{WORD})(?::([A-Za-z0-9_./-]{{1,200}}))?")
USUAL = "Q4_K_M"  # the type of a name without one, where the repository has it
REACH_S = 5.0  # to wait for the Hub before its cache is used
LISTED = 12  # files in a message
OTHERS = ("mmproj", "imatrix")  # in the names of files that are not models


def file_of(name: str) -> Path:
    """The file of hf:ORG/REPO[:TYPE], of a split one the first part, downloaded if it is not here.

    Raises InputError.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    match = NAME.fullmatch(name)
    if match is None:
        raise InputError(
            f"{name[:80]!r} does not name files of the Hub: give hf:ORG/REPO or hf:ORG/REPO:TYPE, "
            f"with a type like {USUAL}"
        )
    repository, kind = match.groups()
    try:
        info: Any = HfApi().model_info(repository, timeout=REACH_S)
    except GatedRepoError:
        raise InputError(f"{repository} is gated: accept its terms on the Hub") from None
    except RepositoryNotFoundError:
        raise InputError(f"the Hub has no {repository}: give another ORG/REPO") from None
    except Exception:  # the library and its transports raise many types
        return _in_cache(repository, kind or USUAL)
    names = [sibling.rfilename for sibling in info.siblings or ()]
    return _download(repository, info.sha, choose(repository, names, kind))


def choose(repository: str, names: Iterable[str], kind: str | None) -> list[str]:
    """The file of this type, or all its parts in order.

    kind None: USUAL, else the first file. Raises InputError unless there is one, with those that
    there are.
    """
    there = [name for name in names if _is_model(name)]
    firsts = [name for name in there if _parts(name)[0] == name]
    fits = _of_kind(firsts, kind or USUAL)
    if kind is None and not fits:
        fits = firsts[:1]
    if len(fits) != 1:
        count = len(fits) or "no"
        raise InputError(
            f"{repository} has {count} GGUF files of the type {kind or USUAL}: "
            + _advice(repository, firsts)
        )
    chosen = _parts(fits[0])
    missing = next((name for name in chosen if name not in there), None)
    if missing is not None:
        raise InputError(f"{repository} lacks {missing}, a part of {fits[0]}: choose another file")
    return chosen


def _advice(repository: str, names: list[str]) -> str:
    if not names:
        return f"give a repository with some, or -m {repository} for its safetensors"
    more = f" or {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"give {PREFIX}{repository}: and one of {', '.join(names[:LISTED])}{more}"


def _of_kind(names: list[str], kind: str) -> list[str]:
    """The names that contain a type; of several those in which it is a word, such as F16."""
    kind = kind.lower()
    word = re.compile(rf"(?<![a-z0-9]){re.escape(kind)}(?![a-z0-9_])")
    holding = [name for name in names if kind in name.lower()]
    exact = [name for name in holding if name.lower() == kind]
    words = [name for name in holding if word.search(name.lower())]
    return exact or words or holding


def _is_model(name: Any) -> bool:
    """Whether a name of the list is that of a model in a file below the repository's folder."""
    if not isinstance(name, str) or not name.isprintable() or "\\" in name:
        return False
    path = PurePosixPath(name)
    is_inside = not path.is_absolute() and ".." not in path.parts and str(path) == name
    is_other = any(word in path.name.lower() for word in OTHERS)
    return is_inside and path.suffix.lower() == ".gguf" and not is_other


def _parts(name: str) -> list[str]:
    return [file.as_posix() for file in parts.files_of(Path(name))]


def _download(repository: str, revision: str | None, names: list[str]) -> Path:
    """The first of these files, after a download of those that are not in the cache."""
    from huggingface_hub import hf_hub_download

    try:
        files = [hf_hub_download(repository, name, revision=revision) for name in names]
    except Exception as error:  # the library and its transports raise many types
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(
            f"cannot download {names[0]} of {repository} ({reason[:200].rstrip('.')}): connect to "
            "the network, check the free disk space, and try again"
        ) from None
    return Path(files[0])


def _in_cache(repository: str, kind: str) -> Path:
    """The file of a type in the Hub's cache, of the newest revision there. Raises InputError."""
    revisions = _revisions(repository)
    for files in revisions:
        there = {name for name in files if all(part in files for part in _parts(name))}
        fits = _of_kind([name for name in sorted(there) if _parts(name)[0] == name], kind)
        if len(fits) == 1:
            return files[fits[0]]
    names = sorted({name for files in revisions for name in files})
    held = f"only {', '.join(names[:LISTED])}" if names else "no GGUF file"
    raise InputError(
        f"cannot reach the Hub for {repository}, of which its local cache has {held}, which is not "
        f"one file of the type {kind}: connect to the network, or name a file that is there"
    )


def _revisions(repository: str) -> list[dict[str, Path]]:
    """{name: file} of the models of each revision of a repository in the cache, newest first."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except (CacheNotFound, OSError, ValueError):
        return []
    own = [r for r in repositories if (r.repo_id, r.repo_type) == (repository, "model")]
    revisions = [revision for repo in own for revision in repo.revisions]
    made = list[dict[str, Path]]()
    for revision in sorted(revisions, key=lambda r: r.last_modified, reverse=True):
        root = revision.snapshot_path
        files = {f.file_path.relative_to(root).as_posix(): f.file_path for f in revision.files}
        made.append({name: file for name, file in files.items() if _is_model(name)})
    return made
