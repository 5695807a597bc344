"""When a step is recorded, replayed and given up, and which models it declines: without a GPU, so
nothing runs here.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.tiny import stock, target

from longdraft import ops
from longdraft.backends.cuda import CudaBackend, StaticPass, has_even_heads
from longdraft.core.capture import Captures
from longdraft.core.tree import Tree
from longdraft.models.lm import LM
from longdraft.ops import noise
from longdraft.ops.triton import self_check as trial


class Recorder:
    """A step whose passes write down what is done with them."""

    def __init__(self, monkeypatch, fails: bool = False):
        self.done: list[str] = []
        self.lm = LM(stock("llama"), "llama")
        self.step = CudaBackend(self.lm.architecture)
        self.step.pool = "a pool"
        self.cache = self.lm.new_cache(1, 4096)
        self.pools = 0
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", self.new_pool)
        monkeypatch.setattr(StaticPass, "run", lambda p: self.run(p))
        monkeypatch.setattr(StaticPass, "capture", lambda p, pool: self.capture(p, fails))

    def new_pool(self) -> int:
        self.pools += 1
        return self.pools

    def run(self, p) -> None:
        self.done.append("run")
        self.fill(p)

    def fill(self, p) -> None:
        p.logits = torch.zeros(p.shape.rows, p.shape.nodes, 96)

    def capture(self, p, fails: bool) -> None:
        self.done.append("capture")
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.fill(p)
        p.graph = SimpleNamespace(replay=lambda: self.done.append("replay"))

    def __call__(self, nodes: int = 1, length: int = 100) -> torch.Tensor:
        self.cache.length.fill_(length)
        tree = Tree.chain(torch.ones(1, nodes, dtype=torch.long))
        return self.step.forward(tree, self.cache, 0, None, Captures())


def test_a_shape_runs_once_then_is_recorded_and_replayed(monkeypatch):
    step = Recorder(monkeypatch)
    step()
    assert step.done == ["run"]
    step(length=900)
    step(length=200)
    assert step.done == ["run", "capture", "replay", "replay"]


def test_a_pool_that_ended_with_its_last_graph_is_not_used_again(monkeypatch):
    step = Recorder(monkeypatch)
    for nodes in (1, 1, 2, 2):
        step(nodes)
    assert step.pools == step.step.pool == 1
    step.step.passes.clear()
    step(), step()
    assert step.pools == step.step.pool == 2


def test_a_graph_is_made_anew_where_the_bucket_or_the_number_of_nodes_grows(monkeypatch):
    step = Recorder(monkeypatch)
    for length in (100, 1023, 1024, 2047, 2048):
        step(length=length)
    assert len(step.step.passes) == 3  # 1024, 2048 and 4096 slots
    assert step(nodes=9).shape[1] == 9 and step(nodes=16).shape[1] == 16
    assert len(step.step.passes) == 4  # both of 16 nodes
    for nodes in range(17, 129):
        step(nodes=nodes)
    assert len(step.step.passes) <= 3 + 1 + 6 + 4  # 24..64 by eights, 80..128 by interleaved


def test_a_model_that_cannot_be_recorded_runs_on_without(monkeypatch):
    step = Recorder(monkeypatch, fails=True)
    step()
    with pytest.warns(
        UserWarning,
        match="no CUDA graphs for llama: operation not permitted when stream is capturing$",
    ):
        step()
    step()
    assert step.done == ["run", "capture", "run", "run"]


def test_the_oldest_graphs_go_first(monkeypatch):
    step = Recorder(monkeypatch)
    step.step.max_graphs = 2
    for nodes in (1, 2, 1, 3):
        step(nodes)
    assert [shape.nodes for shape in step.step.passes] == [1, 3]


def computed(model) -> bool:
    return CudaBackend.computes(model.features) and has_even_heads(model)


@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "mistral-window", "gemma2-softcap", "phi3", "olmo3"]
)
def test_plain_models_fit(name):
    assert computed(target(name).architecture)


@pytest.mark.parametrize("name", ["gpt-oss", "mixtral", "deepseek"])
def test_models_whose_experts_the_host_must_know_do_not(name):
    assert not computed(target(name).architecture)


def test_a_grown_cache_has_a_new_table(monkeypatch):
    cache = target("llama").new_cache(2, 8)
    first = cache.table(8, 2, 2, 16, torch.float32)
    assert (
        cache.table(5, 2, 2, 16, torch.float32) is first
        and first.shape == (2, 4)
        and first[0, 2] == 8
    )
    for layer, k in enumerate((0, 0)):
        cache.write(layer, torch.ones(2, 2, 4, 16), torch.ones(2, 2, 4, 16), [k + 6, k + 6])
    again = cache.table(9, 2, 2, 16, torch.float32)
    assert (
        again[0, 0] == cache.read(0, 0)[0].data_ptr()
        and again[1, 1] == cache.read(1, 0)[1].data_ptr()
    )
    assert again[0, 2] == cache.read(0, 0)[0].shape[1] > 8
    second = cache.row(1).table(9, 2, 2, 16, torch.float32)
    assert second[0, 0] == cache.read(0, 1)[0].data_ptr()


@pytest.fixture
def untried():
    trial.kernels.cache_clear()
    yield
    trial.kernels.cache_clear()


def test_a_kernel_that_is_wrong_here_is_not_used_and_says_so_once(monkeypatch, untried, recwarn):
    def wrong(device):
        raise ArithmeticError("attention differs\nby much")

    monkeypatch.setattr(trial, "compare", wrong)
    monkeypatch.setattr(trial, "find_spec", lambda name: True)
    assert trial.kernels() is None and trial.kernels() is None
    assert [str(w.message) for w in recwarn] == [
        "Triton kernels are not used on this device: attention differs"
    ]


def test_triton_can_be_turned_off(monkeypatch, untried):
    monkeypatch.setenv("LONGDRAFT_TRITON", "0")
    monkeypatch.setattr(trial, "compare", lambda device: pytest.fail("tried"))
    assert trial.kernels() is None


def test_tensors_on_a_cpu_never_ask_for_triton(monkeypatch):
    monkeypatch.setattr(trial, "kernels", lambda: pytest.fail("asked"))
    seed = torch.tensor([3])
    position = torch.tensor([[5]])
    assert ops.gumbel(seed, position, 10).equal(noise.gumbel(seed, position, 10))
    q = torch.randn(2, 1, 16)
    k = torch.randn(2, 4, 16)
    assert ops.attend(q, [ops.Segment(k, k)], 0.25).out.shape == (1, 2, 16)
