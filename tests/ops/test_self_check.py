"""The check of the native kernels that `longdraft doctor` runs: every build passes, and a wrong one
is named.
"""

from __future__ import annotations

import ctypes
from math import nan
from typing import Any

import pytest
import torch

from longdraft.ops import native
from longdraft.ops.native import self_check

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="the package was built without a C++ compiler"
)
ONE = torch.ones(2, dtype=torch.long)
NOTHING = (native.Selected * 4)()
STATES = 2 * self_check.NODES * self_check.WIDTH  # numbers that are kept after each layer


class Broken:
    """A build of which one call does something else."""

    def __init__(self, lib: Any, fault: str):
        self._lib = lib
        self.before, self.after, _ = FAULTS[fault]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def longdraft_step(self, model: Any, p: Any, work: Any, half: Any) -> Any:
        if self.before:
            self.before(model, p)
        done = self._lib.longdraft_step(model, p, work, half)
        if self.after:
            self.after(p)
        return done


def other(**fields: Any) -> Any:
    """Changes fields of the model."""

    def change(model: Any, p: Any) -> None:
        for name, value in fields.items():
            setattr(model, name, value)

    return change


def swapped(layer: int, to: str, of: str) -> Any:
    """One linear layer in place of another."""

    def change(model: Any, p: Any) -> None:
        setattr(model.layer[layer], to, getattr(model.layer[layer], of))

    return change


def without_offsets(model: Any, p: Any) -> None:
    v = model.layer[0].v
    if v.format == native.Format.BITS_4:
        v.offset = v.scale


def blind(model: Any, p: Any) -> None:
    p.tail_start = ONE.data_ptr()
    p.selected = NOTHING


def see_everything(model: Any, p: Any) -> None:
    ctypes.memset(p.mask, 1, 2 * self_check.SEES.numel())


def refuse(model: Any, p: Any) -> None:
    raise RuntimeError(
        "the native kernels refused a call: the model's shapes contradict each other"
    )


def larger(p: Any) -> None:
    states = (ctypes.c_float * (2 * STATES)).from_address(p.states)
    states[STATES:] = [1.01 * x for x in states[STATES:]]


def without_a_number(p: Any) -> None:
    (ctypes.c_float * 1).from_address(p.logits)[0] = nan


# Of each fault, what it changes before the call or after it, and how the check's answer begins.
FAULTS: dict[str, tuple[Any, Any, str]] = {
    "values are computed with the weights of keys": (
        swapped(0, "v", "k"),
        None,
        "products of float32",
    ),
    "positions are rotated with a factor": (
        other(rope_scale=1.05),
        None,
        "rotated products of float32",
    ),
    "logits of attention have another scale": (
        other(scale=0.13),
        None,
        "attention weights of float32",
    ),
    "the first slot is not seen": (blind, None, "attention weights of float32"),
    "siblings see each other": (see_everything, None, "attention weights of float32"),
    "the output of attention is a hundredth larger": (None, larger, "attended values of float32"),
    "an MLP multiplies with its own gate": (swapped(1, "gate", "up"), None, "states of float32"),
    "there is no norm before the head": (other(norm=None), None, "logits of float32"),
    "a logit is not a number": (None, without_a_number, "logits of float32 differ by nan"),
    "4 bits have another offset": (
        without_offsets,
        None,
        "products of bfloat16 with weights of 4 bits",
    ),
    "a call is refused": (refuse, None, "float32: the native kernels refused a call"),
}


def test_every_build_passes(build):
    assert self_check.fault(build) == ""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_named(fault):
    said = self_check.fault(Broken(native.library(), fault))
    assert said.startswith(FAULTS[fault][2]) and "\n" not in said
