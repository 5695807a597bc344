"""How a forward pass is computed: `base` is the protocol, `reference` defines what is right,
`choose` selects one.
"""

from __future__ import annotations

from typing import Any

from longdraft.backends import cuda, native
from longdraft.backends.architecture import Architecture
from longdraft.backends.base import Backend
from longdraft.backends.dense import Dense, DenseArchitecture, lacks_interface
from longdraft.backends.divided import Divided
from longdraft.backends.eager import Eager
from longdraft.backends.stock import refuse
from longdraft.core.processes import Team


def reference(hf: Any, team: Team) -> Eager:
    """The backend that runs the model's own modules."""
    if lacks_interface(hf):
        return Dense(DenseArchitecture(hf))
    model = Architecture(hf)
    return Eager(model) if team.size == 1 else Divided(model, team)


def choose(eager: Eager) -> Backend:
    """The fastest backend that computes the model of `eager`. Raises InputError where its shapes
    contradict.
    """
    model = eager.architecture
    refuse(model.hf, model.windows)
    if native.NativeBackend.computes(model.features) and native.fits(model.hf, model.windows):
        return native.NativeBackend(model)
    if isinstance(eager, Dense):
        return eager
    if cuda.CudaBackend.computes(model.features) and cuda.fits(model):
        return cuda.CudaBackend(model)
    return eager
