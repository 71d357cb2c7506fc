"""Named random streams: every draw in a run depends on (seed, names) and on nothing else.

No code of ours reads the global generators, so a resumed run, another number of ranks or another order of
work cannot change what is drawn.
"""

import hashlib

import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """Hash a run seed and the names of a stream into a seed for one generator.

    Args:
        seed: The seed of the run.
        *names: What the stream is for, for example ``"sample", phase, prompt_id, sample_index``. The order and
            the types matter: ``1`` and ``"1"`` are different names.

    Returns:
        An integer in [0, 2**63), equal on every machine.
    """
    text = repr((int(seed), *names)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """Make a CPU generator for the stream ``names`` of a run; see `derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(seed, *names))
