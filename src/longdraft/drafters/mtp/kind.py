"""MTP layers as a kind of drafter: read from the target's own checkpoint, or stored like other
drafters.
"""

from __future__ import annotations

from longdraft.drafters.checkpoint import ModuleKind
from longdraft.drafters.kind import Within
from longdraft.drafters.mtp.block import MtpLayers, random_mtp
from longdraft.drafters.mtp.checkpoint import has_layers, read_mtp

MTP = ModuleKind(
    name="mtp",
    title="multi-token-prediction layers",
    weights=MtpLayers,
    random=random_mtp,
    options_of=lambda module: module.options,
    build=MtpLayers,
    within=Within(has_layers, read_mtp),
)
