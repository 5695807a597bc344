"""A figure as SVG text: the same text for the same figure and version of matplotlib."""

from __future__ import annotations

import re
import warnings
from io import StringIO
from typing import Any

SETTINGS = {"svg.hashsalt": "longdraft", "svg.fonttype": "none", "text.parse_math": False, "font.size": 9}


def svg(figure: Any, description: str = "") -> str:
    """A whole SVG file with white ground and no date."""
    from matplotlib import rc_context  # pyright: ignore[reportMissingImports]

    out = StringIO()
    data = {"Date": None, "Creator": "longdraft", "Description": description or None}
    with rc_context(SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a font without a glyph, or labels that leave no room
        figure.savefig(out, format="svg", metadata=data)
    text = re.sub(r"<!-- .*? -->\n", "", out.getvalue(), flags=re.S)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def inline(text: str, name: str, page: str) -> str:
    """What `svg` made, to stand inside an HTML page: ids and style of its own, and links within the page."""
    text = text[text.index("<svg") :].replace(' target="_blank"', "").replace(f'xlink:href="{page}#', 'href="#')
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'( id="|url\(#|xlink:href="#)', rf"\g<1>{name}-", text)
    return text.replace("*{stroke-linejoin", f"#{name} *{{stroke-linejoin")
