"""What `longdraft serve` makes of its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from longdraft import PrefixCache, PromptFolder
from longdraft.cli import main
from longdraft.prompts import prefix_room

pytest.importorskip("uvicorn")


@pytest.fixture
def kept(place: Path, monkeypatch: pytest.MonkeyPatch):
    """kept(options) -> where the server that these options make keeps prompts, for each model."""
    from longdraft.server import uvicorn_server

    found: list[Any] = []

    def ready(self: uvicorn_server.Server, sockets: Any = None) -> int:
        found.extend(service.engine.session.prefixes for service in self.models)
        return 0 if [s.close() for s in sockets] else 1

    monkeypatch.setattr(uvicorn_server.Server, "run", ready)
    threads = torch.get_num_threads()

    def call(*options: str) -> list[Any]:
        found.clear()
        assert main(("serve", "-m", "tiny", "--port", "0", "--method", "plain", *options)) == 0
        torch.set_num_threads(threads)
        return list(found)

    return call


def test_the_prefix_cache_has_room_for_the_context_by_default(kept, monkeypatch):
    monkeypatch.setattr(prefix_room, "MIN_TOKENS", 128)
    [prefixes] = kept("--context", "256")
    assert isinstance(prefixes, PrefixCache) and prefixes.most * prefixes.block == 256
    assert prefixes.tails
    [prefixes] = kept("--context", "256", "--prefix-tokens", "640")
    assert prefixes.most * prefixes.block == 640
    assert kept("--prefix-tokens", "0") == [None]


@pytest.mark.full
def test_models_share_the_memory_and_a_folder_speaks_for_its_memory(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(prefix_room, "free_memory", lambda *_: 1 << 20)
    monkeypatch.setattr(prefix_room, "FLOOR", 64)
    [one] = kept()
    first, second = kept("-m", "tiny", "--name", "a", "--name", "b")
    assert abs(first.most - one.most / 2) < 1 and first.most == second.most < 512
    [folder] = kept("--cache-dir", str(tmp_path / "kept"))
    assert isinstance(folder, PromptFolder) and folder.memory is not None
    assert folder.memory._tell is None and one._tell is not None and folder.memory.most == one.most


@pytest.mark.full
def test_requests_may_choose_the_methods_that_are_named(place, monkeypatch):
    from longdraft.server import uvicorn_server

    found: list[Any] = []

    def ready(self: uvicorn_server.Server, sockets: Any = None) -> int:
        found.append(self.models.first.methods.names)
        return 0 if [s.close() for s in sockets] else 1

    monkeypatch.setattr(uvicorn_server.Server, "run", ready)
    threads = torch.get_num_threads()
    words = ("serve", "-m", "tiny", "--port", "0", "--method", "lookup")
    assert main(words) == 0 and main((*words, "--methods", "suffix, vegas")) == 0
    torch.set_num_threads(threads)
    assert found == [["lookup", "plain"], ["lookup", "suffix", "vegas"]]


@pytest.mark.parametrize(
    ("name", "words"),
    [("longspec", "longspec needs a drafter of kind glide"), ("fast", "unknown method 'fast'")],
)
def test_a_method_that_cannot_be_built_is_refused_in_one_line(name, words, place, capsys):
    threads = torch.get_num_threads()
    options = ("--port", "0", "--method", "plain", "--methods", f"plain,{name}")
    assert main(("serve", "-m", "tiny", *options)) == 2
    torch.set_num_threads(threads)
    [line] = capsys.readouterr().err.splitlines()
    assert words in line
