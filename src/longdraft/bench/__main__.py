"""`python -m longdraft.bench bench|report ...`."""

from __future__ import annotations

from longdraft.bench.commands import main

main()
