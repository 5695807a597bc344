"""How a forward pass is computed: `base` is the protocol, `eager` defines what is right, `choose` selects one."""

from __future__ import annotations

from longdraft.backends import cuda, native
from longdraft.backends.base import Backend
from longdraft.backends.eager import Eager
from longdraft.backends.stock import refuse


def choose(eager: Eager) -> Backend:
    """The fastest backend that computes the model of `eager`. Raises InputError where its shapes contradict."""
    model = eager.architecture
    refuse(model.hf, model.windows)
    if native.fits(model.hf, model.windows):
        return native.NativeBackend(model)
    return cuda.CudaBackend(model) if cuda.fits(model) else eager
