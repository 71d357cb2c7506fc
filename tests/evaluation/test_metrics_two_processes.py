"""Scores over two real gloo processes that hold different numbers of samples (case B141)."""

import json
import math
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from bapo_lightning.evaluation import AverageAtK, MajorityAtK, PassAtK


def _score(rank: int, world_size: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    found = {}
    # 30 problems, two samples each, dealt to 2 ranks with problem 0 twice, as a sampler would pad.
    order = [*range(30), 0]
    mine = [(f"aime/{p}", s, p < 2) for p in order[rank::world_size] for s in range(2)]
    ids, index, correct = (list(column) for column in zip(*mine, strict=True))
    for metric in (AverageAtK(2), PassAtK(2), MajorityAtK(2)):
        metric.update(ids, correct, index, [str(c) for c in correct])
        found[type(metric).__name__] = metric.compute().item()
        found["coverage"] = metric.coverage()
        # Syncing leaves the rank's own rows as they were: more can come.
        if rank == 0:
            metric.update(["late", "late"], [1, 1], [0, 1], ["1", "1"])
        found[type(metric).__name__ + " later"] = metric.compute().item()
    for silent in range(world_size):  # one rank has no rows, once the first and once the last
        metric = AverageAtK(1)
        if rank != silent:
            metric.update(["a", "b", "c"], [1, 0, 0], [0, 0, 0])
        found[f"rank {silent} silent"] = metric.compute().item()
    found["nobody"] = AverageAtK(1).compute().item()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.mark.dist
def test_unequal_ranks_give_the_global_score(tmp_path):
    """B141: 2/30 on every rank, whatever each holds."""
    mp.spawn(_score, args=(2, str(tmp_path)), nprocs=2)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for name in ("AverageAtK", "PassAtK", "MajorityAtK"):
            assert found[name] == pytest.approx(2 / 30)
            assert found[name + " later"] == pytest.approx(3 / 31)
        assert found["coverage"] == {"problems": 30, "samples": 60, "missing": 0}
        assert found["rank 0 silent"] == found["rank 1 silent"] == pytest.approx(1 / 3)
        assert math.isnan(found["nobody"])
