"""The models of `zoo.py`: public architectures in small sizes, with random weights and keyword inputs.

A builder returns a module in evaluation mode and a function that makes inputs from a seed and a batch size.
Models of a package that is not installed are skipped.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

Inputs = dict[str, Any]
MakeInputs = Callable[[int, int], Inputs]
Builder = Callable[[], tuple[Any, MakeInputs]]

SIZES = ("small", "base")
# Selects the size in the processes of `zoo.py`.
SIZE_VARIABLE = "COREWISE_ZOO_SIZE"
IS_BASE = os.environ.get(SIZE_VARIABLE) == "base"
BATCH = 4 if IS_BASE else 2
VOCABULARY = 1000
TOKENS = 128 if IS_BASE else 64
IMAGE_SIZE = 224 if IS_BASE else 128
# Widths of the small models are multiplied by this for the base size: 256 becomes 768, and 4 heads become 12.
WIDTH_FACTOR = 3 if IS_BASE else 1
# Options of configurations that are widths or numbers of heads.
_WIDTH_OPTIONS = frozenset(
    (
        *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "dim", "hidden_dim"),
        *("n_embd", "n_head", "n_heads", "num_heads", "d_model", "d_ff", "d_inner", "ffn_dim", "word_embed_proj_dim"),
        *("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "embed_dim"),
        *("projection_dim", "hidden_sizes", "conv_dim", "embedding_size"),
    )
)
# Their default widths are those of a published version.
_PUBLISHED = frozenset(("efficientnet", "mobilenet_v2", "mobilevit", "cvt"))
_TEXT = {"vocab_size": VOCABULARY, "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
_ENCODER = {**_TEXT, "intermediate_size": 1024}
_DECODER = {**_ENCODER, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_VISION = {"hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 768}
_IMAGE = {"image_size": IMAGE_SIZE, "patch_size": 16}


def make_tokens(*names: str, length: int = TOKENS) -> MakeInputs:
    """Make token ids and, where named, an attention mask that hides the end of the first text."""
    import torch

    def make(seed: int, batch: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, length - length // 4 :] = 0
        ids = torch.randint(3, VOCABULARY, (batch, length), generator=generator)
        values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        values["decoder_input_ids"] = torch.randint(3, VOCABULARY, (batch, length // 2), generator=generator)
        return {name: values[name] for name in names}

    return make


def make_images(name: str = "pixel_values", size: int = IMAGE_SIZE) -> MakeInputs:
    """Make images of random values."""
    import torch

    def make(seed: int, batch: int) -> Inputs:
        return {name: torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))}

    return make


def _make_clip_inputs() -> MakeInputs:
    tokens, images = make_tokens("input_ids", "attention_mask", length=16), make_images()
    return lambda seed, batch: {**tokens(seed, batch), **images(seed, batch)}


def _make_features(name: str, *sizes: int) -> MakeInputs:
    import torch

    def make(seed: int, batch: int) -> Inputs:
        return {name: torch.randn(batch, *sizes, generator=torch.Generator().manual_seed(seed))}

    return make


def _make_whisper_inputs() -> MakeInputs:
    features, tokens = _make_features("input_features", 80, 200), make_tokens("decoder_input_ids", length=16)
    return lambda seed, batch: {**features(seed, batch), **tokens(seed, batch)}


def _list_transformers() -> Mapping[str, tuple[str, dict[str, Any], Callable[[], MakeInputs]]]:
    """List model class, options of its configuration, and inputs, by name."""

    def text() -> MakeInputs:
        return make_tokens("input_ids", "attention_mask")

    def pair() -> MakeInputs:
        return make_tokens("input_ids", "attention_mask", "decoder_input_ids")

    def image() -> MakeInputs:
        return make_images()

    vit = {**_VISION, **_IMAGE}
    gpt2 = {"vocab_size": VOCABULARY, "n_embd": 256, "n_layer": 3, "n_head": 4}
    bart = {
        "vocab_size": VOCABULARY,
        "d_model": 256,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 1024,
        "decoder_ffn_dim": 1024,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }
    clip = {
        "text_config": {**_ENCODER, "projection_dim": 128, "max_position_embeddings": 64, "eos_token_id": 2},
        "vision_config": {**vit, "projection_dim": 128},
        "projection_dim": 128,
    }
    stages = {"hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1]}
    roberta = {**_ENCODER, "pad_token_id": 0, "max_position_embeddings": 2 + TOKENS}
    wav = {
        **_ENCODER,
        "vocab_size": 32,
        "conv_dim": [128] * 5,
        "conv_stride": [5, 2, 2, 2, 2],
        "conv_kernel": [10, 3, 3, 3, 2],
        "num_feat_extract_layers": 5,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
    }
    return {
        "bert": ("BertModel", _ENCODER, lambda: make_tokens("input_ids", "attention_mask", "token_type_ids")),
        "roberta": ("RobertaModel", roberta, text),
        "albert": ("AlbertModel", {**_ENCODER, "embedding_size": 128}, text),
        "distilbert": (
            "DistilBertModel",
            {"vocab_size": VOCABULARY, "dim": 256, "n_layers": 3, "n_heads": 4, "hidden_dim": 1024},
            text,
        ),
        "electra": ("ElectraModel", {**_ENCODER, "embedding_size": 128}, text),
        "deberta_v2": (
            "DebertaV2Model",
            {**_ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 32},
            text,
        ),
        "mpnet": ("MPNetModel", roberta, text),
        "gpt2": ("GPT2Model", gpt2, text),
        "gpt2_lm": ("GPT2LMHeadModel", {**gpt2, "use_cache": False}, text),
        "gpt_neo": (
            "GPTNeoModel",
            {
                "vocab_size": VOCABULARY,
                "hidden_size": 256,
                "num_layers": 2,
                "num_heads": 4,
                "attention_types": [[["global", "local"], 1]],
            },
            text,
        ),
        "gpt_neox": ("GPTNeoXModel", _ENCODER, text),
        "gptj": ("GPTJModel", {**gpt2, "rotary_dim": 32}, text),
        "bloom": ("BloomModel", {"vocab_size": VOCABULARY, "hidden_size": 256, "n_layer": 3, "n_head": 4}, text),
        "opt": ("OPTModel", {**_TEXT, "ffn_dim": 1024, "word_embed_proj_dim": 256, "pad_token_id": 0}, text),
        "llama": ("LlamaModel", _DECODER, text),
        "llama_lm": ("LlamaForCausalLM", {**_DECODER, "use_cache": False}, text),
        "mistral": ("MistralModel", {**_DECODER, "sliding_window": 32}, text),
        "qwen2": ("Qwen2Model", _DECODER, text),
        "gemma": ("GemmaModel", {**_DECODER, "head_dim": 64}, text),
        "phi": ("PhiModel", {**_DECODER, "num_key_value_heads": 4}, text),
        "mixtral": ("MixtralModel", {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}, text),
        "t5": (
            "T5Model",
            {"vocab_size": VOCABULARY, "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 2, "num_heads": 4},
            pair,
        ),
        "bart": ("BartModel", bart, pair),
        "pegasus": ("PegasusModel", bart, pair),
        "whisper": (
            "WhisperModel",
            {**bart, "max_source_positions": 100, "max_target_positions": 64, "num_mel_bins": 80},
            _make_whisper_inputs,
        ),
        "xlnet": ("XLNetModel", {"vocab_size": VOCABULARY, "d_model": 256, "n_layer": 2, "n_head": 4}, text),
        "funnel": (
            "FunnelModel",
            {
                "vocab_size": VOCABULARY,
                "block_sizes": [1, 1, 1],
                "d_model": 256,
                "n_head": 4,
                "d_head": 64,
                "d_inner": 1024,
            },
            text,
        ),
        "longformer": ("LongformerModel", {**roberta, "attention_window": 32}, text),
        "big_bird": ("BigBirdModel", {**_ENCODER, "attention_type": "original_full"}, text),
        "mamba": (
            "MambaModel",
            {"vocab_size": VOCABULARY, "hidden_size": 256, "num_hidden_layers": 2, "state_size": 8},
            lambda: make_tokens("input_ids"),
        ),
        "vit": ("ViTModel", vit, image),
        "deit": ("DeiTModel", vit, image),
        "beit": ("BeitModel", {**vit, "use_relative_position_bias": True}, image),
        "dinov2": ("Dinov2Model", vit, image),
        "swin": (
            "SwinModel",
            {"image_size": IMAGE_SIZE, "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6], "window_size": 4},
            image,
        ),
        "convnext": ("ConvNextModel", stages, image),
        "resnet": (
            "ResNetModel",
            {"embedding_size": 32, "hidden_sizes": [64, 128, 256], "depths": [1, 2, 1], "layer_type": "bottleneck"},
            image,
        ),
        "mobilenet_v2": ("MobileNetV2Model", {"image_size": IMAGE_SIZE}, image),
        "efficientnet": (
            "EfficientNetModel",
            {
                "image_size": IMAGE_SIZE,
                "width_coefficient": 1.0,
                "depth_coefficient": 1.0,
                "hidden_dim": 1280,
                "initializer_range": 0.2,
            },
            image,
        ),
        "regnet": (
            "RegNetModel",
            {"embedding_size": 32, "hidden_sizes": [64, 128, 256], "depths": [1, 2, 1], "groups_width": 16},
            image,
        ),
        "segformer": (
            "SegformerModel",
            {"hidden_sizes": [32, 64, 128, 128], "num_attention_heads": [1, 2, 4, 4], "depths": [1, 1, 1, 1]},
            image,
        ),
        "mobilevit": ("MobileViTModel", {"image_size": IMAGE_SIZE, "num_attention_heads": 4}, image),
        "poolformer": ("PoolFormerModel", {"hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1]}, image),
        "levit": (
            "LevitModel",
            {
                "image_size": IMAGE_SIZE,
                "hidden_sizes": [128, 192, 256],
                "num_attention_heads": [4, 6, 8],
                "depths": [1, 1, 1],
            },
            image,
        ),
        "cvt": ("CvtModel", {}, image),
        "clip": ("CLIPModel", clip, _make_clip_inputs),
        "wav2vec2": ("Wav2Vec2Model", wav, lambda: _make_features("input_values", 8000)),
        "hubert": ("HubertModel", wav, lambda: _make_features("input_values", 8000)),
        "timesformer": (
            "TimesformerModel",
            {**_VISION, "image_size": 64, "patch_size": 16, "num_frames": 4},
            lambda: _make_features("pixel_values", 4, 3, 64, 64),
        ),
    }


def _build_transformers(name: str) -> Any:
    import transformers

    cls, options, inputs = _list_transformers()[name]
    model = getattr(transformers, cls)
    factor = 1 if name in _PUBLISHED else WIDTH_FACTOR
    return model(model.config_class(**scale_widths(options, factor))), inputs()


def scale_widths(options: Mapping[str, Any], factor: int) -> dict[str, Any]:
    """Multiply the widths among the options of a configuration, also in nested ones."""
    scaled = dict(options)
    for name, value in options.items():
        if isinstance(value, Mapping):
            scaled[name] = scale_widths(value, factor)
        elif name in _WIDTH_OPTIONS:
            scaled[name] = [factor * one for one in value] if isinstance(value, list) else factor * value
    return scaled


def _build_torchvision(name: str) -> Any:
    import torchvision  # type: ignore[import-not-found, unused-ignore]

    return torchvision.models.get_model(name, weights=None), make_images("x", 224)


def _build_timm(name: str) -> Any:
    import timm  # type: ignore[import-not-found, unused-ignore]

    return timm.create_model(name, pretrained=False), make_images("x", 224)


def _build_named(package: str, name: str) -> Any:
    import torch

    torch.manual_seed(0)
    if package == "torchvision":
        module, make = _build_torchvision(name)
    elif package == "timm":
        module, make = _build_timm(name)
    else:
        module, make = _build_transformers(name)
    _set_norm_statistics(module, make)
    return module.eval(), make


def _set_norm_statistics(module: Any, make: MakeInputs) -> None:
    """Give batch norms the statistics of one batch; without them, values of deep networks vanish."""
    import torch

    module.eval()
    norms = [part for part in module.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.train()
        norm.momentum = None
    with torch.no_grad():
        if norms:
            module(**make(99, 4 * BATCH))


_TORCHVISION = (
    *("alexnet", "densenet121", "efficientnet_b0", "googlenet", "mobilenet_v3_small", "regnet_y_400mf"),
    *("resnet18", "resnet50", "shufflenet_v2_x1_0", "squeezenet1_1", "swin_t", "vgg11_bn", "vit_b_16"),
)
_TIMM = (
    "mixer_s32_224",
    "convnext_atto",
    "deit_tiny_patch16_224",
    "efficientnet_lite0",
    "ghostnet_100",
    "resmlp_12_224",
)


def list_models() -> dict[str, Builder]:
    """List builders by name; names of torchvision and timm start with the package."""
    found: dict[str, tuple[str, str]] = {}
    if is_installed("transformers"):
        found.update({name: ("transformers", name) for name in _list_transformers()})
    for package, names in (("torchvision", _TORCHVISION), ("timm", _TIMM)):
        if is_installed(package):
            found.update({f"{package}/{name}": (package, name) for name in names})
    return {name: functools.partial(_build_named, *key) for name, key in found.items()}


def is_installed(package: str) -> bool:
    """Return whether a package can be found, without importing it."""
    return importlib.util.find_spec(package) is not None
