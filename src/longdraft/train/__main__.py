"""`python -m longdraft.train target ...`."""

from __future__ import annotations

from longdraft.train.commands import main

main()
