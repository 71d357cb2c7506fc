"""Drawing different problems from a numbered set, the same ones in every run."""

import random

from bapo_lightning.errors import InputError
from bapo_lightning.seeding import derive_seed


def draw_distinct(total: int, count: int, *, skip: int, seed: int, name: str) -> list[int]:
    """Draw numbers of problems without repetition.

    A seed fixes one endless order; asking for more only goes on in it. So ``skip`` cuts parts that cannot overlap: with
    one seed, ``skip=0, count=1000`` for training and ``skip=1000, count=100`` for validation share no problem.

    Args:
        total: How many problems there are.
        count: How many to draw, ≥ 1.
        skip: How many of the order to leave out first, ≥ 0.
        seed: Names the order.
        name: Name of the task: part of the order, and opens the messages.

    Returns:
        ``count`` different numbers in [0, total).

    Raises:
        InputError: Counts out of range, or more problems asked for than there are.
    """
    if count < 1:
        raise InputError(f"{name}: num_prompts must be at least 1, got {count}")
    if skip < 0:
        raise InputError(f"{name}: skip must be 0 or positive, got {skip}")
    if skip + count > total:
        raise InputError(
            f"{name}: num_prompts = {count} after skip = {skip} asks for more than the {total} problems there are"
        )
    rng = random.Random(derive_seed(seed, name))
    drawn: dict[int, None] = {}
    while len(drawn) < skip + count:
        drawn[rng.randrange(total)] = None
    return list(drawn)[skip:]
