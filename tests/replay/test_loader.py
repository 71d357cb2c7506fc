"""The loader of one phase, by itself."""

import pytest
from trajectory_samples import make_group

from bapo_lightning.errors import InputError
from bapo_lightning.replay import PhaseLoader

ORDER = [[2, 0], [1, 3], [3, 2], [0, 1]]


def group_ids(trajectories):
    return [t.group_id for t in trajectories][::2]


def make_loader(order=ORDER):
    return PhaseLoader([make_group(i) for i in range(4)], order, group_ids)


def test_updates_come_in_order_and_groups_whole():
    loader = PhaseLoader([make_group(i) for i in range(4)], ORDER, lambda rows: rows)
    updates = list(loader)
    assert len(loader) == len(updates) == 4
    assert updates[0] == [*make_group(2), *make_group(0)]


@pytest.mark.parametrize("position", range(5))
def test_it_goes_on_after_any_update(position):
    loader = make_loader()
    served = iter(loader)
    for _ in range(position):
        next(served)
    state = loader.state_dict()
    assert state == {"position": position}
    other = make_loader()
    other.load_state_dict(state)
    assert len(other) == 4
    assert other.state_dict() == state
    iter(other)  # making an iterator takes nothing
    assert list(other) == ORDER[position:]
    assert other.state_dict() == {"position": 4}
    assert list(other) == ORDER  # a later pass is whole


def test_an_unfinished_update_can_be_given_back():
    loader = make_loader()
    served = iter(loader)
    next(served), next(served)
    loader.set_position(1)
    other = make_loader()
    other.load_state_dict(loader.state_dict())
    assert list(other) == ORDER[1:]


@pytest.mark.parametrize("position", [-1, 5])
def test_a_position_of_another_phase_is_refused(position):
    with pytest.raises(InputError, match=f"at update {position} of its rollout phase, but the phase now has 4"):
        make_loader().load_state_dict({"position": position})


@pytest.mark.parametrize("order", [[], [[0], []]])
def test_an_update_on_nothing_is_refused(order):
    with pytest.raises(ValueError, match="at least one update, and an update at least one group"):
        make_loader(order)


def test_a_group_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="names group 4, but there are 4 groups"):
        make_loader([[0, 4]])
