"""A figure as SVG text: the same text for the same figure and version of matplotlib."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

# a `$` in a record is a character, not mathematics
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "longdraft",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
}


@contextmanager
def settings() -> Iterator[None]:
    """Figures are made and saved in this context, so that they do not depend on a user's own
    settings of matplotlib.
    """
    from matplotlib import rc_context, style  # pyright: ignore[reportMissingImports]

    with style.context("default"), rc_context(SETTINGS):
        yield


def svg(figure: Any, description: str = "") -> str:
    """A whole SVG file with white ground and no date, of a figure made under `settings`."""
    out = StringIO()
    data = {"Date": None, "Creator": "longdraft", "Description": description or None}
    with settings(), warnings.catch_warnings():
        # a font without a glyph, or labels that leave no room
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(out, format="svg", metadata=data)
    text = re.sub(r"<!-- .*? -->\n", "", out.getvalue(), flags=re.S)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def inline(text: str, name: str, page: str) -> str:
    """The figure that `svg` made, for the inside of an HTML page: separate ids and style, and links
    within the page.
    """
    text = (
        text[text.index("<svg") :]
        .replace(' target="_blank"', "")
        .replace(f'xlink:href="{page}#', 'href="#')
    )
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'( id="|url\(#|xlink:href="#)', rf"\g<1>{name}-", text)
    return text.replace("*{stroke-linejoin", f"#{name} *{{stroke-linejoin")
