"""Which groups are drawn: frequencies by hand, no group twice, the same draw from the same generator."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory_samples import make_group

from bapo_lightning.errors import InputError
from bapo_lightning.replay import (
    MixedSampler,
    OldestFirstSampler,
    PrioritySampler,
    RecencySampler,
    ReplayBuffer,
    UniformSampler,
)

SAMPLERS = [UniformSampler(), OldestFirstSampler(), RecencySampler(4), PrioritySampler(), MixedSampler(0.25)]


def groups_of(versions, advantages=None):
    """Group i was sampled at versions[i]; all its members have the advantage advantages[i]."""
    groups = []
    for i, version in enumerate(versions):
        size = 1.0 if advantages is None else advantages[i]
        members = make_group(i, versions=(version,) * 3)
        groups.append(tuple(replace(t, sampled_version=version, advantage=size) for t in members))
    return groups


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


@settings(max_examples=100, deadline=None)
@given(
    versions=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    data=st.data(),
    sampler=st.sampled_from(SAMPLERS),
)
def test_every_draw_is_full_and_without_repeats(versions, data, sampler):
    advantages = data.draw(st.lists(st.sampled_from([0.0, 0.5, -2.0]), min_size=len(versions), max_size=len(versions)))
    groups = groups_of(versions, advantages)
    count = data.draw(st.integers(1, len(groups)))
    drawn = sampler.draw(groups, count, gen(1), 9)
    assert len(drawn) == len(set(drawn)) == count
    assert set(drawn) <= set(range(len(groups)))
    assert sampler.draw(groups, count, gen(1), 9) == drawn


def frequencies(sampler, groups, count=1, draws=4000):
    generator = gen(5)
    hits = Counter(i for _ in range(draws) for i in sampler.draw(groups, count, generator, 9))
    return [hits[i] / draws for i in range(len(groups))]


def test_the_oldest_come_first():
    assert OldestFirstSampler().draw(groups_of([3, 1, 2]), 2, gen(), 9) == [0, 1]


def test_a_half_life_halves():
    """Ages 0, 4 and 8 at a half-life of 4: weights 1, 1/2, 1/4, so 4/7, 2/7, 1/7; 5 sigma of 4,000 draws is .039."""
    found = frequencies(RecencySampler(half_life=4), groups_of([9, 5, 1]))
    assert found == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=0.04)


def test_a_very_old_buffer_still_draws_by_age():
    """Ages 4,000 and 4,004: 2^-1000 and 2^-1001 underflow in float32; relative to the youngest they are 1 and 1/2."""
    groups = groups_of([4, 0])
    generator = gen(5)
    hits = Counter(RecencySampler(half_life=4).draw(groups, 1, generator, 4004)[0] for _ in range(4000))
    assert hits[0] / 4000 == pytest.approx(2 / 3, abs=0.04)


def test_priority_is_the_size_of_the_advantage():
    """|A| = 3 and 1: drawn 3/4 and 1/4; squared 9/10 and 1/10; exponent 0 half and half."""
    groups = groups_of([0, 0], [-3.0, 1.0])
    assert frequencies(PrioritySampler(), groups)[0] == pytest.approx(0.75, abs=0.04)
    assert frequencies(PrioritySampler(exponent=2), groups)[0] == pytest.approx(0.9, abs=0.03)
    assert frequencies(PrioritySampler(exponent=0), groups)[0] == pytest.approx(0.5, abs=0.04)


def test_without_advantage_a_group_comes_last():
    """Zero priorities and ties: the one group with an advantage is always drawn, the others fill up alike."""
    found = frequencies(PrioritySampler(), groups_of([0] * 3, [0.0, 1.0, 0.0]), count=2)
    assert found[1] == 1.0
    assert found[0] == pytest.approx(0.5, abs=0.04)
    assert sum(frequencies(PrioritySampler(), groups_of([0] * 2, [0.0, 0.0]))) == pytest.approx(1.0)


@pytest.mark.parametrize(("fraction", "fresh"), [(0.0, 0), (0.25, 1), (0.5, 2), (1.0, 4)])
def test_a_fixed_part_is_fresh(fraction, fresh):
    groups = groups_of([1, 9, 9, 2, 9, 9, 3, 4, 5])
    for seed in range(20):
        drawn = MixedSampler(fraction).draw(groups, 4, gen(seed), 9)
        assert sum(i in (1, 2, 4, 5) for i in drawn) == fresh


def test_where_one_kind_runs_short_the_other_fills_up():
    assert sorted(MixedSampler(1.0).draw(groups_of([9, 1, 2]), 3, gen(), 9)) == [0, 1, 2]
    assert sorted(MixedSampler(0.0).draw(groups_of([9, 9, 2]), 3, gen(), 9)) == [0, 1, 2]


def test_the_buffer_draws_with_its_sampler():
    buffer = ReplayBuffer(capacity=8, sampler=OldestFirstSampler())
    buffer.add([t for group in groups_of([3, 1, 2]) for t in group])
    assert [group[0].group_id for group in buffer.sample(2, gen(), 9)] == [0, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RecencySampler(0.0), "half_life"),
        (lambda: PrioritySampler(-1.0), "exponent"),
        (lambda: MixedSampler(1.5), "fresh_fraction"),
    ],
)
def test_arguments_out_of_range_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
