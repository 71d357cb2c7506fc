"""Finished responses for tests of reward terms."""

from bapo_lightning.types import Completion, Prompt, Trajectory


def respond(text="", *, ids=(), num_tokens=None, answer="4", finish_reason="stop", status="correct", prompt="2 + 2?"):
    """One finished response; its tokens by id or by number."""
    ids = tuple(ids) if num_tokens is None else tuple(range(num_tokens))
    zeros = (0,) * len(ids)
    return Trajectory(
        prompt=Prompt("p", ({"role": "user", "content": prompt},), answer),
        prompt_ids=(1,),
        completion=Completion(ids, tuple(-1.0 for _ in ids), zeros, finish_reason),
        group_id=0,
        sample_index=0,
        sampled_version=0,
        text=text,
        reward_status=status,
    )
