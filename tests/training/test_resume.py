"""A run resumed at any step equals the straight one: sampled ids, losses and weights, to the bit."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from counting_task import CountingTask, EvenLength
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from bapo_lightning.clipping import BAPOClip, ClipCov, DecoupledPPO
from bapo_lightning.datamodule import ReplayDataModule
from bapo_lightning.errors import InputError
from bapo_lightning.models import LoRA, Policy
from bapo_lightning.module import PolicyModule
from bapo_lightning.replay import PrioritySampler, ReplayBuffer
from bapo_lightning.rollout import RolloutSettings
from bapo_lightning.types import SamplingSettings

# Each run of a test has a folder of its own, which the checkpoint callback notices.
pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")

PHASES, UPDATES_PER_PHASE = 3, 4
LAST = PHASES * UPDATES_PER_PHASE


class Watch(Callback):
    """What every update trained on and did, and how often rollouts were made."""

    def __init__(self):
        self.updates = {}
        self.rolled_out = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        record = pl_module.last_update
        self.updates[trainer.global_step] = (
            record.batch.response_ids.tolist(),
            record.loss,
            record.grad_norm,
            record.learning_rate,
            (record.version - record.batch.policy_versions[record.batch.response_mask]).unique().tolist(),
            record.batch.prompt_ids.tolist(),
        )

    def on_train_epoch_start(self, trainer, pl_module):
        self.rolled_out.append(trainer.global_step)


def run(
    model_folder,
    folder: Path,
    *,
    ckpt_path=None,
    lora=False,
    buffer=None,
    num_prompts=12,
    inner_epochs=2,
    kl=0.0,
    clipping=None,
    max_generations=1,
    group_size=4,
    lag=None,
    temperature=1.0,
    rollout=RolloutSettings(),
    accept_changed_prompts=False,
    **settings,
):
    torch.manual_seed(0)
    module = PolicyModule(
        Policy(str(model_folder()), lora=LoRA(rank=2) if lora else None),
        optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2),
        lr_scheduler=lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.5, total_iters=LAST),
        micro_batch_size=3,
        kl_coefficient=kl,
        clipping=clipping,
    )
    data = ReplayDataModule(
        CountingTask(num_prompts),
        reward=EvenLength(),
        buffer=buffer,
        sampling=SamplingSettings(max_new_tokens=6, temperature=temperature),
        group_size=group_size,
        groups_per_phase=4,
        groups_per_update=2,
        inner_epochs=inner_epochs,
        max_generations=max_generations,
        lag=lag,
        rollout=rollout,
        accept_changed_prompts=accept_changed_prompts,
    )
    watch = Watch()
    every_update = ModelCheckpoint(
        folder, filename="update_{step}", every_n_train_steps=1, save_top_k=-1, save_last=False
    )
    every_phase = ModelCheckpoint(
        folder, filename="phase_{step}", every_n_epochs=1, save_on_train_epoch_end=True, save_top_k=-1
    )
    trainer = Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": PHASES,
            "logger": False,
            "callbacks": [watch, every_update, every_phase],
            "reload_dataloaders_every_n_epochs": 1,
            "use_distributed_sampler": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **settings,
        }
    )
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return trainer, module, data, watch


def settings_of(kind):
    return {
        "plain": {},
        "lora": {"lora": True},
        "kl": {"kl": 0.1},
        "lora_kl": {"lora": True, "kl": 0.1},
        "replay": {"buffer": ReplayBuffer(capacity=8, max_staleness=9)},
        # Tokens of several ages, whose log-probs under the phase's first weights are gone after its first update.
        "proximal": {"clipping": DecoupledPPO(), "buffer": ReplayBuffer(capacity=8, max_staleness=9)},
        "selector": {"clipping": ClipCov(inner=BAPOClip(), share=0.1, low=0.0)},
        "lag": {"lag": 8},
        # Of groups of two about half are uniform.
        "refill": {"max_generations": 50, "group_size": 2},
        "partial": {"rollout": RolloutSettings(token_budget=2)},
        "overlap": {"rollout": RolloutSettings(overlap=True)},
        # Groups of one phase are in the background, of another under way, of a third waiting.
        "everything_lagged": {
            "rollout": RolloutSettings(token_budget=2, overlap=True, train_on="current_version"),
            "lag": 8,
            "lora": True,
            "kl": 0.1,
            "max_generations": 3,
            "group_size": 2,
            "clipping": DecoupledPPO(),
        },
        "everything_replayed": {
            "rollout": RolloutSettings(token_budget=2),
            "buffer": ReplayBuffer(8, max_staleness=9, drop_uniform=True, sampler=PrioritySampler()),
            "lora": True,
            "max_generations": 3,
            "group_size": 2,
        },
        # 5 prompts for 4 a phase: the permutation of the prompts wraps inside a phase.
        "wrapping": {"num_prompts": 5},
    }[kind]


def assert_goes_on_as(straight, again, done, name):
    """After ``done`` updates a resumed run is the straight one; both as `run` returns them."""
    trainer, module, data, watch = straight
    again_trainer, again_module, again_data, again_watch = again
    assert again_trainer.global_step == trainer.global_step, name
    assert again_trainer.current_epoch == trainer.current_epoch, name
    assert again_watch.updates == {n: update for n, update in watch.updates.items() if n > done}, name
    for key, value in module.state_dict().items():
        assert torch.equal(value, again_module.state_dict()[key]), (name, key)
    started, again_started = (d.collector.state_dict()["groups_started"] for d in (data, again_data))
    assert again_started == started, name


@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        "lora",
        "kl",
        "lora_kl",
        "replay",
        "proximal",
        "selector",
        "refill",
        "lag",
        "partial",
        "overlap",
        "everything_lagged",
        "everything_replayed",
        "wrapping",
    ],
)
def test_resumed_at_every_step_equals_straight(model_folder, tmp_path, kind):
    """B098, trap 11: 12 updates in 3 phases; resume after each of them, at phase ends from both kinds of checkpoint."""
    trainer, module, data, straight = run(model_folder, tmp_path / "straight", **settings_of(kind))
    assert trainer.global_step == LAST
    assert sorted(straight.updates) == list(range(1, LAST + 1))
    checkpoints = {
        **{f"update {n}": tmp_path / "straight" / f"update_step={n}.ckpt" for n in range(1, LAST)},
        **{f"phase end {n}": tmp_path / "straight" / f"phase_step={n}.ckpt" for n in (4, 8)},
    }
    for name, path in checkpoints.items():
        again = run(model_folder, tmp_path / name, ckpt_path=path, **settings_of(kind))
        assert_goes_on_as((trainer, module, data, straight), again, int(name.rpartition(" ")[2]), name)


def test_phases_of_unequal_length_resume_at_every_step(model_folder, tmp_path):
    """Too few groups teach anything: phases of 2 and of 4 updates, so that a longer one follows a shorter one."""
    settings = {"lag": 4, "max_generations": 2, "group_size": 2, "num_prompts": 40}
    straight = run(model_folder, tmp_path / "straight", **settings)
    last = straight[0].global_step
    lengths = [end - start for start, end in pairwise([*straight[3].rolled_out, last])]
    assert any(later > earlier for earlier, later in pairwise(lengths)), lengths
    for path in sorted((tmp_path / "straight").glob("*.ckpt")):
        done = int(path.stem.partition("=")[2])
        if done < last:
            again = run(model_folder, tmp_path / path.stem, ckpt_path=path, **settings)
            assert_goes_on_as(straight, again, done, path.stem)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7])
def test_a_run_that_max_steps_stopped_goes_on_in_the_middle_of_its_phase(model_folder, tmp_path, steps):
    """From the checkpoint that is written at the end of Lightning's epoch, which counts the phase as complete."""
    _, module, _, straight = run(model_folder, tmp_path / "straight")
    run(model_folder, tmp_path / "stopped", max_steps=steps)
    trainer, again_module, _, again = run(
        model_folder, tmp_path / "again", ckpt_path=tmp_path / "stopped" / f"phase_step={steps}.ckpt"
    )
    assert again.updates == {n: straight.updates[n] for n in range(steps + 1, LAST + 1)}
    assert trainer.current_epoch == PHASES
    for key, value in module.state_dict().items():
        assert torch.equal(value, again_module.state_dict()[key]), key


def test_the_first_rollout_after_a_resume_uses_the_checkpoints_weights(model_folder, tmp_path):
    """B096: the engine's version is the trainer's at every rollout, and staleness restarts at 0 with each phase."""
    _, _, _, straight = run(model_folder, tmp_path / "straight")
    *_, again = run(model_folder, tmp_path / "again", ckpt_path=tmp_path / "straight" / "update_step=6.ckpt")
    assert again.updates[9][4] == straight.updates[9][4] == [0]
    assert [straight.updates[n][4] for n in range(1, 9)] == [[0], [1], [2], [3]] * 2


def test_prompts_go_on_where_they_stopped(model_folder, tmp_path):
    """B101: 12 prompts, 4 a phase, each trained in 2 inner epochs: none lost, none doubled, straight or resumed."""
    _, _, data, straight = run(model_folder, tmp_path / "straight")
    *_, again = run(model_folder, tmp_path / "again", ckpt_path=tmp_path / "straight" / "update_step=5.ckpt")
    trained = Counter()
    for number in range(1, LAST + 1):
        prompt_ids = (straight if number <= 5 else again).updates[number][5]
        trained.update(tuple(token for token in row if token != 2) for row in prompt_ids)
    # Group size 4 × 2 inner epochs.
    assert trained == {encoded.ids: 8 for encoded in data.deck.prompts}


def test_an_interrupted_phase_ends_as_it_began_whatever_is_typed_now(model_folder, tmp_path):
    """Update 6 of phases of 4: the phase still has 4 updates and its own temperature; the next one has 2."""
    _, _, _, straight = run(model_folder, tmp_path / "straight")
    *_, again = run(
        model_folder, tmp_path / "again", ckpt_path=tmp_path / "straight" / "update_step=6.ckpt", inner_epochs=1
    )
    assert sorted(again.updates) == [7, 8, 9, 10]
    assert [again.updates[n] for n in (7, 8)] == [straight.updates[n] for n in (7, 8)]


def test_a_buffer_too_small_for_the_interrupted_phase_is_refused(model_folder, tmp_path):
    big = ReplayBuffer(capacity=8)
    run(model_folder, tmp_path / "a", buffer=big)
    path = tmp_path / "a" / "update_step=9.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    state = checkpoint["ReplayDataModule"]
    # The oldest two of the eight groups held belong to the phase: with room for four they are gone.
    state["queue"]["phase_group_ids"] = [*state["queue"]["phase_group_ids"][:2], *sorted(range(4, 6))]
    torch.save(checkpoint, tmp_path / "mixed.ckpt")
    with pytest.raises(InputError, match=r"data\.buffer\.capacity = 4"):
        run(model_folder, tmp_path / "b", ckpt_path=tmp_path / "mixed.ckpt", buffer=ReplayBuffer(capacity=4))


def test_beside_training_or_before_it_is_the_same_run(model_folder, tmp_path):
    """Sampled in the background by the weights that the phase before begins with: a lag of one phase, to the bit."""
    _, module, _, before = run(model_folder, tmp_path / "before", lag=4)
    _, beside_module, _, beside = run(model_folder, tmp_path / "beside", rollout=RolloutSettings(overlap=True))
    assert beside.updates == before.updates
    assert [update[4] for update in before.updates.values()][4:6] == [[4], [5]]
    for key, value in module.state_dict().items():
        assert torch.equal(value, beside_module.state_dict()[key]), key
    # One may go on as the other.
    path = tmp_path / "before" / "update_step=6.ckpt"
    *_, again = run(model_folder, tmp_path / "again", ckpt_path=path, rollout=RolloutSettings(overlap=True))
    assert again.updates == {n: before.updates[n] for n in range(7, LAST + 1)}


def test_groups_under_way_keep_their_temperature(model_folder, tmp_path):
    run(model_folder, tmp_path / "a", rollout=RolloutSettings(token_budget=2))
    with pytest.raises(InputError, match=r"data\.sampling\.temperature is 0\.5"):
        run(
            model_folder,
            tmp_path / "b",
            ckpt_path=tmp_path / "a" / "update_step=5.ckpt",
            temperature=0.5,
            rollout=RolloutSettings(token_budget=2),
        )


@pytest.mark.parametrize("lag", [0, 4])
def test_another_lag_is_refused(model_folder, tmp_path, lag):
    """Groups that wait would be lost, or trained on at another age than was said."""
    run(model_folder, tmp_path / "a", lag=8)
    with pytest.raises(InputError, match=rf"data\.lag is {lag}, but the checkpoint was made with 8"):
        run(model_folder, tmp_path / "b", ckpt_path=tmp_path / "a" / "update_step=5.ckpt", lag=lag)


@pytest.mark.parametrize("kind", ["lag", "replay"])
def test_another_temperature_is_refused_where_older_groups_are_yet_to_be_trained_on(model_folder, tmp_path, kind):
    """Log-probs are taken at the sampling temperature; at another one every ratio would be wrong, silently."""
    run(model_folder, tmp_path / "a", **settings_of(kind))
    with pytest.raises(InputError, match=r"data\.sampling\.temperature is 0\.5, but .* sampled at 1\.0"):
        run(
            model_folder,
            tmp_path / "b",
            ckpt_path=tmp_path / "a" / "update_step=5.ckpt",
            temperature=0.5,
            **settings_of(kind),
        )


def test_a_phase_may_be_followed_by_one_at_another_temperature(model_folder, tmp_path):
    """Without older groups in the buffer; the interrupted phase still ends at its own."""
    _, _, _, straight = run(model_folder, tmp_path / "a")
    *_, again = run(model_folder, tmp_path / "b", ckpt_path=tmp_path / "a" / "update_step=6.ckpt", temperature=0.5)
    assert [again.updates[n] for n in (7, 8)] == [straight.updates[n] for n in (7, 8)]
    assert again.updates[9] != straight.updates[9]


def test_other_prompts_are_refused(model_folder, tmp_path):
    run(model_folder, tmp_path / "a")
    with pytest.raises(InputError, match=r"data\.task"):
        run(model_folder, tmp_path / "b", ckpt_path=tmp_path / "a" / "update_step=5.ckpt", num_prompts=11)


def test_other_prompts_are_accepted_when_told(model_folder, tmp_path, caplog):
    """The interrupted phase ends on its own groups; the next draws from the new prompts, at the same count."""
    _, _, _, straight = run(model_folder, tmp_path / "a")
    path = tmp_path / "a" / "update_step=5.ckpt"
    *_, data, again = run(model_folder, tmp_path / "b", ckpt_path=path, num_prompts=3, accept_changed_prompts=True)
    assert "not those of the checkpoint" in caplog.text
    assert [again.updates[n] for n in (6, 7, 8)] == [straight.updates[n] for n in (6, 7, 8)]
    drawn = {tuple(i for i in row if i != 2) for n in range(9, 13) for row in again.updates[n][5]}
    assert drawn == {encoded.ids for encoded in data.deck.prompts}


def test_a_checkpoint_of_another_model_is_refused(model_folder, tmp_path):
    run(model_folder, tmp_path / "a")
    with pytest.raises(InputError, match="of another model"):
        run(
            lambda *_: model_folder("llama"),
            tmp_path / "b",
            ckpt_path=tmp_path / "a" / "update_step=5.ckpt",
        )


def test_a_renamed_datamodule_refuses_to_resume(model_folder, tmp_path):
    """Trap 15: Lightning would go on with other data, silently."""
    run(model_folder, tmp_path / "a")
    path = tmp_path / "a" / "update_step=5.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["Renamed"] = checkpoint.pop("ReplayDataModule")
    torch.save(checkpoint, tmp_path / "renamed.ckpt")
    with pytest.raises(InputError, match="ReplayDataModule"):
        run(model_folder, tmp_path / "b", ckpt_path=tmp_path / "renamed.ckpt")


def test_a_hand_built_module_loads_again(model_folder, tmp_path):
    """Traps 7 and 8: no pickled object in the checkpoint, and load_from_checkpoint works with ``weights_only``."""
    _, module, _, _ = run(model_folder, tmp_path / "a")
    path = tmp_path / "a" / f"update_step={LAST}.ckpt"
    loaded = PolicyModule.load_from_checkpoint(path, policy=Policy(str(model_folder())))
    for key, value in module.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[key])
