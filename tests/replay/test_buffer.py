"""The replay buffer: whole groups, bounded number and age, nothing rewritten."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from trajectory_samples import float32, make_group, make_trajectory

from bapo_lightning.errors import InputError
from bapo_lightning.replay import NotEnoughGroups, ReplayBuffer, newest_version, oldest_version, staleness
from bapo_lightning.types import TokenBatch


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def ids(groups):
    return [group[0].group_id for group in groups]


def filled(versions, **limits):
    """A buffer with group i sampled at versions[i]."""
    buffer = ReplayBuffer(**limits)
    for group_id, version in enumerate(versions):
        buffer.add(make_group(group_id, (version, version)))
    return buffer


def reloaded(buffer, tmp_path, **limits):
    torch.save(buffer.state_dict(), tmp_path / "buffer.pt")
    other = ReplayBuffer(**limits)
    other.load_state_dict(torch.load(tmp_path / "buffer.pt", weights_only=True))
    return other


def test_age_of_a_response_written_by_two_versions():
    """B110: begun at version 3, weights 4 arrive halfway; with the trainer at 5 the staleness is 2."""
    buffer = ReplayBuffer(max_staleness=2)
    buffer.add([make_trajectory(0, versions=(3, 3, 4, 4))])
    (group,) = buffer.sample(1, gen(), version=5)
    assert group[0].completion.policy_versions == (3, 3, 4, 4)
    assert (oldest_version(group), newest_version(group), staleness(group, 5)) == (3, 4, 2)
    assert buffer.drop_stale(6) == 1


def test_a_group_is_as_old_as_its_oldest_member():
    group = [make_trajectory(0, 0, (5, 5)), make_trajectory(0, 1, (3, 5)), make_trajectory(0, 2, ())]
    assert staleness(group, 6) == 6  # the response without tokens was begun at version 0
    assert staleness(group[:2], 6) == 3


@pytest.mark.parametrize(("max_staleness", "kept"), [(1, [0, 1]), (0, [0]), (2, [0, 1, 2]), (None, [0, 1, 2])])
def test_the_age_limit_is_inclusive(max_staleness, kept):
    """B111: trainer at 10, items of versions 10, 9, 8; limit 1: keep, keep, drop; limit 0 keeps only 10."""
    buffer = filled([10, 9, 8], max_staleness=max_staleness)
    assert sorted(ids(buffer.sample(len(kept), gen(), version=10))) == kept
    assert ids(buffer.groups) == kept
    assert buffer.counts.dropped_stale == 3 - len(kept)


def test_everything_is_too_old():
    """B113: four items, all stale: the caller is told to roll out, and gets no update on nothing."""
    buffer = filled([0, 1, 0, 1], max_staleness=2)
    with pytest.raises(NotEnoughGroups, match="2 groups were asked for, the replay buffer has 0") as caught:
        buffer.sample(2, gen(), version=10)
    assert (caught.value.wanted, caught.value.usable, caught.value.dropped_stale) == (2, 0, 4)
    assert len(buffer) == 0
    buffer.add(make_group(9, (10, 10)))
    buffer.add(make_group(10, (10, 10)))
    assert sorted(ids(buffer.sample(2, gen(), version=10))) == [9, 10]


def test_never_a_short_draw():
    buffer = filled([0, 0, 0])
    with pytest.raises(NotEnoughGroups, match="roll out at least 1 more"):
        buffer.sample(4, gen(), version=0)
    assert len(buffer) == 3
    with pytest.raises(NotEnoughGroups):
        ReplayBuffer().sample(1, gen(), version=0)


def test_ratios_come_from_the_log_probs_of_the_sampling(tmp_path):
    """B115: behaviour [-1, -1], current [-1.2, -.8]: ratios .8187, 1.2214, also through a checkpoint."""
    buffer = ReplayBuffer()
    buffer.add([make_trajectory(0, log_probs=[-1.0, -1.0])])
    for source in (buffer, reloaded(buffer, tmp_path)):
        (group,) = source.sample(1, gen(), version=3)
        batch = TokenBatch.from_trajectories(group, pad_id=0, temperature=1.0, length_limit=8)
        ratio = (torch.tensor([[-1.2, -0.8]]) - batch.rollout_log_probs).exp()
        torch.testing.assert_close(ratio, torch.tensor([[0.8187, 1.2214]]), atol=5e-5, rtol=0)


def test_ratios_of_a_response_written_by_two_versions(tmp_path):
    """B116: version 0 wrote [-1, -1], version 1 wrote [-2, -2]; ratios [.8187, 1.2214, 1, 1]."""
    buffer = ReplayBuffer()
    buffer.add([make_trajectory(0, versions=(0, 0, 1, 1), log_probs=[-1.0, -1.0, -2.0, -2.0])])
    (group,) = reloaded(buffer, tmp_path).sample(1, gen(), version=1)
    batch = TokenBatch.from_trajectories(group, pad_id=0, temperature=1.0, length_limit=8)
    ratio = (torch.tensor([[-1.2, -0.8, -2.0, -2.0]]) - batch.rollout_log_probs).exp()
    torch.testing.assert_close(ratio, torch.tensor([[0.8187, 1.2214, 1.0, 1.0]]), atol=5e-5, rtol=0)
    assert batch.policy_versions.tolist() == [[0, 0, 1, 1]]


def test_uniform_groups_are_filtered():
    """B119: flat batch, groups with rewards [0, 0] and [1, 0]: the buffer holds exactly the second."""
    dull = [make_trajectory(0, i, (0,) * (i + 1), reward=0.0) for i in range(2)]
    telling = [
        make_trajectory(1, i, (2,) * (3 - i), [float32(-0.3 - i)] * (3 - i), 1.0 - i, advantage=1.0 - 2 * i)
        for i in range(2)
    ]
    buffer = ReplayBuffer(drop_uniform=True)
    buffer.add([dull[0], telling[0], dull[1], telling[1]])
    assert buffer.groups == [tuple(telling)]
    assert (buffer.counts.dropped_uniform, buffer.counts.added) == (1, 1)
    batch = TokenBatch.from_trajectories(buffer.groups[0], pad_id=0, temperature=1.0, length_limit=8)
    assert batch.response_ids.tolist() == [[1000, 1001, 1002], [1010, 1011, 0]]
    assert batch.response_mask.tolist() == [[True] * 3, [True, True, False]]
    assert batch.advantages.tolist() == [[1.0] * 3, [-1.0, -1.0, 0.0]]
    assert batch.policy_versions.tolist() == [[2, 2, 2], [2, 2, 0]]
    torch.testing.assert_close(batch.rollout_log_probs, torch.tensor([[-0.3] * 3, [-1.3, -1.3, 0.0]]))


@pytest.mark.parametrize(
    ("rewards", "uniform"),
    [((1.0, 1.0), True), ((1.0, None), True), ((None, None), True), ((1.0,), True), ((0.0, None, 1.0), False)],
)
def test_missing_rewards_do_not_make_a_group_telling(rewards, uniform):
    buffer = ReplayBuffer(drop_uniform=True)
    buffer.add(make_group(0, rewards=rewards))
    assert len(buffer) == (0 if uniform else 1)
    everything = ReplayBuffer()
    everything.add(make_group(0, rewards=rewards))
    assert len(everything) == 1


def test_the_oldest_leave_first_then_the_first_come():
    buffer = filled([5, 3, 4, 3, 5], capacity=3)
    assert ids(buffer.groups) == [0, 2, 4]
    assert buffer.counts.evicted_for_room == 2
    buffer.add(make_group(9, (1, 9)))  # has the oldest token of all, so it is the one to leave
    assert ids(buffer.groups) == [0, 2, 4]
    buffer.add(make_group(10, (5, 5)))
    buffer.add(make_group(11, (5, 5)))
    assert ids(buffer.groups) == [4, 10, 11]


def test_members_need_not_be_neighbours_and_come_out_in_order():
    a, b = make_group(0, rewards=(1.0, 0.0, 1.0)), make_group(1)
    buffer = ReplayBuffer()
    buffer.add([a[2], b[1], a[0], b[0], a[1]])
    assert buffer.groups == [tuple(a), tuple(b)]


def test_a_group_in_two_parts_is_refused():
    group = make_group(0, rewards=(1.0, 0.0, 1.0))
    buffer = ReplayBuffer()
    buffer.add(group[:2])
    with pytest.raises(ValueError, match="group 0 is in the replay buffer already; a group must be added whole"):
        buffer.add([*make_group(1), group[2]])
    assert ids(buffer.groups) == [0]  # all or nothing


def test_members_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"group 0 has sample indices \[1, 1\]"):
        ReplayBuffer().add([make_trajectory(0, 1), make_trajectory(0, 1)])
    with pytest.raises(ValueError, match="group 0 mixes prompts"):
        ReplayBuffer().add([make_trajectory(0, 0), make_trajectory(0, 1, prompt_ids=(9,))])
    with pytest.raises(ValueError, match="2 token ids, 1 log-probs and 2 policy versions"):
        ReplayBuffer().add([make_trajectory(0, versions=(0, 0), log_probs=[-1.0])])


def test_a_token_from_the_future_is_refused():
    with pytest.raises(ValueError, match="token of policy version 4, but the trainer is at version 3"):
        filled([4]).sample(1, gen(), version=3)


def test_limits_out_of_range():
    with pytest.raises(InputError, match="capacity must be at least 1"):
        ReplayBuffer(capacity=0)
    with pytest.raises(InputError, match="max_staleness must be at least 0"):
        ReplayBuffer(max_staleness=-1)
    with pytest.raises(InputError, match="at least 1 group must be drawn"):
        filled([0]).sample(0, gen(), 0)
    with pytest.raises(InputError, match="5 groups cannot be drawn from a buffer of capacity 4"):
        filled([0], capacity=4).sample(5, gen(), 0)


def test_draws_depend_on_generator_and_contents_only(tmp_path):
    torch.manual_seed(1)
    buffer = filled([0] * 20)
    global_state = torch.get_rng_state()
    draw = buffer.sample(7, gen(3), 0)
    assert torch.equal(torch.get_rng_state(), global_state)
    assert len(set(ids(draw))) == 7
    assert ids(buffer.sample(7, gen(3), 0)) == ids(draw)
    assert ids(reloaded(buffer, tmp_path).sample(7, gen(3), 0)) == ids(draw)
    assert ids(buffer.sample(7, gen(4), 0)) != ids(draw)
    assert len(buffer) == 20  # drawing does not remove


def test_draws_are_uniform():
    """Each of 6 groups is in a draw of 2 with probability 1/3: 4 sigma of 3000 draws is 103."""
    buffer, generator, hits = filled([0] * 6), gen(0), torch.zeros(6)
    for _ in range(3000):
        hits[ids(buffer.sample(2, generator, 0))] += 1
    assert (hits - 1000).abs().max() < 103


def test_trained_groups_can_be_taken_out():
    buffer = filled([0, 0, 0])
    buffer.remove(ids(buffer.sample(2, gen(), 0)))
    assert len(buffer) == 1
    with pytest.raises(KeyError):
        buffer.remove([99])


def test_a_state_keeps_order_counts_and_contents(tmp_path):
    buffer = filled([5, 3, 4, 3], capacity=3)
    other = reloaded(buffer, tmp_path, capacity=3)
    assert other.groups == buffer.groups
    assert other.counts == buffer.counts
    assert ids(reloaded(buffer, tmp_path, capacity=2).groups) == [0, 2]
    with pytest.raises(InputError, match="damaged: no trajectories"):
        other.load_state_dict({"counts": {}})


class BufferMachine(RuleBasedStateMachine):
    """Any sequence of additions, draws and checkpoints keeps the promises."""

    @initialize(capacity=st.none() | st.integers(1, 6), max_staleness=st.none() | st.integers(0, 3))
    def start(self, capacity, max_staleness):
        self.limits = {"capacity": capacity, "max_staleness": max_staleness}
        self.buffer = ReplayBuffer(**self.limits)
        self.version, self.next_id, self.given = 0, 0, {}

    @rule(sizes=st.lists(st.integers(1, 3), max_size=4), age=st.integers(0, 4), data=st.data())
    def add(self, sizes, age, data):
        rows = []
        for size in sizes:
            start = max(self.version - age, 0)
            versions = tuple(sorted(data.draw(st.lists(st.integers(start, self.version), max_size=3))))
            group = [
                make_trajectory(self.next_id, i, versions, sampled_version=start, reward=float(i)) for i in range(size)
            ]
            self.given[self.next_id] = tuple(group)
            self.next_id += 1
            rows += group
        self.buffer.add(data.draw(st.permutations(rows)))

    @rule(updates=st.integers(1, 2))
    def train(self, updates):
        self.version += updates

    @rule(n_groups=st.integers(1, 6), seed=st.integers(0, 9))
    def sample(self, n_groups, seed):
        capacity, limit = self.limits["capacity"], self.limits["max_staleness"]
        young = [g for g in self.buffer.groups if limit is None or self.version - oldest_version(g) <= limit]
        if capacity is not None and n_groups > capacity:
            return
        if n_groups > len(young):
            with pytest.raises(NotEnoughGroups):
                self.buffer.sample(n_groups, gen(seed), self.version)
        else:
            drawn = self.buffer.sample(n_groups, gen(seed), self.version)
            assert len(set(ids(drawn))) == len(drawn) == n_groups
            assert all(group in young for group in drawn)
        assert self.buffer.groups == young

    @rule()
    def checkpoint(self):
        other = ReplayBuffer(**self.limits)
        other.load_state_dict(self.buffer.state_dict())
        assert other.groups == self.buffer.groups
        assert other.counts == self.buffer.counts
        self.buffer = other

    @invariant()
    def bounded_whole_and_untouched(self):
        if not hasattr(self, "buffer"):
            return
        capacity, counts = self.limits["capacity"], self.buffer.counts
        assert capacity is None or len(self.buffer) <= capacity
        # Equality of whole groups covers ids, behaviour log-probs and versions of every token.
        assert all(group == self.given[group[0].group_id] for group in self.buffer.groups)
        assert counts.added == len(self.buffer) + counts.evicted_for_room + counts.dropped_stale


BufferMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
TestBufferMachine = BufferMachine.TestCase


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 5))
def test_what_stays_is_never_older_than_what_left(versions, capacity):
    buffer = filled(versions, capacity=capacity)
    kept = {group[0].group_id for group in buffer.groups}
    # Dropping the oldest one by one or at once leaves the youngest, later ones among equals.
    youngest = sorted(range(len(versions)), key=lambda i: (versions[i], i))[-capacity:]
    assert kept == set(youngest)
