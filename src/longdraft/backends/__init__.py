"""How a forward pass is computed: `base` is the protocol, `eager` defines what is right, `choose` selects one."""

from __future__ import annotations
