"""Fixtures that every room's tests may use: tiny real models with real tokenizers, made on the spot."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with goldens and benchmark data beside the project; tests that need it skip without it."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"needs the goldens and data in {folder}")
    return folder


def make_tokenizer(folder: Path) -> None:
    """A tokenizer of single characters; ``<s>`` 0, ``</s>`` 1 (the end), ``<pad>`` 2."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = list("0123456789+-*=?. abcdefghijklmnopqrstuvwxyz\\{}<>/\n|:_")
    vocabulary = {token: i for i, token in enumerate(["<s>", "</s>", "<pad>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(folder)


def make_model(folder: Path, kind: str = "qwen2", *, seed: int = 0, hidden_size: int = 32) -> Path:
    """A tiny random model of a real architecture, saved with its tokenizer.

    Args:
        folder: Where to save; made if missing.
        kind: ``qwen2`` (tied head), ``llama`` (untied head) or ``gpt2`` (absolute positions, dropout in its config).
        seed: Of the weights.
        hidden_size: Width.

    Returns:
        The folder.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    make_tokenizer(folder)
    common = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    shape = {
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**common, **shape, tie_word_embeddings=True))
        elif kind == "llama":
            model = LlamaForCausalLM(LlamaConfig(**common, **shape, tie_word_embeddings=False))
        elif kind == "gpt2":
            model = GPT2LMHeadModel(GPT2Config(**common, n_embd=hidden_size, n_layer=2, n_head=4, n_positions=256))
        else:
            raise ValueError(kind)
        # Random weights at their usual scale give an almost flat distribution; sharpen it so that tests can see errors.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3.0)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make (once per session) the folder of a tiny model: ``model_folder("llama")``."""
    made: dict[tuple[str, int], Path] = {}

    def folder(kind: str = "qwen2", seed: int = 0) -> Path:
        key = (kind, seed)
        if key not in made:
            made[key] = make_model(tmp_path_factory.mktemp(f"{kind}_{seed}"), kind, seed=seed)
        return made[key]

    return folder
