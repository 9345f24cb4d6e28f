"""Writes two tiny chat models with random weights that vLLM serves with `--load-format dummy`: OUT/llama and OUT/qwen3next.

    .cache/vllm/bin/python -m tests.vllm.models OUT

Runs on vLLM's interpreter, which brings tokenizers and transformers. The tokenizer learns from this repository's own text.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen3NextConfig,
)

ROOT = Path(__file__).parents[2]
VOCABULARY = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
POSITIONS = 32768


def write_tokenizer(folder: Path) -> int:
    """Write a byte-level BPE tokenizer and the chat template; return how many tokens it knows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = sorted(path for kind in ("*.md", "*.py") for path in ROOT.glob(f"[!.]*/**/{kind}"))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in texts], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    fast.chat_template = (Path(__file__).parent / "template.jinja").read_text()
    fast.save_pretrained(folder)
    return len(fast)


def write_config(config: Any, architecture: str, folder: Path) -> None:
    """Write the config.json of one architecture."""
    config.architectures = [architecture]
    config.dtype = "bfloat16"
    config.save_pretrained(folder)


def write_dense(folder: Path) -> None:
    """Write a model with attention in every layer."""
    config = LlamaConfig(
        vocab_size=write_tokenizer(folder),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
    )
    write_config(config, "LlamaForCausalLM", folder)


def write_hybrid(folder: Path) -> None:
    """Write a model that keeps a running state in most layers and attention in the others."""
    config = Qwen3NextConfig(
        vocab_size=write_tokenizer(folder),
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_conv_kernel_dim=4,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
        shared_expert_intermediate_size=256,
        max_position_embeddings=POSITIONS,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    write_config(config, "Qwen3NextForCausalLM", folder)


def main(out: Path) -> None:
    """Write both, in the place of what was there."""
    shutil.rmtree(out, ignore_errors=True)
    write_dense(out / "llama")
    write_hybrid(out / "qwen3next")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
