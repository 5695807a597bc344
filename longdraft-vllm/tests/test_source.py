"""Signatures and attributes are read from source that is never imported, and a command names what a
vLLM lacks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from longdraft_vllm import contract
from longdraft_vllm.source import Missing, Source

FILES = {
    "__init__.py": "raise RuntimeError('imported')",
    "_version.py": "__version__ = version = '7.1'",
    "config/__init__.py": "from vllm.config.engine import Config as Settings\nfrom .engine import Config",  # noqa: E501
    "config/engine.py": """
from dataclasses import dataclass
import torch.nn as nn
@dataclass
class Base:
    first: int
@dataclass
class Config(Base):
    second: int = 2
    @property
    def third(self): ...
""",
    "worker/runner.py": """
from ..config import Settings
from vllm.worker.base import Base
try:
    from vllm.worker.native import fast
except ImportError:
    def fast(a, /, b, *, c): ...
class Runner(Base):
    limit: int
    most = 3
    def __init__(self, config, *rest, device=None):
        self.config = config
        self.x, self.y = 1, 2
        other.z = 3
        if device:
            self.device: str = device
    async def step(self, batch):
        return self.forward( batch,
            1)
class Alone(nn.Module): ...
Alias = Runner
""",
    "worker/base.py": "class Base:\n    def forward(self, batch, count): self.seen = batch\n    def "  # noqa: E501
    "step(self): ...",
}


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def source(folder) -> Source:
    return Source(folder)


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("vllm.worker.runner:Runner", "self config device"),
        ("vllm.worker.runner:Alias", "self config device"),
        ("vllm.worker.runner:Runner.step", "self batch"),
        ("vllm.worker.runner:Runner.forward", "self batch count"),
        ("vllm.worker.runner:fast", "a b c"),
        ("vllm.worker.runner:Settings", "first second"),
        ("vllm.config:Config", "first second"),
        ("vllm.worker.runner:Alone", ""),
    ],
)
def test_parameters(source, where, names):
    assert source.parameters(source.get(where)) == names.split()


def test_attributes(source):
    runner = source.attributes(source.get("vllm.worker.runner:Runner"))
    assert runner == {
        "__init__",
        "limit",
        "most",
        "config",
        "x",
        "y",
        "device",
        "step",
        "forward",
        "seen",
    }
    assert source.attributes(source.get("vllm.config:Settings")) == {"first", "second", "third"}


def test_code_has_single_spaces(source):
    assert "return self.forward( batch, 1)" in source.code(
        source.get("vllm.worker.runner:Runner.step")
    )


@pytest.mark.parametrize(
    "where",
    [
        "vllm.nothing:Runner",
        "vllm.worker.runner:Nothing",
        "vllm.worker.runner:Runner.nothing",
        "torch:Tensor",
    ],
)
def test_what_is_missing(source, where):
    with pytest.raises(Missing):
        source.get(where)


TERMS = [
    contract.Takes("vllm.worker.runner:Runner", "config device"),
    contract.Takes("vllm.worker.runner:Runner.step", "batch count"),
    contract.Sets("vllm.worker.runner:Runner", "config z"),
    contract.Calls("vllm.worker.runner:Runner.step", "self.forward( batch, 2)"),
    contract.Sets("vllm.worker.nothing:Runner", "config"),
    contract.Sets("vllm.worker.runner:Nothing", "config"),
]
SAYS = [
    "some: vllm.worker.runner:Runner.step takes (self, batch) but not count",
    "some: vllm.worker.runner:Runner has no z",
    "some: vllm.worker.runner:Runner.step no longer contains 'self.forward( batch, 2)'",
    "some: vLLM has no vllm.worker.nothing:Runner (no module vllm.worker.nothing)",
    "some: vLLM has no vllm.worker.runner:Nothing",
]


def test_the_command_prints_one_line_for_each_difference(folder, monkeypatch, capsys):
    monkeypatch.setattr(contract, "CONTRACT", {"some": TERMS})
    assert contract.main([str(folder)]) == 1
    assert capsys.readouterr().out.splitlines() == SAYS


def test_the_command_says_that_nothing_differs(folder, monkeypatch, capsys):
    monkeypatch.setattr(contract, "CONTRACT", {"some": TERMS[:1]})
    assert contract.main([str(folder)]) == 0
    assert capsys.readouterr().out == "vLLM 7.1 has all that longdraft-vllm relies on\n"


def test_a_folder_without_vllm(tmp_path, capsys):
    assert contract.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert contract.main([]) == 2
