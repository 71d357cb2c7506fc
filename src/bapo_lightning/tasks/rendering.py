"""From a prompt to the token ids that a model reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.types import Prompt


@dataclass(frozen=True)
class RenderedPrompts:
    """The prompts of a task that fit, in the order of the task."""

    items: tuple[tuple[Prompt, tuple[int, ...]], ...]
    """Prompts with their token ids; at least one."""

    num_dropped: int
    """Prompts that were longer than the limit."""


def encode_prompt(tokenizer: Any, prompt: Prompt) -> tuple[int, ...]:
    """Render and encode one prompt.

    Chat messages go through the chat template, which writes the special tokens itself: the ids are exactly those of
    ``apply_chat_template(…, add_generation_prompt=True)``, and no second start token is put before them. Plain text
    gets the special tokens that the tokenizer puts around text, except an end token: the model is to go on from here.

    Args:
        tokenizer: A Hugging Face tokenizer (``PreTrainedTokenizerBase``).
        prompt: Chat messages or plain text.

    Returns:
        The token ids, at least one.

    Raises:
        InputError: Messages meet a tokenizer without a chat template, the template refuses them, or nothing is left
            to encode.
    """
    if isinstance(prompt.messages, str):
        ids = _encode_text(tokenizer, prompt.messages)
    else:
        ids = _encode_messages(tokenizer, prompt)
    if not ids:
        raise InputError(f"prompt {prompt.id!r} has no tokens: its text is empty")
    return tuple(ids)


def render_prompts(tokenizer: Any, prompts: Sequence[Prompt], max_prompt_tokens: int) -> RenderedPrompts:
    """Encode prompts and drop those that are too long. None is ever cut: half a prompt asks another question.

    Args:
        tokenizer: A Hugging Face tokenizer.
        prompts: What the task loaded.
        max_prompt_tokens: Longest prompt in tokens, template and special tokens included; ≥ 1.

    Returns:
        The prompts that fit, with their ids, and how many were dropped.

    Raises:
        InputError: No prompt fits, or one cannot be encoded.
    """
    encoded = [(prompt, encode_prompt(tokenizer, prompt)) for prompt in prompts]
    kept = tuple((prompt, ids) for prompt, ids in encoded if len(ids) <= max_prompt_tokens)
    if not kept:
        shortest = min((len(ids) for _, ids in encoded), default=0)
        raise InputError(
            f"data.max_prompt_tokens = {max_prompt_tokens} drops all {len(encoded)} prompts; "
            f"the shortest has {shortest} tokens"
        )
    return RenderedPrompts(items=kept, num_dropped=len(encoded) - len(kept))


def _encode_messages(tokenizer: Any, prompt: Prompt) -> list[int]:
    from jinja2.exceptions import TemplateError

    if getattr(tokenizer, "chat_template", None) is None:
        raise InputError(
            f"prompt {prompt.id!r} is made of chat messages, but the tokenizer {tokenizer.name_or_path!r} has no chat "
            "template; use an instruct model, set a tokenizer that has a template, or give plain text (as_chat: false)"
        )
    messages = [dict(message) for message in prompt.messages if not isinstance(message, str)]
    try:
        # Ids straight from the template: encoding its text again would put a second start token before the first.
        ids: list[int] = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except TemplateError as error:
        raise InputError(f"the chat template refuses prompt {prompt.id!r}: {error}") from error
    return ids


def _encode_text(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text)["input_ids"]
    bare: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if ids[-1:] == [tokenizer.eos_token_id] and len(ids) > len(bare):
        added_at_end = bare[-1:] != ids[-1:] or ids[: len(bare)] == bare
        if added_at_end:
            ids = ids[:-1]
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        ids = ids[1:]  # the text opens with the start token already
    return ids
