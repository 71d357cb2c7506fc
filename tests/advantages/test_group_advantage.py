"""Group-relative advantages."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bapo_lightning.advantages import AdvantageEstimator, GroupAdvantage, uniform_groups
from bapo_lightning.errors import InputError

NAN = math.nan


def advantages(rewards, group_ids=None, mask=None, **options) -> list[float]:
    ids = torch.zeros(len(rewards), dtype=torch.int64) if group_ids is None else torch.tensor(group_ids)
    mask = None if mask is None else torch.tensor(mask)
    return GroupAdvantage(**options)(torch.tensor(rewards), ids, mask).tolist()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": "none"},
        {"leave_one_out": True},
        {"scale": "batch_reward_std"},
        {"scale": "batch_advantage_std"},
    ],
)
@pytest.mark.parametrize("rewards", [[0.9] * 7, [0.2] * 8, [0.1] * 3, [-1e30] * 5, [1.0] * 4])
def test_equal_rewards_give_exactly_zero(rewards, options):
    """B031: exactly 0 for [.9] × 7 and [.2] × 8."""
    assert advantages(rewards, **options) == [0.0] * len(rewards)


def test_group_of_one_beside_a_normal_group():
    """B032: 0 and finite."""
    with pytest.warns(UserWarning, match="some groups have a single reward"):
        result = advantages([1.0, 1.0, 0.0], [7, 3, 3])
    assert result == pytest.approx([0.0, 0.70711, -0.70711], abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"leave_one_out": True}, {"scale": "none"}])
def test_every_group_a_singleton(options):
    """B032: a warning when every group is a singleton."""
    with pytest.warns(UserWarning, match="every group has a single reward"):
        assert advantages([1.0, 0.0, 0.5], [0, 1, 2], **options) == [0.0, 0.0, 0.0]


def test_standard_deviation_is_unbiased():
    """B034: [1, 0, 0, 0] gives 1.5 and -.5, not 1.7321 and -.5774."""
    assert advantages([1.0, 0.0, 0.0, 0.0]) == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_each_group_is_normalised_by_itself():
    """B035: [1, 1, 0, 0] gives ±.8660 and [1, 0, 0, 0] gives 1.5, -.5."""
    result = advantages([1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], [0] * 4 + [1] * 4)
    assert result == pytest.approx([0.8660, 0.8660, -0.8660, -0.8660, 1.5, -0.5, -0.5, -0.5], abs=5e-5)


GROUPS = ([1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], [0] * 4 + [1] * 4)


def test_one_deviation_for_all_rewards():
    """Three ones of eight: variance (3·.625² + 5·.375²)/7 = .267857, deviation .517549; ±.5, .75, -.25 over it."""
    result = advantages(*GROUPS, scale="batch_reward_std")
    assert result == pytest.approx([0.96609, 0.96609, -0.96609, -0.96609, 1.44914] + [-0.48305] * 3, abs=1e-5)


def test_one_deviation_for_all_differences():
    """Squares of ±.5, .75, -.25 add up to 1.75; over 7 that is .25, deviation .5."""
    result = advantages(*GROUPS, scale="batch_advantage_std")
    assert result == pytest.approx([1.0, 1.0, -1.0, -1.0, 1.5, -0.5, -0.5, -0.5])


@pytest.mark.parametrize(("scale", "expected"), [("batch_reward_std", 0.866025), ("batch_advantage_std", 0.866025)])
def test_missing_rewards_have_no_part_in_the_batch_deviation(scale, expected):
    """Of [1, missing, 1, 0, 0] four remain: deviations ±.5 and their own deviation √(1/3) = .57735."""
    result = advantages([1.0, NAN, 1.0, 0.0, 0.0], scale=scale)
    assert result == pytest.approx([expected, 0.0, expected, -expected, -expected], abs=1e-5)


def test_a_uniform_group_stays_at_zero_beside_others():
    for scale in ("batch_reward_std", "batch_advantage_std"):
        assert advantages([1.0, 1.0, 1.0, 0.0], [0, 0, 1, 1], scale=scale)[:2] == [0.0, 0.0]


def test_rows_of_a_group_need_not_be_neighbours():
    """B036: prompts 0 1 0 1 …, rewards 1 0 1 0 …: all 0."""
    assert advantages([1.0, 0.0] * 4, [0, 1] * 4) == [0.0] * 8


@pytest.mark.parametrize("missing", ["nan", "mask", "nan under the mask", "inf under the mask"])
def test_missing_reward_has_no_part_in_the_statistics(missing):
    """B040: [1, missing, 0, 1]: mean 2/3, deviation √(1/3), advantage 0 for the missing one."""
    rewards = [1.0, {"nan": NAN, "mask": 9.0, "inf under the mask": math.inf}.get(missing, NAN), 0.0, 1.0]
    result = advantages(rewards, mask=None if missing == "nan" else [True, False, True, True])
    assert result == pytest.approx([0.57735, 0.0, -1.15470, 0.57735], abs=1e-5)


def test_every_group_uniform_is_found():
    """B041: a reward that always gives 1 leaves no group to learn from."""
    rewards, ids = torch.ones(6), torch.tensor([0, 0, 1, 1, 2, 2])
    assert uniform_groups(rewards, ids).tolist() == [True] * 6
    assert GroupAdvantage()(rewards, ids).tolist() == [0.0] * 6


def test_uniform_groups_by_hand():
    rewards = torch.tensor([1.0, 0.0, 1.0, NAN, NAN, 0.0, 0.0])
    ids = torch.tensor([5, 5, 2, 2, 8, 9, 9])
    assert uniform_groups(rewards, ids).tolist() == [False, False, True, True, True, True, True]
    assert uniform_groups(rewards, ids, mask=torch.tensor([0, 1, 1, 1, 1, 1, 1])).all()


def test_group_without_any_reward_is_zero_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert advantages([NAN, NAN, 1.0, 0.0], [0, 0, 1, 1])[:2] == [0.0, 0.0]


def test_no_rewards_at_all():
    assert advantages([]) == []


def test_scale_none_keeps_the_deviation():
    assert advantages([1.0, 0.0, 0.0, 0.0], scale="none") == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_leave_one_out_compares_with_the_others():
    """[1, 0, 0, 0]: 1 - 0 and 0 - 1/3; with scaling both over the deviation .5."""
    plain = advantages([1.0, 0.0, 0.0, 0.0], scale="none", leave_one_out=True)
    assert plain == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    scaled = advantages([1.0, 0.0, 0.0, 0.0], leave_one_out=True)
    assert scaled == pytest.approx([2.0, -2 / 3, -2 / 3, -2 / 3])


@pytest.mark.parametrize("tiny", [1e-7, 1e-12, 2.3e-16])
def test_almost_uniform_group_stays_bounded(tiny):
    rewards = torch.tensor([1.0] * 7 + [1.0 + tiny], dtype=torch.float64)
    result = GroupAdvantage()(rewards, torch.zeros(8, dtype=torch.int64))
    assert result.isfinite().all()
    assert result.abs().max() <= 7 / math.sqrt(8) + 1e-9


def test_infinite_reward_is_refused_by_position():
    with pytest.raises(InputError, match=r"rewards\[1\] is inf: a reward must be finite, or NaN where it is missing"):
        advantages([1.0, math.inf])


def test_unknown_scale_is_refused():
    with pytest.raises(
        InputError, match="scale must be one of std, none, batch_reward_std, batch_advantage_std, got 'batch'"
    ):
        GroupAdvantage(scale="batch")


@pytest.mark.parametrize(
    ("given_type", "expected"),
    [(torch.float32, torch.float32), (torch.float64, torch.float64), (torch.int64, torch.float32)],
)
def test_floating_type_is_that_of_the_rewards(given_type, expected):
    rewards = torch.tensor([1, 0, 0, 0], dtype=given_type)
    result = GroupAdvantage()(rewards, torch.zeros(4, dtype=torch.int64))
    assert result.dtype == expected
    assert result.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_repr_and_interface():
    assert repr(GroupAdvantage()) == "GroupAdvantage(scale='std', leave_one_out=False)"
    assert isinstance(GroupAdvantage(), AdvantageEstimator)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_advantages_equal_those_of_a_loop_over_groups_in_any_order(data):
    count = data.draw(st.integers(1, 10))
    reward = st.sampled_from([0.0, 0.1, 1.0, -2.5, NAN])
    rewards = data.draw(st.lists(reward, min_size=count, max_size=count))
    ids = data.draw(st.lists(st.integers(-2, 3), min_size=count, max_size=count))
    expected = []
    for own, group in zip(rewards, ids, strict=True):
        others = [r for r, g in zip(rewards, ids, strict=True) if g == group and not math.isnan(r)]
        if math.isnan(own) or max(others) == min(others):
            expected.append(0.0)
            continue
        mean = math.fsum(others) / len(others)
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in others) / (len(others) - 1))
        expected.append((own - mean) / std)
    order = data.draw(st.permutations(range(count)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = advantages(rewards, ids)
        permuted = advantages([rewards[i] for i in order], [ids[i] for i in order])
    assert result == pytest.approx(expected, abs=1e-6)
    assert permuted == pytest.approx([result[i] for i in order], abs=1e-6)
