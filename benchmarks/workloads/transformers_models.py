"""Models of `transformers` from configurations, without weights, as a user's own workloads."""

from typing import Any

import torch
from torch import nn

NUM_TOKENS = 128


class _FirstOutput(nn.Module):
    """Returns the first output of a model that returns several."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.model(batch)[0]
        return first


def bert(batch: int, mode: str, layers: int = 4) -> tuple[nn.Module, tuple[Any, ...]]:
    """BERT with the sizes of its base version, and fewer layers."""
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=layers)
    return _FirstOutput(BertModel(config, add_pooling_layer=False)), (_draw_tokens(config, batch),)


def gpt2(batch: int, mode: str, layers: int = 4) -> tuple[nn.Module, tuple[Any, ...]]:
    """GPT-2 with the sizes of its small version, and fewer layers."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_layer=layers, use_cache=False)
    return _FirstOutput(GPT2Model(config)), (_draw_tokens(config, batch),)


def convnext(batch: int, mode: str, size: int = 128) -> tuple[nn.Module, tuple[Any, ...]]:
    """ConvNeXt with half of the layers and channels of its tiny version."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(depths=[2, 2, 4, 2], hidden_sizes=[48, 96, 192, 384], num_labels=10)
    return _FirstOutput(ConvNextForImageClassification(config)), (torch.randn(batch, 3, size, size),)


def resnet(batch: int, mode: str, size: int = 128) -> tuple[nn.Module, tuple[Any, ...]]:
    """ResNet-18."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", embedding_size=64, num_labels=10
    )
    return _FirstOutput(ResNetForImageClassification(config)), (torch.randn(batch, 3, size, size),)


def _draw_tokens(config: Any, batch: int) -> torch.Tensor:
    return torch.randint(config.vocab_size, (batch, NUM_TOKENS))
