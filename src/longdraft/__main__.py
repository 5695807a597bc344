"""`python -m longdraft COMMAND ...`."""

from __future__ import annotations

import sys

from longdraft.cli import main

sys.exit(main())
