"""Documents of a Hugging Face dataset. They are streamed, and no code of the dataset is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from longdraft.errors import InputError

PREFIX = "hf:"
# column with the text -> kind of text
COLUMNS = {"text": "book", "content": "code", "code": "code"}
HOW = "give hf:ORG/NAME, hf:ORG/NAME:CONFIG or hf:ORG/NAME:CONFIG:SPLIT"


def documents(name: str, most: int) -> Iterator[tuple[str, str]]:
    """The (kind, text) of the first rows of hf:ID[:CONFIG[:SPLIT]].

    Up to `most` characters in all. Raises InputError.
    """
    taken = 0
    for row in _rows(name):
        column = next((c for c in COLUMNS if isinstance(row.get(c), str)), None)
        if column is None:
            raise InputError(
                f"{name} has the columns {', '.join(row)}; one of {', '.join(COLUMNS)} "
                "must hold text"
            )
        taken += len(row[column])
        yield COLUMNS[column], row[column]
        if taken >= most:
            return


def _rows(name: str) -> Iterator[dict[str, Any]]:
    where, config, split = (*name.removeprefix(PREFIX).split(":"), "", "")[:3]
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            f"{name}: datasets of the Hub need an extra: pip install 'longdraft[datasets]'"
        ) from None
    datasets.disable_progress_bars()
    try:
        yield from datasets.load_dataset(
            where, config or None, split=split or "train", streaming=True
        )
    except Exception as error:  # the library and its transports raise many types
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"cannot read {name}: {reason[:300].rstrip('.')}; {HOW}") from None
