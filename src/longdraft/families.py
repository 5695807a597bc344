"""Families of models: the names of their classes in Transformers, and what longdraft does with
them.

This is the only place that names classes of models; tests/project/test_families.py checks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

PACKAGE = "transformers.models"
READS_IMAGES = "ForConditionalGeneration"


@dataclass(frozen=True)
class ModelFamily:
    """A row of the table. stem: the beginning of its classes' names.

    model_type: its name in a config. package: the folder of its code in Transformers, unless it
    is named like the model_type. config: the ending of its config's name.
    native: the step of the native backend that computes it; None: none does. fused: whether its
    norms, gates and rotations are those of Llama, for which a GPU has kernels of one launch.
    tested: whether the tests compare it with Transformers; others are compared when loaded.
    gguf: its architecture in GGUF files, if longdraft reads these itself.
    plus_one: its norms multiply by 1 + weights. gated: the queries' projection also has gates of
    the outputs. scaled: its embeddings are of a class that multiplies them. sparse: the ending of
    the name of its class of an MLP of experts. routing: the same of its router. layers: the same
    of its layers. mixers: the same of its Mamba-2 mixers. rotary: the same of its rotation. mlps:
    the same of its MLPs. delta_layers: the same of layers with a delta net, if they have a class of
    their own. attentions: the same of its attention. part: stands behind the stem in names of
    layers and of what they have but norms. inner: the beginning of its MLPs' and experts' names,
    unless these two.
    whole: the beginning of the name of a model that reads images too, where Transformers has no
    model of its text alone. around: the same of others whose text it is, and whose logits their
    heads compute from what it says, with nothing in between but a divisor.
    interleaved: numbers that are rotated together
    lie side by side. partial: it may rotate a part of each head. turns_back: its rotations are the
    other way round. turns_windows: where some layers have windows, the others do not rotate.
    late_norms: queries and keys are normalized behind the rotation. norms_embeddings: its final
    norm comes before the first layer too. scales_logits: logits are multiplied by its
    logits_scaling, by which other families divide. corrects_scores: its router's correction is
    added to scores, not to shares.
    """

    stem: str
    model_type: str
    package: str = ""
    config: str = "Config"
    native: Literal["decoder", "hybrid"] | None = None
    fused: bool = False
    tested: bool = False
    gguf: str | None = None
    plus_one: bool = False
    gated: bool = False
    scaled: bool = False
    sparse: str = "SparseMoeBlock"
    routing: str = "TopKRouter"
    layers: str = "DecoderLayer"
    mixers: str = "MambaLayer"
    mlps: str = "MLP"
    delta_layers: str = ""
    attentions: str = "Attention"
    part: str = ""
    inner: str = ""
    whole: str = ""
    around: tuple[str, ...] = ()
    rotary: str = "RotaryEmbedding"
    interleaved: bool = False
    partial: bool = False
    turns_back: bool = False
    turns_windows: bool = False
    late_norms: bool = False
    norms_embeddings: bool = False
    scales_logits: bool = False
    corrects_scores: bool = False

    @property
    def causal(self) -> str:
        return f"{self.whole}{READS_IMAGES}" if self.whole else f"{self.stem}ForCausalLM"

    @property
    def parts(self) -> str:
        """The beginning of the names of a layer's classes, but for norms."""
        return self.stem + self.part

    @property
    def layer(self) -> str:
        return self.parts + self.layers

    @property
    def delta_layer(self) -> str:
        return self.parts + (self.delta_layers or self.layers)

    @property
    def attention(self) -> str:
        return self.parts + self.attentions

    @property
    def delta_net(self) -> str:
        return f"{self.stem}GatedDeltaNet"

    @property
    def convolution(self) -> str:
        return f"{self.stem}ShortConv"

    @property
    def mamba(self) -> str:
        return self.stem + self.mixers

    @property
    def mlp(self) -> str:
        return (self.inner or self.parts) + self.mlps

    @property
    def sparse_mlp(self) -> str:
        return self.parts + self.sparse

    @property
    def router(self) -> str:
        return self.parts + self.routing

    @property
    def experts(self) -> str:
        return f"{self.inner or self.parts}Experts"

    @property
    def expert_matrices(self) -> str:
        """The part of `experts` that holds their weights, if there is one."""
        return f"{self.stem}ExpertGLU"

    @property
    def first_part(self) -> str:
        """The part of a layer that holds its attention and norms, if there is one."""
        return f"{self.stem}NormAttentionNorm"

    @property
    def scaled_embedding(self) -> str:
        return f"{self.stem}TextScaledWordEmbedding"

    @property
    def linear(self) -> str:
        """Its own class of linear layers, if there is one."""
        return f"{self.stem}Linear"

    @property
    def extension(self) -> str:
        """Reads images and sounds beside the embeddings, if there is such a part."""
        return f"{self.stem}FeatureEmbedding"

    @property
    def norm(self) -> str:
        return f"{self.stem}RMSNorm"

    @property
    def gated_norm(self) -> str:
        return f"{self.stem}RMSNormGated"

    @property
    def rotation(self) -> str:
        return self.parts + self.rotary

    @property
    def modeling(self) -> Any:
        """The module of its classes."""
        return import_module(modeling(self.package or self.model_type))

    @property
    def config_class(self) -> Any:
        return getattr(import_module("transformers"), self.stem + self.config)

    @property
    def causal_class(self) -> Any:
        return getattr(self.modeling, self.causal)

    def rotary_embedding(self, **sizes: Any) -> Any:
        """The module that computes rotations, for a config of these sizes."""
        return getattr(self.modeling, self.rotation)(self.config_class(**sizes))


def of_text(stem: str, package: str, **more: Any) -> ModelFamily:
    """The family of the text of a model that reads images, too."""
    config = "Config" if stem.endswith("Text") else "TextConfig"
    return ModelFamily(stem, f"{package}_text", package, config, native="decoder", **more)


GLM: dict[str, Any] = {"interleaved": True, "partial": True}
GLM_MOE: dict[str, Any] = {"sparse": "MoE", "routing": "TopkRouter", "partial": True}
DENSE: dict[str, Any] = {"layers": "DenseV1DecoderLayer", "attentions": "DenseV1Attention"}
LLAMA = ModelFamily("Llama", "llama", native="decoder", fused=True, tested=True, gguf="llama")
QWEN3 = ModelFamily("Qwen3", "qwen3", native="decoder", fused=True, tested=True, gguf="qwen3")
QWEN3_5 = ModelFamily(
    "Qwen3_5",
    "qwen3_5_text",
    "qwen3_5",
    "TextConfig",
    native="hybrid",
    plus_one=True,
    gated=True,
    rotary="TextRotaryEmbedding",
)
GEMMA = ModelFamily("Gemma", "gemma", native="decoder", plus_one=True, scaled=True)
GEMMA2 = ModelFamily("Gemma2", "gemma2", native="decoder", plus_one=True, scaled=True)
GEMMA3 = ModelFamily(
    "Gemma3",
    "gemma3_text",
    "gemma3",
    "TextConfig",
    native="decoder",
    gguf="gemma3",
    plus_one=True,
    scaled=True,
)
FAMILIES = (
    LLAMA,
    ModelFamily("Mistral", "mistral", native="decoder", fused=True, tested=True),
    ModelFamily("Qwen2", "qwen2", native="decoder", fused=True, tested=True, gguf="qwen2"),
    QWEN3,
    QWEN3_5,
    ModelFamily("Qwen3Moe", "qwen3_moe", native="decoder", tested=True, gguf="qwen3moe"),
    ModelFamily("Qwen2Moe", "qwen2_moe", native="decoder"),
    ModelFamily(
        "Qwen3_5Moe",
        "qwen3_5_moe_text",
        "qwen3_5_moe",
        "TextConfig",
        native="hybrid",
        plus_one=True,
        gated=True,
        rotary="TextRotaryEmbedding",
    ),
    ModelFamily("Mixtral", "mixtral", native="decoder"),
    ModelFamily("GptOss", "gpt_oss", native="decoder", tested=True, sparse="MLP", gguf="gpt-oss"),
    ModelFamily("Olmoe", "olmoe", native="decoder"),
    ModelFamily("FlexOlmo", "flex_olmo", native="decoder"),
    ModelFamily("MiniMaxM2", "minimax_m2", native="decoder", partial=True),
    ModelFamily("Ernie4_5_Moe", "ernie4_5_moe", native="decoder", interleaved=True),
    ModelFamily("GraniteMoe", "granitemoe", native="decoder", sparse="MoE"),
    ModelFamily("Dots1", "dots1", native="decoder", sparse="MoE", routing="TopkRouter"),
    ModelFamily(
        "Glm4Moe", "glm4_moe", native="decoder", sparse="MoE", routing="TopkRouter", partial=True
    ),
    ModelFamily("Dbrx", "dbrx", native="decoder", sparse="FFN", routing="Router", layers="Block"),
    ModelFamily(
        "AriaText",
        "aria_text",
        "aria",
        native="decoder",
        sparse="MoELayer",
        mlps="SharedExpertsMLP",
        inner="Aria",
    ),
    ModelFamily("Granite", "granite", native="decoder"),
    ModelFamily("SmolLM3", "smollm3", native="decoder"),
    ModelFamily("SeedOss", "seed_oss", native="decoder"),
    ModelFamily("Cwm", "cwm", native="decoder"),
    ModelFamily("Ministral", "ministral", native="decoder"),
    GEMMA,
    GEMMA2,
    GEMMA3,
    ModelFamily("Phi3", "phi3", native="decoder", partial=True),
    ModelFamily("Phi4Multimodal", "phi4_multimodal", native="decoder", partial=True),
    ModelFamily("Glm", "glm", native="decoder", interleaved=True, partial=True),
    ModelFamily("Glm4", "glm4", native="decoder", interleaved=True, partial=True),
    ModelFamily("Helium", "helium", native="decoder", interleaved=True),
    ModelFamily("Ernie4_5", "ernie4_5", native="decoder", interleaved=True),
    ModelFamily("Olmo2", "olmo2", native="decoder"),
    ModelFamily("Olmo3", "olmo3", native="decoder"),
    ModelFamily("Exaone4", "exaone4", native="decoder", turns_windows=True),
    ModelFamily("Arcee", "arcee", native="decoder"),
    ModelFamily("VaultGemma", "vaultgemma", native="decoder", plus_one=True, scaled=True),
    ModelFamily("HunYuanDenseV1", "hunyuan_v1_dense", native="decoder", late_norms=True),
    ModelFamily(
        "HunYuanMoEV1",
        "hunyuan_v1_moe",
        native="decoder",
        sparse="Moe",
        routing="Gate",
        late_norms=True,
    ),
    ModelFamily("HYV3", "hy_v3", native="decoder", sparse="MoE"),
    ModelFamily("SolarOpen", "solar_open", native="decoder", sparse="MoE", routing="TopkRouter"),
    ModelFamily("Flint", "flint", native="decoder", turns_windows=True),
    ModelFamily("Jais2", "jais2", native="decoder"),
    ModelFamily(
        "ExaoneMoe",
        "exaone_moe",
        native="decoder",
        sparse="SparseMoEBlock",
        routing="TopkRouter",
        turns_windows=True,
    ),
    ModelFamily("Starcoder2", "starcoder2", native="decoder"),
    ModelFamily("Nemotron", "nemotron", native="decoder", plus_one=True, partial=True),
    ModelFamily("Cohere", "cohere", native="decoder", interleaved=True),
    ModelFamily(
        "Cohere2",
        "cohere2",
        native="decoder",
        interleaved=True,
        turns_windows=True,
        around=("AyaVision", "Cohere2Vision"),
    ),
    ModelFamily(
        "Cohere2Moe", "cohere2_moe", native="decoder", interleaved=True, turns_windows=True
    ),
    ModelFamily(
        "CohereCompass", "cohere_compass_text", "cohere_compass", "TextConfig", native="decoder"
    ),
    ModelFamily("Ministral3", "ministral3", native="decoder"),
    ModelFamily("Mellum", "mellum", native="decoder"),
    ModelFamily("Kolibri1", "kolibri1", native="decoder", corrects_scores=True, turns_windows=True),
    ModelFamily("Laguna", "laguna", native="decoder", partial=True),
    ModelFamily(
        "Afmoe", "afmoe", native="decoder", routing="TokenChoiceRouter", turns_windows=True
    ),
    ModelFamily("Apertus", "apertus", native="decoder"),
    ModelFamily("GraniteSWA", "granite_swa", native="decoder"),
    ModelFamily("GraniteMoeShared", "granitemoeshared", native="decoder", sparse="MoE"),
    ModelFamily("GraniteMoeSWA", "granitemoe_swa", native="decoder", sparse="MoE"),
    ModelFamily("HyperCLOVAX", "hyperclovax", native="decoder", scales_logits=True),
    ModelFamily(
        "NanoChat",
        "nanochat",
        native="decoder",
        turns_back=True,
        late_norms=True,
        norms_embeddings=True,
    ),
    ModelFamily("Olmo", "olmo", native="decoder"),
    ModelFamily("Phi", "phi", native="decoder", partial=True),
    ModelFamily("StableLm", "stablelm", native="decoder", partial=True),
    ModelFamily("Persimmon", "persimmon", native="decoder", partial=True),
    ModelFamily("Falcon", "falcon", native="decoder"),
    ModelFamily("GPTNeoX", "gpt_neox", native="decoder", layers="Layer", partial=True),
    ModelFamily("Lfm2", "lfm2", native="hybrid"),
    ModelFamily("Lfm2Moe", "lfm2_moe", native="hybrid"),
    ModelFamily("Lfm3", "lfm3", native="hybrid"),
    ModelFamily("Qwen3Next", "qwen3_next", native="hybrid", plus_one=True, gated=True),
    ModelFamily(
        "OlmoHybrid",
        "olmo_hybrid",
        native="hybrid",
        layers="AttentionDecoderLayer",
        delta_layers="LinearAttentionDecoderLayer",
    ),
    of_text("Qwen2VL", "qwen2_vl", whole="Qwen2VL", inner="Qwen2"),
    of_text("Qwen2_5_VL", "qwen2_5_vl", whole="Qwen2_5_VL", inner="Qwen2"),
    of_text("Qwen2_5Omni", "qwen2_5_omni", whole="Qwen2_5OmniThinker", inner="Qwen2"),
    of_text("Qwen3VLText", "qwen3_vl", whole="Qwen3VL", around=("Cosmos3Omni",)),
    of_text("Qwen3VLMoeText", "qwen3_vl_moe", whole="Qwen3VLMoe"),
    of_text("Qwen3OmniMoe", "qwen3_omni_moe", whole="Qwen3OmniMoeThinker", part="ThinkerText"),
    of_text("Glm4v", "glm4v", whole="Glm4v", around=("Glm46V",), part="Text", **GLM),
    of_text("GlmOcr", "glm_ocr", whole="GlmOcr", part="Text", **GLM),
    of_text("Glm4vMoe", "glm4v_moe", whole="Glm4vMoe", part="Text", **GLM_MOE),
    of_text("HunYuanVL", "hunyuan_vl", whole="HunYuanVL", late_norms=True, **DENSE),
    of_text("PaddleOCR", "paddleocr_vl", whole="PaddleOCRVL"),
    of_text("Cosmos3EdgeText", "cosmos3_edge", whole="Cosmos3Edge"),
    of_text("Granite4VisionText", "granite4_vision", whole="Granite4Vision"),
    of_text("GraniteDoclingText", "granite_docling", whole="GraniteDocling"),
    ModelFamily("Emu3", "emu3_text_model", "emu3", "TextConfig", native="decoder"),
    ModelFamily("Bamba", "bamba", native="hybrid", mixers="Mixer", partial=True),
    ModelFamily("GraniteMoeHybrid", "granitemoehybrid", native="hybrid", sparse="MoE"),
    ModelFamily(
        "NemotronH",
        "nemotron_h",
        native="hybrid",
        sparse="MoE",
        routing="TopkRouter",
        layers="Block",
        mixers="Mamba2Mixer",
    ),
)


def family_of_class(cls: type) -> ModelFamily | None:
    """The family in whose file in Transformers a class is; None: in none of these."""
    names = ((f"{f.package or f.model_type}", f) for f in FAMILIES)
    return next((f for name, f in names if cls.__module__ == modeling(name)), None)


def modeling(package: str) -> str:
    """The module of a family's classes."""
    return f"{PACKAGE}.{package}.modeling_{package}"


def family_of(hf: Any) -> ModelFamily | None:
    """The family of a model that is Transformers' own and continues texts; None: another class, or
    a wrapper.
    """
    cls = type(hf)
    family = family_of_class(cls)
    if family is not None and family.causal == cls.__name__:
        return family
    inside = family_of_class(type(getattr(getattr(hf, "model", None), "language_model", None)))
    around = () if inside is None else (name + READS_IMAGES for name in inside.around)
    return inside if cls.__module__.startswith(f"{PACKAGE}.") and cls.__name__ in around else None
