"""Whether a response has the form that was asked for: a thought, then a boxed answer."""

from collections.abc import Sequence

from bapo_lightning.errors import InputError
from bapo_lightning.rewards.extraction import last_box, visible_text
from bapo_lightning.rewards.term import RewardTerm
from bapo_lightning.types import Trajectory


class AnswerFormat(RewardTerm):
    """1 where a response keeps the form, 0 where it does not.

    With ``think_tags`` there is exactly one closing tag, at most one opening tag (chat templates often put it into
    the prompt), which comes first, and text after the thought. With ``box`` the text after the thought holds a
    closed, non-empty box, the last one. A response that was cut off by the token limit has not kept the form.

    Args:
        think_tags: Opening and closing tag of the thought, for example ``[<think>, </think>]``; None asks for none.
        box: Whether the answer must be boxed.

    Raises:
        InputError: Nothing is asked for, or the tags are no pair.
    """

    def __init__(self, think_tags: tuple[str, str] | None = None, box: bool = True) -> None:
        if think_tags is None and not box:
            raise InputError("AnswerFormat asks for nothing: give think_tags, or box=true")
        if think_tags is not None and (len(set(think_tags)) != 2 or not all(think_tags)):
            raise InputError(f"think_tags must be an opening and a closing tag, got {think_tags!r}")
        self.think_tags = None if think_tags is None else (think_tags[0], think_tags[1])
        self.box = box

    def values(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """1 or 0 for each response; see `RewardTerm.values`."""
        return [float(t.completion.finish_reason == "stop" and self._is_kept(t.text)) for t in trajectories]

    def _is_kept(self, text: str) -> bool:
        if self.think_tags is not None:
            opening, closing = self.think_tags
            if text.count(closing) != 1 or text.count(opening) > 1:
                return False
            if opening in text and not text.lstrip().startswith(opening):
                return False
            text = visible_text(text, self.think_tags) or ""
        return bool((last_box(text).content or "").strip()) if self.box else bool(text.strip())
