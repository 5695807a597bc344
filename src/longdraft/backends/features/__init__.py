"""How models differ from plain attention: one file and one row of `table` for each feature."""

from __future__ import annotations
