"""The words of the built-in task and the tokenizer that knows them."""

from typing import Any

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
DIGITS = tuple("0123456789")
EQUALS = "="
BOX_OPEN, BOX_CLOSE = "\\boxed{", "}"

OPENINGS = ("okay", "well", "right", "first", "now", "sure")
"""Any of these opens a response: a free choice, worth ln 6 nats of entropy, that no reward depends on."""

CLOSINGS = ("so", "thus", "hence", "then", "therefore", "finally")
"""Any of these comes before the box where the writer saw no error."""

FILLER = "hmm"
"""Stands for the running sums that are not stated any more after a wrong one."""

HESITATION = ("let", "me", "see")
"""What follows an attempt with an error, once or several times."""

RESTART = "wait"
"""Opens a new attempt."""

SURRENDER = "lost"
"""Ends a response without a box."""

TOKENS = (
    *(PAD, BOS, EOS, UNKNOWN),
    *DIGITS,
    *(EQUALS, BOX_OPEN, BOX_CLOSE),
    *OPENINGS,
    *CLOSINGS,
    *HESITATION,
    *(FILLER, RESTART, SURRENDER),
)
"""Every token, in the order of the ids."""

TOKEN_IDS = {token: index for index, token in enumerate(TOKENS)}


def build_tokenizer() -> Any:
    r"""Make the word-level tokenizer.

    Text is cut at spaces, digits and ``\boxed{``, so ``314=`` and ``3 1 4 =`` have the same ids. A start token is put
    before text and no end token after it. Decoding puts spaces between words: ``\boxed{ 7 }``.

    Returns:
        A ``PreTrainedTokenizerFast`` that pads on the left.
    """
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel(dict(TOKEN_IDS), unk_token=UNKNOWN))
    pieces = Regex(r"\\boxed\{|[0-9]|[A-Za-z]+|<[a-z]+>|.")
    words.pre_tokenizer = Sequence([WhitespaceSplit(), Split(pieces, behavior="isolated")])
    words.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, TOKEN_IDS[BOS])])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )
