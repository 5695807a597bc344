"""The packed matrices that a checkpoint would have in memory, known from its config alone."""

from __future__ import annotations

from typing import Any

from torch import nn

from longdraft.backends.packed_experts import (
    MATRICES,
    UNGATED,
    PackedExperts,
    can_be_packed,
    matrices_of,
    without_matrices,
)
from longdraft.backends.packed_linear import PackedLinear, replace, replace_linears
from longdraft.errors import InputError
from longdraft.models.quantized.experts import PARTS
from longdraft.models.quantized.forms import PackedForm
from longdraft.models.quantized.scheme import INSTEAD, Scheme
from longdraft.ops.packed import GROUP

NOTE = (
    "weights are counted as they lie in memory after loading: {}% of the numbers of matrices "
    "stay packed ({})"
)


def put(hf: Any, scheme: Scheme) -> str:
    """Put outlines of packed matrices into a model on the device "meta" -> a note for its user.

    Raises InputError for experts that loading would refuse.
    """
    head = hf.get_output_embeddings()
    linears = {n: m for n, m in hf.named_modules() if isinstance(m, nn.Linear)}
    every = sum(m.weight.numel() for m in linears.values())
    packed = 0
    for name, module in linears.items():
        form = scheme.form(name)
        if form is None or module.in_features % GROUP or (module is head and _is_kept(hf, scheme)):
            continue
        packed += module.weight.numel()
        made = form.outline(module.out_features, module.in_features)
        replace_linears(hf, [(name, made)])
        if form.bits == 5:  # as a loaded one, whose codes have 4 bits
            hf.get_submodule(name).bits = 4
    of_experts = {n: m for n, m in hf.named_modules() if _sizes(m)}
    for name, module in of_experts.items():
        size = sum(_sizes(module))
        every += size
        form = scheme.form(f"{name}.0.{PARTS[0 if getattr(module, 'has_gate', True) else 1]}")
        if form is None:
            continue
        if not can_be_packed(module):
            raise InputError(
                f"{hf.config.model_type} has experts that longdraft does not read if they are "
                f"quantized by {scheme.name}: {INSTEAD}"
            )
        packed += size
        replace(hf, name, _experts(module, form))
    return NOTE.format(round(100 * packed / max(every, 1)), scheme.name)


def _sizes(module: nn.Module) -> list[int]:
    """Numbers of the matrices of experts that lie in one tensor each; none for other modules."""
    own = dict(module.named_parameters(recurse=False))
    held = (own[leaf] for leaf in {*MATRICES, *UNGATED} if leaf in own)
    return [matrices.numel() for matrices in held if matrices.dim() == 3]


def _is_kept(hf: Any, scheme: Scheme) -> bool:
    """Whether the output matrix is the embeddings, which are not quantized."""
    return bool(hf.config.tie_word_embeddings) and not scheme.tables


def _experts(module: Any, form: PackedForm) -> PackedExperts:
    """The outline of packed experts."""
    first, down = (getattr(module, leaf) for leaf in matrices_of(module))
    turned = module.is_transposed
    count, rows, inputs = first.mT.shape if turned else first.shape
    _, outputs, inner = down.mT.shape if turned else down.shape
    rows = rows // 2 if module.has_gate else rows
    gate = PackedLinear(form.outline(count * rows, inputs)) if module.has_gate else None
    up, last = (
        PackedLinear(form.outline(count * n, m)) for n, m in ((rows, inputs), (outputs, inner))
    )
    return PackedExperts(without_matrices(module), count, gate, up, last)
