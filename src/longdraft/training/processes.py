"""The layers of a target divided among the processes that train a drafter for it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from longdraft.backends.layout import DecoderLayout
from longdraft.core.processes import Team
from longdraft.errors import InputError
from longdraft.models.identity import digest
from longdraft.models.lm import LM


def spread(lm: LM, team: Team) -> LM:
    """The target with its layers divided among the team's devices.

    It was loaded on the CPU; embeddings, norm and head stay whole. It replaces `lm`, whose weights
    it takes. All processes must run it equally often and in the same order. Raises InputError for
    one process.
    """
    if team.size == 1:
        raise InputError(
            "--spread divides the target among processes, but there is one: start several "
            "with torchrun"
        )
    divided = LM(
        lm.hf,
        lm.name,
        lm.rope,
        lm.weights,
        lm.kv,
        activations=lm.activations,
        end_tokens=lm.end_tokens,
        note=lm.note,
        stored=lm.stored,
        digest=lm.digest or digest(lm.hf),  # no process can read whole weights from here on
        backend=lambda eager: eager,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (team.size,))
    layout: DecoderLayout = lm.architecture.layout
    body: Any = layout.body
    inner = set[Any]().union(*(layer.parameters() for layer in layout.layers))
    outer = set(body.parameters()) - inner
    for layer in layout.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(body, mesh=mesh, ignored_params=outer)
    # their buffers are needed with the states
    rotations = [m for m in body.children() if not list(m.parameters())]
    for module in (
        lm.hf.get_input_embeddings(),
        *layout.tail,
        lm.hf.get_output_embeddings(),
        *rotations,
    ):
        module.to(device)
    return divided
