"""Keys are read as they were written, whatever order vLLM's CPU kernels store them in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from longdraft_vllm.cpu import Runner, key_pages, order_of
from vllm import _custom_ops as ops


@pytest.mark.parametrize("isa", ["vec", "vec16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("page", "size"), [(32, 32), (32, 64), (128, 128), (64, 256)])
def test_keys_come_back(isa, dtype, page, size):
    heads = 2
    blocks = torch.tensor([3, 1, 4])
    cache = torch.zeros(6, heads, page, 2 * size, dtype=dtype)
    keys = torch.randn(3 * page, heads, size, dtype=dtype)
    slots = (blocks[:, None] * page + torch.arange(page)).flatten()
    both = cache.view(6, heads, 2 * page, size)
    ops.cpu_attn_reshape_and_cache(keys, keys, both[:, :, :page], both[:, :, page:], slots, isa)
    runner = Runner.__new__(Runner)
    runner.order = order_of(page, size, dtype, isa)
    assert torch.equal(
        runner.keys_of(SimpleNamespace(kv_cache=cache), blocks), keys.transpose(0, 1)
    )
    runner.order = torch.arange(page * size)  # a layout that is not theirs
    assert not torch.equal(
        runner.keys_of(SimpleNamespace(kv_cache=cache), blocks), keys.transpose(0, 1)
    )


def test_any_order_is_found(monkeypatch):
    """As of the AMX kernels, which store pairs of dimensions side by side."""
    page = 32
    size = 64

    def write(key, value, key_cache, value_cache, slots, isa):
        pairs = key[:, 0].view(page, size // 2, 2).transpose(0, 1)
        key_cache.view(-1)[:] = pairs.flatten()

    monkeypatch.setattr(ops, "cpu_attn_reshape_and_cache", write)
    order = order_of(page, size, torch.bfloat16, "amx")
    keys = torch.randn(page, size)
    assert torch.equal(
        keys.view(page, size // 2, 2).transpose(0, 1).flatten()[order].view(page, size), keys
    )


def test_what_is_not_an_order_is_refused(monkeypatch):
    monkeypatch.setattr(
        ops, "cpu_attn_reshape_and_cache", lambda key, value, key_cache, *rest: key_cache.fill_(1)
    )
    with pytest.raises(RuntimeError, match="vegas cannot read keys as the vec kernels"):
        order_of(32, 64, torch.float32, "vec")


def test_key_pages_come_first():
    cache = torch.arange(2 * 1 * 4 * 6).view(2, 1, 4, 6)
    assert key_pages(cache)[0, 0].flatten().tolist() == list(range(12))
