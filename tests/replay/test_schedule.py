"""Order of updates and their shares among ranks."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bapo_lightning.errors import InputError
from bapo_lightning.replay import rank_share, update_order


def test_every_inner_epoch_is_a_permutation_cut_into_updates():
    order = update_order(num_groups=8, groups_per_update=2, inner_epochs=3, seed=1, phase=0)
    assert [len(update) for update in order] == [2] * 12
    for epoch in range(3):
        assert sorted(chain(*order[4 * epoch : 4 * epoch + 4])) == list(range(8))
    assert order[:4] != order[4:8] != order[8:]


def test_orders_differ_by_seed_and_phase_and_leave_global_randomness_alone():
    state = torch.get_rng_state()
    orders = [update_order(32, 4, 1, seed, phase) for seed, phase in [(0, 0), (0, 1), (1, 0)]]
    assert orders[0] == update_order(32, 4, 1, 0, 0)
    assert len({str(order) for order in orders}) == 3
    assert torch.equal(torch.get_rng_state(), state)


def test_more_inner_epochs_start_with_the_same_order():
    assert update_order(8, 4, 3, 0, 5)[:2] == update_order(8, 4, 1, 0, 5)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_ranks_train_on_each_group_once_per_inner_epoch(world_size, share, num_updates, inner_epochs, seed):
    per_update = world_size * share
    order = update_order(per_update * num_updates, per_update, inner_epochs, seed, 0)
    assert len(order) == num_updates * inner_epochs
    for update in order:
        shares = [rank_share(update, rank, world_size) for rank in range(world_size)]
        assert list(chain(*shares)) == update
        assert {len(mine) for mine in shares} == {share}
    counts = torch.bincount(torch.tensor(list(chain(*order))))
    assert counts.tolist() == [inner_epochs] * (per_update * num_updates)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((10, 4, 1), r"data\.groups_per_phase \(10\) must be a multiple of data\.groups_per_update \(4\)"),
        ((2, 4, 1), r"data\.groups_per_phase \(2\) must be a multiple"),
        ((0, 1, 1), r"data\.groups_per_phase must be at least 1, got 0"),
        ((4, 0, 1), r"data\.groups_per_update must be at least 1, got 0"),
        ((4, 2, 0), r"data\.inner_epochs must be at least 1, got 0"),
    ],
)
def test_numbers_that_do_not_fit_name_their_keys(numbers, message):
    with pytest.raises(InputError, match=message):
        update_order(*numbers, seed=0, phase=0)


def test_ranks_that_do_not_divide_an_update():
    with pytest.raises(InputError, match=r"data\.groups_per_update \(6\) must be a multiple of the number of ranks"):
        rank_share([0, 1, 2, 3, 4, 5], 0, 4)


@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_ranks_get_like_numbers_of_tokens(world_size, share, data):
    count = world_size * share
    tokens = data.draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    update = data.draw(st.permutations(range(count)))
    shares = [rank_share(update, rank, world_size, tokens) for rank in range(world_size)]
    assert sorted(g for s in shares for g in s) == sorted(update)
    assert all(len(s) == share for s in shares)
    for s in shares:
        assert s == [g for g in update if g in s]
    # Every rank's load is within the largest group of any other's, per group: the classical bound of greedy dealing.
    loads = [sum(tokens[g] for g in s) for s in shares]
    assert max(loads) - min(loads) <= share * max(tokens) - share * min(tokens)


def test_the_largest_groups_go_to_different_ranks():
    # 100 and 90 apart; then 20 to the lighter rank, and the last place is left for 10.
    assert [rank_share([0, 1, 2, 3], rank, 2, [100, 20, 90, 10]) for rank in (0, 1)] == [[0, 3], [1, 2]]
