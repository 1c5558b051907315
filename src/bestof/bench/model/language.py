"""Language models of transformers with random weights, at full width or narrow.

The results are logits (N, classes), or (N, classes, tokens): the axis of classes comes second, as
the cross entropy of a training step asks.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from bestof.bench.model.models import Size


class TextLogits(nn.Module):
    """A language model of transformers that returns its logits only."""

    def __init__(self, model: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of tokens (N, length): (N, classes) or (N, classes, length)."""
        logits: Tensor = self.model(input_ids=tokens, **self.options).logits
        return logits if logits.dim() == 2 else logits.transpose(1, 2)


def bert_base(_size: Size, narrow: bool) -> nn.Module:
    """Return BERT-base (768 wide, 12 layers), which classifies a text."""
    options: dict[str, Any] = {"num_labels": 10, **_without_dropout("hidden", "attention_probs")}
    if narrow:
        options |= {"vocab_size": NARROW, "hidden_size": 48, "num_attention_heads": 4}
        options |= {"intermediate_size": 96, "num_hidden_layers": 2}
    return TextLogits(BertForSequenceClassification(BertConfig(**options)), {})


def gpt2(_size: Size, narrow: bool) -> nn.Module:
    """Return GPT-2 small (768 wide, 12 layers), which predicts each next token."""
    options: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    if narrow:
        options |= {"vocab_size": NARROW, "n_embd": 48, "n_head": 4, "n_layer": 2}
    return TextLogits(GPT2LMHeadModel(GPT2Config(**options)), {"use_cache": False})


def llama(_size: Size, narrow: bool) -> nn.Module:
    """Return a Llama of GPT-2's size, with grouped keys, RMS norms and a gated SiLU."""
    options: dict[str, Any] = {
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
    }
    if narrow:
        options |= {"vocab_size": NARROW, "hidden_size": 48, "intermediate_size": 96}
        options |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return TextLogits(LlamaForCausalLM(LlamaConfig(**options)), {"use_cache": False})


NARROW = 80
"""The size of the vocabulary of narrow models."""


def _without_dropout(*parts: str) -> dict[str, float]:
    return {f"{part}_dropout_prob": 0.0 for part in parts}
