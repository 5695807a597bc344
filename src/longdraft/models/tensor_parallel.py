"""A model divided among processes by Transformers' plan of tensor parallelism.

Each process computes its own heads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from longdraft.backends.layer_configs import values_of
from longdraft.core.processes import Team
from longdraft.errors import InputError

ALONE_TOO = "start it without torchrun, or use another model"
COLUMNS = "colwise"
ROWS = "rowwise"
OUTPUT = ("colwise_gather_output", "colwise_rep")
TABLE = "embedding_rowwise"


def options_for(config: Any, team: Team) -> dict[str, Any]:
    """Options of from_pretrained that load one process's share.

    Raises InputError for a model that cannot be divided.
    """
    if team.size == 1:
        return {}
    c = config.get_text_config()
    plan = getattr(c, "base_model_tp_plan", None) or {}
    if not any(name.endswith("k_proj") and style == COLUMNS for name, style in plan.items()):
        raise InputError(
            f"Transformers has no plan to divide the attention of {c.model_type}: {ALONE_TOO}"
        )
    sizes = {
        "num_attention_heads": "query heads",
        "num_key_value_heads": "key heads",
        "intermediate_size": "features",
    }
    sizes |= {"moe_intermediate_size": "features of an expert"}
    counts = list[tuple[str, int]]()
    for name, part in sizes.items():
        counts += [(part, n) for n in values_of(c, name) if isinstance(n, int)]
    for part, n in counts:
        if n % team.size:
            common = gcd(*(n for _, n in counts))
            raise InputError(f"{team.size} processes cannot share {n} {part}: {_instead(common)}")
    if find_spec("accelerate") is None:
        raise InputError(
            "dividing a model needs accelerate: `pip install accelerate`, or start without torchrun"
        )
    try:
        from transformers.distributed.configuration_utils import DistributedConfig
    except ImportError:
        raise InputError(
            "dividing a model needs Transformers 5.23: upgrade it, or start without torchrun"
        ) from None
    return {"distributed_config": DistributedConfig(tp_size=team.size)}


def _instead(common: int) -> str:
    """Advice on the number of processes, for parts that all come in multiples of `common`."""
    fitting = [str(n) for n in range(2, common + 1) if common % n == 0]
    return f"start {' or '.join(fitting)} processes" if fitting else ALONE_TOO


@torch.no_grad()
def settle(hf: Any, team: Team) -> None:
    """Turn the model that Transformers has loaded into plain tensors of this process's share.

    Linear layers and the embedding get hooks in place of Transformers', so that `replace_linears`
    can carry them over to packed weights. What else a plan divides, such as experts, keeps
    Transformers' own.
    """
    local: dict[int, nn.Parameter] = {}
    # they cannot be copied with the model
    hf._device_mesh = None
    hf._mesh_manager = None
    for name, module in hf.named_modules():
        style = hf.tp_plan.get(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name))
        whole = _width(module)
        if not _make_local(module, local, style, -(-whole // team.size)):
            continue
        if isinstance(module, nn.Linear):
            vars(module).pop("forward", None)
            module.out_features, module.in_features = module.weight.shape
            if style == ROWS:
                if module.bias is not None and not team.first:
                    # it counts once
                    module.bias = nn.Parameter(torch.zeros_like(module.bias), requires_grad=False)
                module.register_forward_hook(Sum(team))
            elif style in OUTPUT:
                module.register_forward_hook(Joined(team, whole))
        elif style == TABLE:
            vars(module).pop("forward", None)
            module.padding_idx = None
            module.forward = Lookup(module, team, -(-whole // team.size) * team.rank)


def _width(module: nn.Module) -> int:
    """The outputs of a linear layer, or the rows of a table, before they are divided."""
    return int(getattr(module, "out_features", 0) or getattr(module, "num_embeddings", 0) or 0)


def _make_local(
    module: nn.Module, local: dict[int, nn.Parameter], style: str | None, rows: int
) -> bool:
    """Replace a module's divided weights by their local parts.

    False if its style must stay Transformers' own. The last part of a vocabulary is filled up to
    `rows`, so that all processes count the same bytes.
    """
    known = (None, COLUMNS, ROWS, TABLE, *OUTPUT)
    if isinstance(module, nn.Linear | nn.Embedding) and style not in known:
        return False
    for name, p in module.named_parameters(recurse=False):
        if isinstance(p, DTensor):
            if id(p) not in local:
                mine = p.to_local()
                missing = max(rows - len(mine), 0) if style in (TABLE, *OUTPUT) else 0
                if missing:
                    mine = torch.cat([mine, mine.new_zeros(missing, *mine.shape[1:])])
                local[id(p)] = nn.Parameter(mine, requires_grad=False)
            module._parameters[name] = local[id(p)]
    return isinstance(module, nn.Linear | nn.Embedding)


@dataclass(frozen=True)
class Sum:
    """The sum over processes, after a layer that has a part of its inputs."""

    team: Team

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        self.team.sum([output])
        return output


@dataclass(frozen=True)
class Joined:
    """All logits, after the output matrix, which has a part of the vocabulary.

    They have the same bits in every process.
    """

    team: Team
    vocab: int

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return self.team.join(output, -1)[..., : self.vocab]


class Lookup:
    """The forward of an embedding that holds some rows of the table, from `first` on."""

    def __init__(self, module: nn.Embedding, team: Team, first: int):
        self.module = module
        self.team = team
        self.first = first

    def __call__(self, tokens: Tensor) -> Tensor:
        self.team.agree("embedding", tokens)
        row = tokens - self.first
        elsewhere = (row < 0) | (row >= len(self.module.weight))
        embedded = type(self.module).forward(self.module, row.masked_fill(elsewhere, 0))
        embedded = embedded.masked_fill(elsewhere[..., None], 0)
        self.team.sum([embedded])
        return embedded


@torch.no_grad()
def rows_of_all(head: Any, tokens: Tensor, team: Team, vocab: int) -> nn.Linear:
    """The rows of a divided output matrix for these tokens, whole in every process."""
    row = tokens - -(-vocab // team.size) * team.rank
    here = (row >= 0) & (row < len(head.weight))
    some = nn.Linear(head.weight.shape[1], len(tokens), head.bias is not None, device="meta")
    for name, p in list(head.named_parameters(recurse=False)):
        rows = p.new_zeros(len(tokens), *p.shape[1:])
        rows[here] = p[row[here]]
        team.sum([rows])
        setattr(some, name, nn.Parameter(rows, requires_grad=False))
    return some
