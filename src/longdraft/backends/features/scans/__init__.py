"""Recurrent layers: their scans run along the paths of a tree, from the committed states."""

from __future__ import annotations
