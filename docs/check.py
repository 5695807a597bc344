"""Checks that each page and figure written by a script is up to date: every script's `--check`, in
one process.
"""

from __future__ import annotations

import sys

import diagram
import figures
import headlines
import models
import pays
import peers
import qwen_coder
import smollm2
import structured_output
import tests_page

SCRIPTS = (
    figures,
    pays,
    smollm2,
    qwen_coder,
    peers,
    headlines,
    models,
    structured_output,
    diagram,
    tests_page,
)

if __name__ == "__main__":
    sys.exit(max(script.main(["--check"]) for script in SCRIPTS))
