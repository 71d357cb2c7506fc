"""The policy: one Hugging Face causal language model that scores sampled tokens."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from bapo_lightning.errors import InputError
from bapo_lightning.models.location import locate_model
from bapo_lightning.models.log_probs import scores_from_logits, token_log_probs
from bapo_lightning.models.lora import LoRA
from bapo_lightning.models.sequences import Sequences, in_one_row, in_packed_rows, in_rows, keeps_sequences_apart
from bapo_lightning.types import Completion, TokenBatch

log = logging.getLogger(__name__)

# Config entries of models whose logits are not simply head(hidden): these are scored from the model's own logits.
_LOGIT_TRANSFORMS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier")


@dataclass(frozen=True)
class TokenScores:
    """Scores of the sampled tokens of a batch at the sampling temperature."""

    log_probs: Tensor
    """[B, T] float32, nats; 0 under padding."""

    entropy: Tensor
    """[B, T] float32, nats; entropy of the distribution that each token was drawn from; 0 under padding."""


class Policy(nn.Module):
    """Any Hugging Face causal language model, by folder or hub id. Weights are loaded by `load`, not at construction.

    Args:
        path: A folder, a hub id (``Qwen/Qwen2.5-1.5B``), or ``package:NAME/FOLDER`` for a model that an installed
            Python package carries.
        tokenizer_path: Where the tokenizer lies, when not at ``path``; same forms.
        dtype: Weights are held in ``float32``, ``bfloat16`` or ``float16``. With the Trainer's ``bf16-mixed`` keep
            float32 here.
        attn_implementation: ``eager``, ``sdpa``, ``flash_attention_2``, …; None lets transformers choose.
        lora: Train adapters instead of all weights.
        gradient_checkpointing: Recompute activations in the backward pass: less memory, about a third more time.
        log_prob_chunk_size: Tokens whose logits are held at once, > 0.
        packing: Let short responses share a row when a micro-batch is scored, or all of them one row where attention is
            a flash-attention kernel. Tried once on the model; where sequences of a row would see each other, each
            response gets a row, and the log says so.
        from_pretrained: Further arguments for ``from_pretrained``, for example ``{gguf_file: model.gguf}`` or
            ``{revision: main}``.

    Raises:
        InputError: A value is unusable.
    """

    model: Any

    def __init__(
        self,
        path: str,
        tokenizer_path: str | None = None,
        dtype: str = "float32",
        attn_implementation: str | None = None,
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
        log_prob_chunk_size: int = 1024,
        packing: bool = True,
        from_pretrained: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if dtype not in ("float32", "bfloat16", "float16"):
            raise InputError(f"model.policy.dtype must be float32, bfloat16 or float16, got {dtype!r}")
        if log_prob_chunk_size <= 0:
            raise InputError(f"model.policy.log_prob_chunk_size must be at least 1, got {log_prob_chunk_size}")
        self.path = path
        self.tokenizer_path = tokenizer_path
        self.dtype_name = dtype
        self.attn_implementation = attn_implementation
        self.lora = lora
        self.gradient_checkpointing = gradient_checkpointing
        self.log_prob_chunk_size = log_prob_chunk_size
        self.packing = packing
        self.from_pretrained = dict(from_pretrained or {})
        self.model = None

    def load(self) -> "Policy":
        """Load weights, once; later calls do nothing.

        Returns:
            Itself.

        Raises:
            InputError: The model cannot be loaded, or its files lack weights.
        """
        if self.model is not None:
            return self
        model = self.build_model()
        for tensor in (*model.parameters(), *model.buffers()):
            # A file maps weights to addresses that are aligned for nothing; kernels round by alignment, and a copy of
            # the policy (data.rollout.overlap) would round apart.
            if tensor.device.type == "cpu" and tensor.data_ptr() % 64:
                tensor.data = tensor.data.clone()
        _switch_dropout_off(model)
        self.stop_ids = _stop_ids(model, self.tokenizer)
        pad_id = self.tokenizer.pad_token_id
        self.pad_id: int = self.stop_ids[0] if pad_id is None else pad_id
        # A model's own sampling defaults (top_p, repetition_penalty, …) must not reach training rollouts.
        self.shipped_generation_config = model.generation_config
        model.generation_config = type(model.generation_config)(
            eos_token_id=list(self.stop_ids), pad_token_id=self.pad_id
        )
        if self.lora is not None:
            _add_adapters(model, self.lora)
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        # Without dropout the mode changes no number, but gradient checkpointing works in train mode only.
        self.model = model.train()
        return self

    def build_model(self) -> Any:
        """Load the causal language model from ``path``; a subclass may build another one."""
        from transformers import AutoModelForCausalLM

        arguments = {"dtype": getattr(torch, self.dtype_name), **self.from_pretrained}
        if self.attn_implementation is not None:
            arguments["attn_implementation"] = self.attn_implementation
        location = locate_model(self.path)
        with _loading("model.policy.path", self.path):
            loaded: Any = AutoModelForCausalLM.from_pretrained(location, output_loading_info=True, **arguments)
        model, info = loaded
        missing = sorted(info.get("missing_keys", []))
        if missing:
            raise InputError(
                f"model.policy.path: the files of {self.path!r} lack {len(missing)} weights of the model, for example "
                f"{missing[0]!r}; they would be random. The folder is incomplete or holds another model."
            )
        return model

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer (``PreTrainedTokenizerBase``), padding on the left."""
        from transformers import AutoTokenizer

        path = self.tokenizer_path or self.path
        key = "model.policy.tokenizer_path" if self.tokenizer_path else "model.policy.path"
        extra = {k: v for k, v in self.from_pretrained.items() if k in ("gguf_file", "revision", "trust_remote_code")}
        if self.tokenizer_path:
            extra.pop("gguf_file", None)
        location = locate_model(path, key)
        with _loading(key, path):
            return AutoTokenizer.from_pretrained(location, padding_side="left", **extra)

    @property
    def reads_one_row(self) -> bool:
        """Whether a micro-batch is scored as one row without padding."""
        return self.packs and "flash" in str(getattr(self.model.config, "_attn_implementation", ""))

    @cached_property
    def packs(self) -> bool:
        """Whether several responses may share a row: asked for, and this model keeps them apart."""
        return self.packing and keeps_sequences_apart(self.model)

    def _lay_out(self, batch: TokenBatch) -> Sequences:
        if self.reads_one_row:
            return in_one_row(batch)
        return in_packed_rows(batch) if self.packs else in_rows(batch)

    @property
    def has_adapters(self) -> bool:
        """Whether adapters are trained instead of the weights themselves."""
        return self.lora is not None

    @contextmanager
    def adapters_off(self) -> Iterator[None]:
        """Inside, the policy computes with the frozen base weights."""
        self.model.disable_adapters()
        try:
            yield
        finally:
            self.model.enable_adapters()

    @property
    def max_length(self) -> int | None:
        """Longest sequence in tokens, prompt and response together, that the model has positions for."""
        return getattr(self.model.config, "max_position_embeddings", None)

    @property
    def vocabulary_size(self) -> int:
        """Token ids that the model has an embedding for."""
        size: int = self.model.get_input_embeddings().num_embeddings
        return size

    def decode(self, completion: Completion) -> str:
        """The text of a completion, without special tokens: what rewards and people read."""
        text: str = self.tokenizer.decode(list(completion.token_ids), skip_special_tokens=True)
        return text

    def score(self, batch: TokenBatch) -> TokenScores:
        """Score the sampled tokens of a batch in one forward pass.

        Args:
            batch: B responses of at most T tokens.

        Returns:
            Log-probs and entropies, [B, T], differentiable where the weights are; exactly 0 under padding.
        """
        sequences = self._lay_out(batch)
        mask = batch.response_mask
        targets = batch.response_ids[mask]
        head = self.model.get_output_embeddings()
        if any(getattr(self.model.config, name, None) is not None for name in _LOGIT_TRANSFORMS):
            logits = sequences.select(self.model(**sequences.inputs, use_cache=False).logits)
            log_probs, entropy = scores_from_logits(logits, targets, batch.temperature)
        else:
            hidden = sequences.select(self.model.base_model(**sequences.inputs, use_cache=False).last_hidden_state)
            log_probs, entropy = token_log_probs(
                hidden,
                head.weight,
                targets,
                temperature=batch.temperature,
                chunk_size=self.log_prob_chunk_size,
                bias=head.bias,
            )
        zeros = torch.zeros(mask.shape, dtype=log_probs.dtype, device=mask.device)
        return TokenScores(zeros.masked_scatter(mask, log_probs), zeros.masked_scatter(mask, entropy))


@contextmanager
def _loading(key: str, path: str) -> Iterator[None]:
    """Turn what transformers raises for an unusable model into one message."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"{key}: cannot load {path!r}: {reason[0]}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{key}: cannot load {path!r}: {error}") from error


def _switch_dropout_off(model: nn.Module) -> None:
    """Set every dropout to 0, in modules and in the config that functional attention reads.

    Probability 0 holds in train and in eval mode, so no mode switch can bring dropout back into a log-prob pass.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Union of the end ids of tokenizer and generation config, the tokenizer's first."""
    ids: list[int] = []
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    configured = getattr(model.generation_config, "eos_token_id", None)
    for stop_id in configured if isinstance(configured, list) else [configured]:
        if stop_id is not None and stop_id not in ids:
            ids.append(stop_id)
    if not ids:
        raise InputError(
            "model.policy.path: neither the tokenizer nor generation_config.json names an end-of-sequence token, so no "
            "response could ever end; set eos_token_id in the model's generation_config.json"
        )
    return tuple(ids)


def _add_adapters(model: Any, lora: LoRA) -> None:
    from peft import LoraConfig

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=lora.target_modules,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        model.add_adapter(config)
    except ValueError as error:
        raise InputError(f"model.policy.lora: {error}") from error
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
