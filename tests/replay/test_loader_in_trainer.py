"""The loader inside a real Trainer: one epoch = one phase, resumed at every update.

The data module below does what any data module around `PhaseLoader` must do: the first loader after a resume is
that of the phase in the checkpoint, every other one that of the next phase.
"""

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from trajectory_samples import make_group

from bapo_lightning.replay import PhaseLoader, update_order

pytestmark = [
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec"),
]

PHASES, GROUPS, PER_UPDATE, INNER_EPOCHS = 3, 4, 2, 2
UPDATES = GROUPS // PER_UPDATE * INNER_EPOCHS
"""Updates in a phase."""


def group_ids(trajectories):
    return torch.tensor([t.group_id for t in trajectories][::2], dtype=torch.float32)


class Phases(LightningDataModule):
    def __init__(self):
        super().__init__()
        self.phase = -1
        self.restored = False
        self.loader = None
        self.rollouts = []

    def train_dataloader(self):
        if not self.restored:
            self.phase += 1
            self.rollouts.append(self.phase)
        self.restored = False
        groups = [make_group(100 * self.phase + i) for i in range(GROUPS)]
        order = update_order(GROUPS, PER_UPDATE, INNER_EPOCHS, 0, self.phase)
        self.loader = PhaseLoader(groups, order, group_ids)
        return self.loader

    def state_dict(self):
        return {"phase": self.phase}

    def load_state_dict(self, state):
        self.phase, self.restored = state["phase"], True


class Recorder(LightningModule):
    """Manual optimisation, one optimizer step a batch; remembers what it was given."""

    def __init__(self, fail_at=None):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []
        self.fail_at = fail_at

    def training_step(self, batch):
        if self.global_step == self.fail_at:
            raise KeyError("killed in the middle of an update")
        self.seen.append(tuple(batch.int().tolist()))
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward((self.weight * batch.mean()).sum())
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(folder=None, ckpt_path=None, module=None, callbacks=(), **limits):
    module, data = module or Recorder(), Phases()
    if folder is not None:
        every = {"save_top_k": -1, "auto_insert_metric_name": False}
        callbacks = [
            ModelCheckpoint(folder, filename="batch{step}", every_n_train_steps=1, **every),
            ModelCheckpoint(folder, filename="epoch{step}", save_on_train_epoch_end=True, **every),
            *callbacks,
        ]
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=folder is not None,
        reload_dataloaders_every_n_epochs=1,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        callbacks=list(callbacks),
        **(limits or {"max_epochs": PHASES}),
    )
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return module, data, trainer


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An undisturbed run with a checkpoint after every update and every epoch."""
    folder = tmp_path_factory.mktemp("straight")
    module, data, trainer = fit(folder)
    return folder, module, data, trainer


def test_one_rollout_a_phase_and_one_update_a_batch(straight):
    _, module, data, trainer = straight
    assert data.rollouts == [0, 1, 2]
    assert trainer.global_step == len(module.seen) == PHASES * UPDATES
    orders = [update_order(GROUPS, PER_UPDATE, INNER_EPOCHS, 0, phase) for phase in range(PHASES)]
    expected = [tuple(100 * phase + i for i in update) for phase in range(PHASES) for update in orders[phase]]
    assert module.seen == expected


@pytest.mark.parametrize("limits", [{"max_epochs": PHASES}, {"max_epochs": -1, "max_steps": PHASES * UPDATES}])
@pytest.mark.parametrize("step", range(1, PHASES * UPDATES))
def test_a_run_resumed_after_any_update_sees_the_rest(straight, step, limits):
    folder, whole, *_ = straight
    module, data, trainer = fit(ckpt_path=folder / f"batch{step}.ckpt", **limits)
    assert module.seen == whole.seen[step:]
    assert trainer.global_step == PHASES * UPDATES
    assert torch.equal(module.weight, whole.weight)
    # Phases that were begun are not rolled out again, also when the checkpoint is from their last update.
    assert data.rollouts == list(range((step - 1) // UPDATES + 1, PHASES))


@pytest.mark.parametrize("phase", range(1, PHASES))
def test_a_run_resumed_from_the_end_of_an_epoch_sees_the_rest(straight, phase):
    folder, whole, *_ = straight
    module, data, trainer = fit(ckpt_path=folder / f"epoch{phase * UPDATES}.ckpt")
    assert module.seen == whole.seen[phase * UPDATES :]
    assert trainer.global_step == PHASES * UPDATES
    assert data.rollouts == list(range(phase, PHASES))


def test_a_run_can_be_resumed_again_and_again(straight, tmp_path):
    _, whole, *_ = straight
    seen, path = [], None
    for step in range(1, PHASES * UPDATES + 1):
        module, _, _ = fit(tmp_path / str(step), ckpt_path=path, max_epochs=-1, max_steps=step)
        seen += module.seen
        path = tmp_path / str(step) / f"batch{step}.ckpt"
    assert seen == whole.seen


def test_steps_end_in_the_middle_of_a_phase():
    module, data, trainer = fit(max_epochs=-1, max_steps=UPDATES + 1)
    assert trainer.global_step == len(module.seen) == UPDATES + 1
    assert data.loader.state_dict() == {"position": 1}


class SaveOnException(Callback):
    def __init__(self, path):
        self.path = path

    def on_exception(self, trainer, pl_module, exception):
        done = trainer.global_step - trainer.datamodule.phase * UPDATES
        trainer.datamodule.loader.set_position(done)
        trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("step", [0, 1, UPDATES - 1, UPDATES, UPDATES + 2])
def test_a_run_killed_inside_an_update_repeats_that_update(straight, tmp_path, step):
    _, whole, *_ = straight
    path = tmp_path / "killed.ckpt"
    killed = Recorder(fail_at=step)
    with pytest.raises(KeyError, match="killed"):
        fit(module=killed, callbacks=[SaveOnException(path)])
    module, _, trainer = fit(ckpt_path=path)
    assert killed.seen + module.seen == whole.seen
    assert trainer.global_step == PHASES * UPDATES
