"""Features of models: which backend computes them, and in which order they wrap attention."""

from __future__ import annotations

import pytest
import torch
from support import feature_models, layers, tiny

from longdraft.backends import cuda, native
from longdraft.backends.architecture import Architecture
from longdraft.backends.cuda import CudaBackend
from longdraft.backends.features import table
from longdraft.backends.features.experts import Experts
from longdraft.backends.features.feature import Call, Feature, overriding, wrapped
from longdraft.backends.features.windows import ChunkedWindows, Windows
from longdraft.backends.native import NativeBackend
from longdraft.core import Tree
from longdraft.models.lm import LM


class Planted(Feature):
    """A feature that every model has and that no backend lists."""

    @classmethod
    def of(cls, hf):
        return cls()


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.setattr(table, "FEATURES", (*table.FEATURES, Planted))


def backend_of(name: str) -> str:
    return LM(tiny.stock(name)).backend.name


def check_refused(monkeypatch) -> None:
    """A model with the feature goes to the eager backend, where the others would compute it."""
    assert backend_of("llama") == backend_of("qwen3.5") == "eager"
    monkeypatch.setattr(native, "fits", lambda *_: False)
    monkeypatch.setattr(cuda, "fits", lambda *_: True)
    assert backend_of("llama") == "eager"


def test_a_feature_that_no_backend_lists_is_left_to_the_eager_one(planted, monkeypatch):
    check_refused(monkeypatch)


def test_its_models_run_there(planted):
    lm = LM(tiny.stock("llama"))
    logits = lm(Tree.root(torch.tensor([5])), lm.new_cache(1, 8))
    want = tiny.eager("llama")(input_ids=torch.tensor([[5]]), use_cache=False).logits
    torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)


def test_models_without_it_go_to_the_others(monkeypatch):
    if native.native.library() is not None:
        assert backend_of("llama") == backend_of("qwen3.5") == backend_of("mistral-window")
        assert backend_of("llama") == "native"
    monkeypatch.setattr(native, "fits", lambda *_: False)
    monkeypatch.setattr(cuda, "fits", lambda *_: True)
    assert backend_of("llama") == backend_of("mistral-window") == "cuda"


@pytest.mark.parametrize("backend", [NativeBackend, CudaBackend])
def test_a_list_of_what_is_refused_is_caught(backend, planted, monkeypatch):
    """Planted: what the backend has not heard of it computes."""
    refused = set(table.FEATURES) - backend.SUPPORTED - {Planted}

    def computes(features) -> bool:
        return not any(type(feature) in refused for feature in features)

    monkeypatch.setattr(backend, "computes", computes)
    with pytest.raises(AssertionError):
        check_refused(monkeypatch)


@pytest.mark.parametrize("backend", [NativeBackend, CudaBackend])
def test_windows_are_computed_and_chunks_are_not(backend):
    assert backend.computes([]) and backend.computes([Windows({0: 8})])
    assert backend.computes([Windows({0: 8}), Experts(4)]) == (backend is NativeBackend)
    assert not backend.computes([ChunkedWindows([0], 8)])


def check_shown(kind: type[Feature], name: str) -> None:
    """The feature's model has it. Raises KeyError without one."""
    assert name in feature_models.models_with(kind)
    assert Architecture(feature_models.stock(name)).find(kind) is not None


SHOWN = [
    pytest.param(kind, name, marks=pytest.mark.full if more else (), id=f"{kind.__name__}-{name}")
    for kind in table.FEATURES
    for more, name in enumerate(feature_models.models_with(kind))
]


@pytest.mark.parametrize(("kind", "name"), SHOWN)
def test_a_model_shows_each_feature_of_the_table(kind, name):
    check_shown(kind, name)


def test_there_are_models_for_features_of_the_table_alone():
    assert feature_models.SHOWN_BY.keys() == {kind.__name__ for kind in table.FEATURES}


def test_a_feature_without_a_model_is_noticed(planted, monkeypatch):
    with pytest.raises(KeyError, match="no tiny model has Planted: add one to SHOWN_BY"):
        feature_models.one_of_each()
    monkeypatch.setitem(feature_models.SHOWN_BY, "Experts", ("diffllama",))  # one without experts
    with pytest.raises(AssertionError):
        check_shown(Experts, "diffllama")


@pytest.mark.parametrize(("name", "kinds"), [
    ("shared", {"SharedKeys", "UnevenLayers", "Windows"}),
    ("differential", {"Differential"}),
    ("biases", {"BiasedKeys"}),
])  # fmt: skip
def test_a_model_has_its_features_alone(name, kinds):
    features = LM(layers.stock(name)).architecture.features
    assert kinds <= {type(f).__name__ for f in features} <= kinds | {"BoundedPositions", "Experts"}


def order_of(kinds: list[type[Feature]]) -> list[str]:
    """In which order the attention of these features is called."""
    seen: list[str] = []

    def innermost(call):
        seen.append("attention")
        return call

    features = [kind() for kind in kinds]
    for feature in features:
        feature.seen = seen
    wrapped(overriding(features, "attend"), innermost)(None)
    return seen


class First(Feature):
    seen: list[str]

    def attend(self, proceed, call: Call):
        self.seen.append(type(self).__name__)
        return proceed(call)


class Second(First):
    pass


def check_order(kinds: list[type[Feature]]) -> None:
    assert order_of(kinds) == ["First", "Second", "attention"]


def test_features_wrap_attention_in_their_order():
    check_order([First, Planted, Second])  # one that changes nothing is not called


def test_another_order_is_seen():
    with pytest.raises(AssertionError):
        check_order([Second, First])


def test_models_are_asked_for_every_row_of_the_table_in_its_order(planted):
    features = table.features_of(tiny.stock("mistral-window"))
    places = [table.FEATURES.index(type(feature)) for feature in features]
    assert places == sorted(places) and type(features[-1]) is Planted
    assert len(set(table.FEATURES)) == len(table.FEATURES)
