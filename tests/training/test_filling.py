"""Dynamic sampling without an engine: how often is sampled, what is kept, when it ends."""

import pytest

from bapo_lightning import filling
from bapo_lightning.errors import InputError
from bapo_lightning.types import Completion, Prompt, Trajectory


def fill(source, num_groups, *, at_least=None, max_generations=1, max_waits=4, drop_uniform=True):
    return filling.fill_phase(
        source,
        num_groups,
        at_least=num_groups if at_least is None else at_least,
        max_generations=max_generations,
        max_waits=max_waits,
        drop_uniform=drop_uniform,
    )


class Source:
    """Groups of two; group g teaches if ``teaches(g)``. Counts what it was asked for."""

    def __init__(self, teaches):
        self.teaches = teaches
        self.asked = []
        self.next_group = 0

    num_under_way = 0

    def go_on(self, num_groups):
        return self.start(num_groups)

    def start(self, num_groups):
        self.asked.append(num_groups)
        groups = range(self.next_group, self.next_group + num_groups)
        self.next_group += num_groups
        return [self.trajectory(group, sample) for group in groups for sample in (0, 1)]

    def trajectory(self, group, sample):
        reward = 1.0 if sample or not self.teaches(group) else 0.0
        return Trajectory(
            prompt=Prompt(str(group), "", ""),
            prompt_ids=(1,),
            completion=Completion((2,), (-1.0,), (0,), "stop"),
            group_id=group,
            sample_index=sample,
            sampled_version=0,
            reward=reward,
            reward_status="correct" if reward else "wrong",
        )


def test_each_generation_samples_what_is_missing():
    """Every other group teaches: 8 give 4, 4 more give 2, then 2 and 1 and 1: full after 16 groups."""
    source = Source(lambda group: group % 2 == 0)
    filled = fill(source, 8, max_generations=10, drop_uniform=True)
    assert source.asked == [8, 4, 2, 1, 1][: len(source.asked)]
    assert [group[0].group_id for group in filled.kept] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert filled.generations == len(source.asked)
    assert filled.num_uniform == source.next_group - 8
    assert len(filled.sampled) == 2 * source.next_group


def test_it_ends_with_what_there_is():
    source = Source(lambda group: group == 1)
    filled = fill(source, 4, max_generations=3, drop_uniform=True)
    assert source.asked == [4, 3, 3]
    assert [group[0].group_id for group in filled.kept] == [1]
    assert filled.num_uniform == 9


def test_with_nothing_at_all_the_run_ends_with_the_counts():
    """B041: a reward that always gives 1, three generations allowed."""
    with pytest.raises(InputError, match=r"3 generations .* sampled 12 groups, .*\(correct 24\)"):
        fill(Source(lambda group: False), 4, max_generations=3, drop_uniform=True)


def test_uniform_groups_stay_where_they_are_not_dropped():
    source = Source(lambda group: False)
    filled = fill(source, 4, max_generations=1, drop_uniform=False)
    assert source.asked == [4]
    assert len(filled.kept) == 4
    assert filled.num_uniform == 0


class SlowSource(Source):
    """A group is finished in the second generation after it was started."""

    def __init__(self, teaches):
        super().__init__(teaches)
        self.under_way = []

    @property
    def num_under_way(self):
        return len(self.under_way)

    def go_on(self, num_groups):
        finished, self.under_way = self.under_way, []
        self.start(num_groups)
        return finished

    def start(self, num_groups):
        self.under_way += super().start(num_groups)
        return []


def test_waiting_sets_up_the_pipeline_that_later_phases_live_on():
    source = SlowSource(lambda group: True)
    first = fill(source, 4)
    assert source.asked == [4, 4]
    assert [group[0].group_id for group in first.kept] == [0, 1, 2, 3]
    second = fill(source, 4)
    assert source.asked == [4, 4, 4]
    assert [group[0].group_id for group in second.kept] == [4, 5, 6, 7]


def test_a_phase_that_wants_nothing_does_not_wait():
    source = SlowSource(lambda group: True)
    assert fill(source, 4, at_least=0).kept == []
    assert source.asked == [4]


def test_waiting_ends():
    """No group ever teaches: each wait starts new ones, but only so often."""
    source = SlowSource(lambda group: False)
    with pytest.raises(InputError, match="nothing to learn from"):
        fill(source, 4, max_waits=3)
    assert source.asked == [4] * 4
