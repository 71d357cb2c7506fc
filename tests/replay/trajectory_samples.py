"""Trajectories for tests, small and with every field set."""

import struct

from hypothesis import strategies as st

from bapo_lightning.types import Completion, Prompt, Trajectory


def float32(value):
    """Round to float32, as an engine's log-probs are."""
    return struct.unpack("f", struct.pack("f", value))[0]


def make_trajectory(group_id, sample_index=0, versions=(0, 0), log_probs=None, reward=1.0, **fields):
    """One trajectory whose ids tell where it came from."""
    prompt = Prompt(f"p{group_id}", ({"role": "user", "content": f"{group_id}?"},), str(group_id), "made")
    if log_probs is None:
        log_probs = [float32(-0.1 * (i + 1)) for i in range(len(versions))]
    completion = Completion(
        token_ids=tuple(1000 * group_id + 10 * sample_index + i for i in range(len(versions))),
        log_probs=tuple(log_probs),
        policy_versions=tuple(versions),
        finish_reason="stop",
    )
    fields = {"prompt_ids": (1, group_id), "sampled_version": min(versions, default=0), **fields}
    return Trajectory(
        prompt=prompt, completion=completion, group_id=group_id, sample_index=sample_index, reward=reward, **fields
    )


def make_group(group_id, versions=(0, 0), rewards=(1.0, 0.0)):
    """A group with one trajectory per reward."""
    return [make_trajectory(group_id, i, versions, reward=reward) for i, reward in enumerate(rewards)]


@st.composite
def trajectories(draw, group_id=0, sample_index=0, prompt=None):
    """Any trajectory that an engine, a reward and an estimator can make."""
    num_tokens = draw(st.integers(0, 4))
    column = lambda values: tuple(draw(st.lists(values, min_size=num_tokens, max_size=num_tokens)))  # noqa: E731
    start = draw(st.integers(0, 50))
    messages = st.one_of(
        st.text(), st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.text()})).map(tuple)
    )
    return Trajectory(
        prompt=prompt or Prompt(draw(st.text()), draw(messages), draw(st.text()), draw(st.text())),
        prompt_ids=tuple(draw(st.lists(st.integers(0, 2**31 - 1), max_size=3))) if prompt is None else (7,),
        completion=Completion(
            token_ids=column(st.integers(0, 2**31 - 1)),
            log_probs=column(st.floats(-1e3, 0, width=32)),
            policy_versions=column(st.integers(start, start + 3)),
            finish_reason=draw(st.sampled_from(["stop", "length"])),
        ),
        group_id=group_id,
        sample_index=sample_index,
        sampled_version=start,
        text=draw(st.text()),
        reward=draw(st.none() | st.floats(-2, 2)),
        reward_status=draw(st.sampled_from(["correct", "wrong", "timeout", ""])),
        reward_parts=draw(st.dictionaries(st.text(), st.none() | st.floats(-2, 2), max_size=2)),
        advantage=draw(st.floats(-5, 5)),
    )
