"""Phases: fresh rollouts, whole groups, exact behaviour log-probs, settings that contradict each other."""

import pytest
import torch
from counting_task import CountingTask, EvenLength
from lightning.pytorch import Callback, Trainer

from bapo_lightning.clipping import DecoupledPPO
from bapo_lightning.datamodule import ReplayDataModule
from bapo_lightning.errors import InputError
from bapo_lightning.models import Policy
from bapo_lightning.module import PolicyModule
from bapo_lightning.replay import MixedSampler, OldestFirstSampler, ReplayBuffer
from bapo_lightning.rollout import HFEngine, RolloutSettings, ScriptedEngine
from bapo_lightning.types import SamplingSettings, Score


class Watch(Callback):
    def __init__(self):
        self.updates = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.updates.append(pl_module.last_update)


class CountingEngine(HFEngine):
    """The real engine, which remembers at which version it was asked."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def generate(self, requests, sampling, precision=None):
        self.asked.append((self.version, len(requests)))
        return super().generate(requests, sampling, precision)


def fit(folder, *, trainer=None, learning_rate=1e-2, clipping=None, **data):
    watch = Watch()
    module = PolicyModule(
        Policy(str(folder)), optimizer=lambda p: torch.optim.SGD(p, lr=learning_rate), clipping=clipping
    )
    settings = {
        "task": CountingTask(),
        "reward": EvenLength(),
        "sampling": SamplingSettings(max_new_tokens=6),
        "group_size": 4,
        "groups_per_phase": 4,
        "groups_per_update": 2,
        "inner_epochs": 2,
        **data,
    }
    datamodule = ReplayDataModule(**settings)
    Trainer(
        **{
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 3,
            "logger": False,
            "callbacks": [watch],
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "reload_dataloaders_every_n_epochs": 1,
            "use_distributed_sampler": False,
            **(trainer or {}),
        }
    ).fit(module, datamodule)
    return watch.updates, datamodule


def test_one_fresh_rollout_a_phase(model_folder):
    """Trap 10, B129: three phases ask the engine three times, each time with the weights of the moment."""
    engine = CountingEngine()
    updates, _ = fit(model_folder(), engine=engine)
    assert engine.asked == [(0, 16), (4, 16), (8, 16)]
    assert len(updates) == 12
    versions = [u.batch.policy_versions[u.batch.response_mask].unique().tolist() for u in updates]
    assert versions == [[0]] * 4 + [[4]] * 4 + [[8]] * 4


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_the_first_ratio_of_a_phase_is_one(model_folder, precision):
    """Traps 26, 27: rollouts and updates compute in the same precision; nothing is clipped at ratio 1.

    In float32 and with mixed precision the two differ by rounding only; with bf16 weights a key-value cache and a full
    forward pass round differently, so the bound is that of the format.
    """
    updates, _ = fit(model_folder(), trainer={"precision": precision})
    limit = 1e-5 if precision == "32-true" else 0.05
    for number in (0, 4, 8):
        update = updates[number]
        assert update.log_ratio[update.batch.response_mask].abs().max() < limit
        assert not update.clipped_low.any()
        assert not update.clipped_high.any()
    # Behaviour log-probs are float32 even where the weights are bf16: Lightning must not have cast the batch.
    assert updates[0].batch.rollout_log_probs.dtype == torch.float32


def test_replayed_tokens_meet_the_weights_of_the_phases_start(model_folder):
    """π_proximal: where a phase begins the policy is the proximal one, for fresh and for replayed tokens alike."""
    updates, _ = fit(model_folder(), clipping=DecoupledPPO(), buffer=ReplayBuffer(capacity=8), learning_rate=0.5)
    for number in (0, 4, 8):
        first = updates[number]
        mask = first.batch.response_mask
        assert (first.log_probs - first.batch.proximal_log_probs)[mask].abs().max() < 1e-5
        assert not (first.clipped_low | first.clipped_high)[mask].any()
    # The two updates of an inner epoch of the third phase: some of their tokens were sampled by older weights.
    masks = {number: updates[number].batch.response_mask for number in (8, 9)}
    replayed = {n: mask & (updates[n].batch.policy_versions < 8) for n, mask in masks.items()}
    assert sum(part.sum() for part in replayed.values()) > 0
    assert max(updates[n].log_ratio[part].abs().max() for n, part in replayed.items() if part.any()) > 1e-3
    # Later updates of a phase are compared with the same weights.
    later = updates[9]
    assert (later.log_probs - later.batch.proximal_log_probs)[later.batch.response_mask].abs().max() > 1e-3


def test_strategies_that_do_not_ask_get_no_proximal_log_probs(model_folder):
    updates, _ = fit(model_folder())
    assert all(update.batch.proximal_log_probs is None for update in updates)


def test_without_learning_every_ratio_stays_one(model_folder):
    """B044: learning rate 0, every inner epoch."""
    updates, _ = fit(model_folder(), learning_rate=0.0)
    assert max(u.log_ratio.abs().max() for u in updates) < 1e-5


def test_groups_are_whole_in_every_update(model_folder):
    updates, data = fit(model_folder())
    prompts = {tuple(e.ids) for e in data.deck.prompts}
    for update in updates:
        rows = [
            tuple(ids[mask].tolist())
            for ids, mask in zip(update.batch.prompt_ids, update.batch.prompt_mask, strict=True)
        ]
        assert len(rows) == 8
        assert set(rows) <= prompts
        assert all(rows.count(row) == 4 for row in rows)
        first = update.batch.advantages[:, 0].view(2, 4).double()
        # A group's advantages sum to zero, so the groups were not mixed.
        torch.testing.assert_close(first.sum(1), torch.zeros(2, dtype=torch.float64), atol=1e-5, rtol=0)


def test_a_missing_reward_takes_its_response_out(model_folder):
    """B040: neither 0 nor 1, but out of numerator and denominator, and counted."""
    updates, data = fit(model_folder(), reward=EvenLength(missing="e"))
    assert data.phase_metrics["rollout/missing_rewards"] > 0
    for update in updates:
        missing = update.batch.rewards.isnan()
        assert not update.batch.loss_mask[missing].any()
        assert (update.batch.advantages[missing] == 0).all()
        assert torch.equal(update.batch.loss_mask[~missing], update.batch.response_mask[~missing])
    assert any(bool(u.batch.rewards.isnan().any()) for u in updates)


def test_long_prompts_are_dropped_and_counted(model_folder):
    """B090: ``10+1=`` and ``11+1=`` have a token more than the others; none is cut."""
    _, data = fit(model_folder(), max_prompt_tokens=4)
    assert len(data.deck.prompts) == 10
    assert data.phase_metrics["rollout/dropped_prompts"] == 2
    assert {len(e.ids) for e in data.deck.prompts} == {4}


def test_empty_responses_pass(model_folder):
    """B091: responses of nothing but the stop id, beside longer ones; and of no token at all."""
    engine = ScriptedEngine(["", "ab", "", "abc"])
    updates, _ = fit(model_folder(), engine=engine)
    assert updates[0].batch.response_mask.sum(1).min() == 1
    engine = ScriptedEngine(["", "ab", "", "abc"], append_stop_id=False)
    updates, _ = fit(model_folder(), engine=engine)
    assert updates[0].batch.response_mask.sum(1).min() == 0
    assert all(u.loss == u.loss for u in updates)


def test_a_larger_buffer_replays_older_groups_within_the_limit(model_folder):
    updates, _ = fit(model_folder(), buffer=ReplayBuffer(capacity=8, max_staleness=7), trainer={"max_epochs": 6})
    ages = [(u.version - u.batch.policy_versions[u.batch.response_mask]).max().item() for u in updates]
    assert 4 <= max(ages) <= 7


def test_too_few_usable_groups_end_the_run_with_the_counts(model_folder):
    """B041, B113: every group uniform and dropped; never an update on nothing."""
    engine = ScriptedEngine(["ab"])
    with pytest.raises(InputError, match="1 generations of a rollout phase sampled 4 groups"):
        fit(model_folder(), engine=engine, buffer=ReplayBuffer(capacity=8, drop_uniform=True))
    with pytest.raises(InputError, match=r"3 generations of a rollout phase sampled 12 groups, .*correct 48"):
        fit(model_folder(), engine=engine, max_generations=3)


@pytest.mark.parametrize("lag", [0, 4, 8])
def test_lag_is_the_age_of_every_token(model_folder, lag):
    """Phases of 4 updates: ages lag … lag + 3, once weights are that old; sampled with the weights of that moment."""
    engine = CountingEngine()
    updates, data = fit(model_folder(), lag=lag, engine=engine, trainer={"max_epochs": 5})
    assert len(updates) == 20
    for number, update in enumerate(updates):
        ages = (update.version - update.batch.policy_versions[update.batch.response_mask]).unique().tolist()
        phase, inner = divmod(number, 4)
        assert ages == [min(lag, 4 * phase) + inner], number
    first_phases = lag // 4 + 1
    assert engine.asked == [(0, 16)] * first_phases + [(4 * p, 16) for p in range(1, 5)]
    assert len(data.buffer) == 4 * first_phases


@pytest.mark.parametrize("phases_held", [1, 2, 3])
def test_replaying_the_oldest_is_an_exact_age(model_folder, phases_held):
    """A buffer of n phases, oldest first: phase p trains on what phase p-n+1 sampled, 4 updates older for each."""
    buffer = ReplayBuffer(capacity=4 * phases_held, sampler=OldestFirstSampler())
    updates, data = fit(model_folder(), buffer=buffer, trainer={"max_epochs": 5})
    for number, update in enumerate(updates):
        ages = (update.version - update.batch.policy_versions[update.batch.response_mask]).unique().tolist()
        phase, inner = divmod(number, 4)
        assert ages == [4 * min(phases_held - 1, phase) + inner], number
    assert data.phase_metrics["buffer/groups"] == 4 * phases_held


def test_a_fixed_part_of_every_phase_is_fresh(model_folder):
    """Two of four groups were sampled by the weights that the phase begins with, two by older ones."""
    buffer = ReplayBuffer(capacity=12, sampler=MixedSampler(fresh_fraction=0.5))
    _, data = fit(model_folder(), buffer=buffer, trainer={"max_epochs": 5})
    newest = [t.completion.policy_versions[0] for t in data.phase_trajectories[::4]]
    assert sorted(v == 16 for v in newest) == [False, False, True, True]


def test_lag_trains_on_the_same_prompts_in_the_same_phases(model_folder):
    phases = []
    for lag in (0, 8):
        updates, _ = fit(model_folder(), lag=lag)
        prompts = [
            {tuple(ids[mask].tolist()) for ids, mask in zip(u.batch.prompt_ids, u.batch.prompt_mask, strict=True)}
            for u in updates
        ]
        phases.append([set().union(*prompts[first : first + 4]) for first in (0, 4, 8)])
    assert phases[0] == phases[1]


@pytest.mark.parametrize("lag", [-4, 1, 6])
def test_a_lag_that_no_phase_boundary_meets_is_refused(model_folder, lag):
    with pytest.raises(InputError, match=r"data\.lag must be a multiple of the 4 updates"):
        fit(model_folder(), lag=lag)


def test_dynamic_sampling_trains_on_groups_that_teach_only(model_folder):
    updates, data = fit(model_folder(), max_generations=50, group_size=2)
    assert len(updates) == 12
    for update in updates:
        for group in update.batch.rewards.view(-1, 2):
            assert len(set(group.tolist())) > 1
    started = data.collector.state_dict()["groups_started"]
    assert started > 12
    assert data.buffer.counts.dropped_uniform == started - 12


def test_a_phase_with_fewer_groups_has_fewer_updates(model_folder, caplog):
    """Three of four prompts always fail alike: one group a generation, two generations, one update of two groups."""

    class OnePromptTeaches(EvenLength):
        def score(self, responses, answers, finish_reasons=None):
            scores = super().score(responses, answers, finish_reasons)
            teaches = [i % 16 < 4 for i in range(len(scores))]
            return [s if keep else Score(0.0, "wrong") for s, keep in zip(scores, teaches, strict=True)]

    updates, data = fit(
        model_folder(), reward=OnePromptTeaches(), max_generations=2, trainer={"max_epochs": 1}, inner_epochs=3
    )
    assert data.phase_metrics["rollout/dropped_uniform_groups"] > 0
    assert "trains on" in caplog.text
    assert len(updates) == 3
    assert all(update.batch.num_responses <= 8 for update in updates)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"buffer": ReplayBuffer(capacity=4, max_staleness=2)}, ["max_staleness", "at least 3"]),
        ({"buffer": ReplayBuffer(capacity=3)}, ["data.buffer.capacity", "groups_per_phase"]),
        ({"buffer": ReplayBuffer(capacity=11), "lag": 4}, ["data.buffer.capacity", "12", "3 phases"]),
        ({"buffer": ReplayBuffer(capacity=12), "lag": 4, "rollout": RolloutSettings(2)}, ["data.buffer.capacity"]),
        ({"rollout": RolloutSettings(token_budget=6)}, ["data.rollout.token_budget = 6", "max_new_tokens = 6"]),
        ({"rollout": RolloutSettings(overlap=True), "lag": 0}, ["data.lag is 0", "overlap", "4"]),
        ({"group_size": 1}, ["data.group_size"]),
        ({"max_generations": 0}, ["data.max_generations"]),
        ({"max_generations": 2, "buffer": ReplayBuffer()}, ["data.max_generations", "data.buffer.drop_uniform"]),
        ({"inner_epochs": 0}, ["data.inner_epochs"]),
        ({"groups_per_update": 3}, ["groups_per_update", "groups_per_phase"]),
        ({"sampling": SamplingSettings(top_k=5)}, ["data.sampling", "top_k"]),
        ({"sampling": SamplingSettings(temperature=0.0)}, ["data.sampling.temperature"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused(model_folder, settings, words):
    with pytest.raises(InputError) as caught:
        fit(model_folder(), **settings)
    assert all(word in str(caught.value) for word in words)


def test_an_engine_of_an_earlier_run_samples_from_the_new_model(model_folder):
    engine = HFEngine()
    fit(model_folder(), engine=engine, learning_rate=0.0)
    updates, _ = fit(model_folder(seed=1), engine=engine, learning_rate=0.0)
    assert max(u.log_ratio.abs().max() for u in updates) < 1e-5


def test_the_data_of_an_earlier_run_is_refused(model_folder):
    """Its groups and cursor are those of another policy; from a checkpoint it may go on."""
    _, data = fit(model_folder())
    data.trainer = Trainer(accelerator="cpu", logger=False, reload_dataloaders_every_n_epochs=1)
    with pytest.raises(InputError, match="make a new one"):
        data.setup("fit")
