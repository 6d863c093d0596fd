"""Small models of the libraries that most people take theirs from, with random weights. One that is absent skips a test."""

from typing import Any

import pytest
from torch import nn

from tests.support.torchvisions import torchvision_imported

WORDS, LONGEST = 40, 24


def _of_transformers(kind: str, config: str, **sizes: Any) -> nn.Module:
    torchvision_imported()
    transformers = pytest.importorskip("transformers")
    module: nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**sizes))
    return module


def bert(layers: int = 2, width: int = 16) -> nn.Module:
    """BERT that names the class of a text."""
    return _of_transformers(
        *("BertForSequenceClassification", "BertConfig"),
        vocab_size=WORDS,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=LONGEST,
        num_labels=3,
    )


def gpt2(layers: int = 2, width: int = 16, words: int = WORDS, heads: int = 2) -> nn.Module:
    """GPT-2, a language model."""
    return _of_transformers(
        *("GPT2LMHeadModel", "GPT2Config"),
        vocab_size=words,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_positions=LONGEST if words == WORDS else 1024,
        bos_token_id=0,
        eos_token_id=0,
    )


def vit(layers: int = 2, width: int = 16) -> nn.Module:
    """A transformer of patches of pictures."""
    return _of_transformers(
        *("ViTForImageClassification", "ViTConfig"),
        image_size=16,
        patch_size=4,
        num_channels=1,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * width,
        num_labels=3,
    )


def llama(layers: int = 2, width: int = 16) -> nn.Module:
    """A decoder with rotary places."""
    return _of_transformers(
        *("LlamaForCausalLM", "LlamaConfig"),
        vocab_size=WORDS,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=2 * width,
        max_position_embeddings=LONGEST,
        bos_token_id=0,
        eos_token_id=0,
    )


def adapted_gpt2(layers: int = 2, width: int = 16, words: int = WORDS, heads: int = 2, rank: int = 2) -> nn.Module:
    """GPT-2 with adapters of low rank, by peft."""
    torchvision_imported()
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=rank, target_modules=["c_attn"], fan_in_fan_out=True)
    module: nn.Module = peft.get_peft_model(gpt2(layers, width, words, heads), config)
    return module


def efficientnet() -> nn.Module:
    """torchvision's smallest EfficientNet, made narrower."""
    torchvision_imported()
    models = pytest.importorskip("torchvision.models")
    block = models.efficientnet.MBConvConfig
    settings = [
        block(1, 3, 1, 8, 4, 1, 1.0, 1.0),
        block(4, 3, 2, 4, 8, 2, 1.0, 1.0),
        block(4, 5, 2, 8, 12, 1, 1.0, 1.0),
    ]
    module: nn.Module = models.EfficientNet(settings, dropout=0.2, num_classes=3, last_channel=24)
    return module
