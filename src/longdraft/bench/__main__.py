"""`python -m longdraft.bench bench|report ...`."""

from __future__ import annotations

from longdraft.cli.bench import main

main()
