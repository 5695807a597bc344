"""Families of models: the names of their classes in Transformers, and what longdraft does with
them.

This is the only place that names classes of models; tests/project/test_families.py checks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

PACKAGE = "transformers.models"
READS_IMAGES = "ForConditionalGeneration"


@dataclass(frozen=True)
class ModelFamily:
    """A row of the table. stem: the beginning of its classes' names.

    model_type: its name in a config. package: the folder of its code in Transformers, unless it
    is named like the model_type. config: the ending of its config's name. heads: the
    same of its causal class's.
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
    heads: str = "ForCausalLM"
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
        return f"{self.whole}{READS_IMAGES}" if self.whole else self.stem + self.heads

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
    def scaled_embeddings(self) -> tuple[str, str]:
        return (f"{self.stem}TextScaledWordEmbedding", f"{self.stem}ScaledWordEmbedding")

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
    def positions(self) -> str:
        return f"{self.stem}LearnedPositionalEmbedding"

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
    def is_there(self) -> bool:
        """Whether this version of Transformers has it."""
        return hasattr(import_module("transformers"), self.stem + self.config)

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
decoder = partial(ModelFamily, native="decoder")
hybrid = partial(ModelFamily, native="hybrid")
LLAMA = decoder("Llama", "llama", fused=True, tested=True, gguf="llama")
QWEN3 = decoder("Qwen3", "qwen3", fused=True, tested=True, gguf="qwen3")
QWEN3_5 = hybrid(
    "Qwen3_5",
    "qwen3_5_text",
    "qwen3_5",
    "TextConfig",
    gguf="qwen35",
    plus_one=True,
    gated=True,
    rotary="TextRotaryEmbedding",
)
GEMMA = decoder("Gemma", "gemma", plus_one=True, scaled=True)
GEMMA2 = decoder("Gemma2", "gemma2", gguf="gemma2", plus_one=True, scaled=True)
GEMMA3 = decoder(
    "Gemma3", "gemma3_text", "gemma3", "TextConfig", gguf="gemma3", plus_one=True, scaled=True
)
FAMILIES = (
    LLAMA,
    decoder("Mistral", "mistral", fused=True, tested=True),
    decoder("Qwen2", "qwen2", fused=True, tested=True, gguf="qwen2"),
    QWEN3,
    QWEN3_5,
    decoder("Qwen3Moe", "qwen3_moe", tested=True, gguf="qwen3moe"),
    decoder("Qwen2Moe", "qwen2_moe", gguf="qwen2moe"),
    hybrid(
        "Qwen3_5Moe",
        "qwen3_5_moe_text",
        "qwen3_5_moe",
        "TextConfig",
        gguf="qwen35moe",
        plus_one=True,
        gated=True,
        rotary="TextRotaryEmbedding",
    ),
    decoder("Mixtral", "mixtral"),
    decoder("GptOss", "gpt_oss", tested=True, sparse="MLP", gguf="gpt-oss"),
    decoder("Olmoe", "olmoe", gguf="olmoe"),
    decoder("FlexOlmo", "flex_olmo"),
    decoder("MiniMaxM2", "minimax_m2", gguf="minimax-m2", partial=True),
    decoder("Ernie4_5_Moe", "ernie4_5_moe", gguf="ernie4_5-moe", interleaved=True),
    decoder("GraniteMoe", "granitemoe", gguf="granitemoe", sparse="MoE"),
    decoder("Dots1", "dots1", gguf="dots1", sparse="MoE", routing="TopkRouter"),
    decoder(
        "Glm4Moe", "glm4_moe", gguf="glm4moe", sparse="MoE", routing="TopkRouter", partial=True
    ),
    decoder("Dbrx", "dbrx", sparse="FFN", routing="Router", layers="Block"),
    decoder(
        "AriaText", "aria_text", "aria", sparse="MoELayer", mlps="SharedExpertsMLP", inner="Aria"
    ),
    decoder("Granite", "granite", gguf="granite"),
    decoder("SmolLM3", "smollm3", gguf="smollm3"),
    decoder("SeedOss", "seed_oss", gguf="seed_oss"),
    decoder("Cwm", "cwm"),
    decoder("Ministral", "ministral"),
    GEMMA,
    GEMMA2,
    GEMMA3,
    decoder("Phi3", "phi3", gguf="phi3", partial=True),
    decoder("Phi4Multimodal", "phi4_multimodal", partial=True),
    decoder("Glm", "glm", interleaved=True, partial=True),
    decoder("Glm4", "glm4", gguf="glm4", interleaved=True, partial=True),
    decoder("Helium", "helium", interleaved=True),
    decoder("Ernie4_5", "ernie4_5", gguf="ernie4_5", interleaved=True),
    decoder("Olmo2", "olmo2", gguf="olmo2"),
    decoder("Olmo3", "olmo3"),
    decoder("Exaone4", "exaone4", gguf="exaone4", turns_windows=True),
    decoder("Arcee", "arcee"),
    decoder("VaultGemma", "vaultgemma", plus_one=True, scaled=True),
    decoder("HunYuanDenseV1", "hunyuan_v1_dense", gguf="hunyuan-dense", late_norms=True),
    decoder(
        "HunYuanMoEV1",
        "hunyuan_v1_moe",
        gguf="hunyuan-moe",
        sparse="Moe",
        routing="Gate",
        late_norms=True,
    ),
    decoder("HYV3", "hy_v3", sparse="MoE"),
    decoder("SolarOpen", "solar_open", sparse="MoE", routing="TopkRouter"),
    decoder("Flint", "flint", turns_windows=True),
    decoder("Jais2", "jais2"),
    decoder(
        "ExaoneMoe", "exaone_moe", sparse="SparseMoEBlock", routing="TopkRouter", turns_windows=True
    ),
    decoder("Starcoder2", "starcoder2", gguf="starcoder2"),
    decoder("Nemotron", "nemotron", gguf="nemotron", plus_one=True, partial=True),
    decoder("Cohere", "cohere", gguf="command-r", interleaved=True),
    decoder(
        "Cohere2",
        "cohere2",
        gguf="cohere2",
        interleaved=True,
        turns_windows=True,
        around=("AyaVision", "Cohere2Vision"),
    ),
    decoder("Cohere2Moe", "cohere2_moe", interleaved=True, turns_windows=True),
    decoder("CohereCompass", "cohere_compass_text", "cohere_compass", "TextConfig"),
    decoder("Ministral3", "ministral3", gguf="mistral3"),
    decoder("Mellum", "mellum"),
    decoder("Kolibri1", "kolibri1", corrects_scores=True, turns_windows=True),
    decoder("Laguna", "laguna", partial=True),
    decoder("Afmoe", "afmoe", routing="TokenChoiceRouter", turns_windows=True),
    decoder("Apertus", "apertus"),
    decoder("GraniteSWA", "granite_swa"),
    decoder("GraniteMoeShared", "granitemoeshared", sparse="MoE"),
    decoder("GraniteMoeSWA", "granitemoe_swa", sparse="MoE"),
    decoder("HyperCLOVAX", "hyperclovax", scales_logits=True),
    decoder("NanoChat", "nanochat", turns_back=True, late_norms=True, norms_embeddings=True),
    decoder("Olmo", "olmo"),
    decoder("Phi", "phi", partial=True),
    decoder("StableLm", "stablelm", partial=True),
    decoder("Persimmon", "persimmon", partial=True),
    decoder("Falcon", "falcon"),
    decoder("GPTNeoX", "gpt_neox", layers="Layer", partial=True),
    decoder("DeepseekV2", "deepseek_v2", sparse="Moe", routing="TopkRouter", interleaved=True),
    decoder("DeepseekV3", "deepseek_v3", gguf="deepseek2", sparse="MoE", routing="TopkRouter"),
    decoder("Glm4MoeLite", "glm4_moe_lite", sparse="MoE", routing="TopkRouter"),
    decoder("AXK1", "axk1", sparse="MoE", routing="TopkRouter"),
    decoder("MiniCPM3", "minicpm3", gguf="minicpm3", scaled=True),
    decoder("Youtu", "youtu"),
    decoder("GPT2", "gpt2", heads="LMHeadModel", layers="Block"),
    decoder("GPTBigCode", "gpt_bigcode", layers="Block"),
    decoder("OPT", "opt"),
    hybrid("Lfm2", "lfm2", gguf="lfm2"),
    hybrid("Lfm2Moe", "lfm2_moe", gguf="lfm2moe"),
    hybrid("Lfm3", "lfm3"),
    hybrid("Qwen3Next", "qwen3_next", gguf="qwen3next", plus_one=True, gated=True),
    hybrid(
        "OlmoHybrid",
        "olmo_hybrid",
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
    decoder("Emu3", "emu3_text_model", "emu3", "TextConfig"),
    hybrid("Bamba", "bamba", mixers="Mixer", partial=True),
    hybrid("GraniteMoeHybrid", "granitemoehybrid", gguf="granitehybrid", sparse="MoE"),
    hybrid(
        "NemotronH",
        "nemotron_h",
        gguf="nemotron_h",
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
