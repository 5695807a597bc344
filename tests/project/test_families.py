"""families.py alone names classes of models, and Transformers has each of those that it names."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from longdraft.families import FAMILIES, QWEN3_5, ModelFamily, family_of

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from diagram import modules

TABLE = "longdraft.families"
KINDS = [
    "Config",
    "ForCausalLM",
    "DecoderLayer",
    "Attention",
    "GatedDeltaNet",
    "MLP",
    "RMSNorm",
    "RotaryEmbedding",
]
STEMS = {re.sub("(Text)?Config$", "", name) for name in CONFIG_MAPPING_NAMES.values()}
CLASS = re.compile(f"({'|'.join(sorted(STEMS))})(Text)?({'|'.join(KINDS)})")
CODE = re.compile(r"transformers\.models\.(?!auto\b)\w.*")  # of a family, rather than of all


def names_in(text: str) -> Iterator[str]:
    """Every name, attribute, import and string of a module."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                yield name
            case ast.ImportFrom(module=module, names=imported):
                yield module or ""
                yield from (alias.name for alias in imported)
            case ast.Import(names=imported):
                yield from (alias.name for alias in imported)


def classes_in(text: str) -> list[str]:
    """Classes of models that a module names, and families whose code it imports."""
    return [name for name in names_in(text) if CLASS.fullmatch(name) or CODE.fullmatch(name)]


def test_no_other_module_names_classes_of_models():
    inside = modules().items()
    named = {name: classes_in(file.read_text(encoding="utf-8")) for name, file in inside}
    assert {name: found for name, found in named.items() if found and name != TABLE} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "from transformers import LlamaConfig",
        "import transformers\nmake = transformers.Gemma3TextConfig",
        "FAMILY = {'Qwen3ForCausalLM'}",
        "known = type(module).__name__ == 'MistralRMSNorm'",
        "from transformers.models.olmo import modeling_olmo",
    ],
)
def test_a_class_that_is_named_elsewhere_is_noticed(planted):
    assert len(classes_in(planted)) == 1
    assert not classes_in("from transformers import AutoConfig, AutoModelForCausalLM")
    assert not classes_in("from transformers.models.auto.modeling_auto import MODEL_MAPPING")


MLP_INSIDE = {"opt"}  # its layers have the parts of an MLP


def classes_of(family: ModelFamily) -> list[object]:
    """Those of its classes that the family's rows give a use."""
    names = [family.attention, family.layer] * bool(family.native)
    names += [family.norm] * family.fused
    if family.native:  # of experts alone, of gated MLPs alone, or of both
        sparse = [family.sparse_mlp, family.router, family.experts]
        if family.model_type not in MLP_INSIDE:
            names += [family.mlp] if hasattr(family.modeling, family.mlp) else sparse
    if family.native == "hybrid":  # of one kind
        kinds = (family.delta_net, family.convolution, family.mamba)
        names.append(next((n for n in kinds if hasattr(family.modeling, n)), kinds[0]))
    return [family.config_class, family.causal_class, *(getattr(family.modeling, n) for n in names)]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_transformers_has_the_classes(family):
    assert all(isinstance(cls, type) for cls in classes_of(family))
    assert family.config_class.model_type == family.model_type
    assert family_of(object.__new__(family.causal_class)) is family


def test_a_class_that_transformers_lacks_is_noticed():
    with pytest.raises(AttributeError):
        classes_of(ModelFamily("Llamas", "llama", native="decoder"))


def test_a_class_of_the_same_name_is_no_family():
    assert family_of(type(QWEN3_5.causal, (), {})()) is None
