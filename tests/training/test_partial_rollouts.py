"""Partial rollouts: responses over a phase's token budget go on later, with the weights of that moment."""

import random
from collections import Counter

import pytest
import torch
from counting_task import CountingTask, EvenLength
from hypothesis import given, settings
from hypothesis import strategies as st
from test_datamodule import Watch, fit

from bapo_lightning.collector import Collector
from bapo_lightning.deck import EncodedPrompt, PromptDeck
from bapo_lightning.errors import InputError
from bapo_lightning.models import Policy
from bapo_lightning.objective import log_ratio
from bapo_lightning.replay import ReplayBuffer, newest_version, oldest_version, staleness
from bapo_lightning.rollout import HFEngine, RolloutSettings, ScriptedEngine
from bapo_lightning.types import Completion, Prompt, SamplingSettings, Score, TokenBatch, Trajectory

LIMIT = 12


@pytest.fixture(scope="module")
def policy(model_folder):
    return Policy(str(model_folder())).load()


def make_collector(policy, answers, *, budget, train_on="all", groups=1, group_size=2, limit=LIMIT):
    engine = ScriptedEngine(answers)
    engine.attach(policy)
    collector = Collector(
        engine,
        EvenLength(),
        RolloutSettings(token_budget=budget, train_on=train_on),
        SamplingSettings(max_new_tokens=limit),
        group_size=group_size,
        groups_per_phase=groups,
        max_generations=1,
        drop_uniform=False,
        seed=0,
    )
    prompts = [EncodedPrompt(prompt, (3, 4)) for prompt in CountingTask(50).load()]
    collector.attach(PromptDeck(prompts, seed=0))
    return collector


def sample_phase(collector, version):
    """Finished groups of a phase, sampled by weights of this version, without waiting for more."""
    collector.engine.sync_weights(version)
    return collector.go_on(collector.groups_per_phase)


def test_each_token_has_the_version_that_sampled_it(policy):
    """B110: begun at version 3, weights 4 arrive halfway: per token 3 … 4; with the trainer at 5 it is 2 old."""
    collector = make_collector(policy, ["abcdef"], budget=4)
    assert sample_phase(collector, 3) == []
    finished = sample_phase(collector, 4)
    assert [t.completion.policy_versions for t in finished] == [(3, 3, 3, 3, 4, 4, 4)] * 2
    assert [t.text for t in finished] == ["abcdef"] * 2
    assert (oldest_version(finished), newest_version(finished), staleness(finished, 5)) == (3, 4, 2)
    assert finished[0].sampled_version == 3
    assert finished[0].completion.finish_reason == "stop"


def make_mixed(oldest_trained_version=0, versions=(0, 0, 1, 1), log_probs=(-1.0, -1.0, -2.0, -2.0)):
    ids = tuple(range(5, 5 + len(versions)))
    completion = Completion(ids, log_probs, versions, "stop")
    return Trajectory(
        Prompt("p", "", ""), (3,), completion, 0, 0, 0, reward=1.0, oldest_trained_version=oldest_trained_version
    )


def batch_of(*trajectories):
    return TokenBatch.from_trajectories(trajectories, pad_id=2, temperature=1.0, length_limit=8)


def test_ratios_of_a_response_that_two_versions_wrote():
    """B116: version 0 wrote [−1, −1], version 1 [−2, −2]; current [−1.2, −.8, −2, −2]."""
    batch = batch_of(make_mixed())
    ratios = log_ratio(torch.tensor([[-1.2, -0.8, -2.0, -2.0]]), batch.rollout_log_probs).exp()
    torch.testing.assert_close(ratios, torch.tensor([[0.8187308, 1.2214028, 1.0, 1.0]]))
    assert batch.policy_versions.tolist() == [[0, 0, 1, 1]]
    assert batch.loss_mask.all()


def test_the_mask_of_a_resumed_response_covers_all_of_it():
    """B114: 3 old tokens that are not trained, 2 new ones: mask 00011; ids, log-probs and mask all of length 5."""
    batch = batch_of(make_mixed(1, versions=(0, 0, 0, 1, 1), log_probs=(-1.0,) * 5))
    assert batch.loss_mask.tolist() == [[False, False, False, True, True]]
    assert batch.response_ids.shape == batch.rollout_log_probs.shape == batch.loss_mask.shape == (1, 5)
    assert batch.response_mask.all()


def test_training_on_the_current_version_only(policy):
    """A member that an earlier phase finished has no token of the version that finished its group."""
    collector = make_collector(policy, ["ab", "abcdef"], budget=4, train_on="current_version")
    assert sample_phase(collector, 3) == []
    finished = sample_phase(collector, 4)
    batch = batch_of(*finished)
    assert batch.loss_mask.tolist() == [[False] * 7, [False] * 4 + [True] * 3]
    # The group is whole all the same: rewards of both are there for the baseline.
    assert batch.rewards.tolist() == [1.0, 1.0]


def test_a_response_that_never_stops_ends_at_the_limit_of_all_its_segments(policy):
    """12 tokens at 5 a phase: 5, 5 and 2, then ``length``; never resumed again."""
    collector = make_collector(policy, ["z" * 40], budget=5)
    assert sample_phase(collector, 0) == []
    assert [len(t.completion.token_ids) for t in collector.open_groups[0]] == [5, 5]
    assert sample_phase(collector, 1) == []
    finished = sample_phase(collector, 2)
    assert [t.completion.policy_versions for t in finished] == [(0,) * 5 + (1,) * 5 + (2,) * 2] * 2
    assert {t.completion.finish_reason for t in finished} == {"length"}
    assert {t.group_id for t in finished} == {0}


def test_a_phase_waits_until_it_is_full(policy):
    """Nothing is finished within the budget: it samples on, same weights, and starts what the next phase needs."""
    collector = make_collector(policy, ["a" * 9], budget=4, groups=3)
    collector.engine.sync_weights(7)
    collected = collector.collect()
    assert [g[0].completion.policy_versions for g in collected.filled.kept] == [(7,) * 10] * 3
    assert collected.filled.generations == 3
    assert collected.num_unfinished == 2 * 3 * 2
    collector.engine.sync_weights(8)
    collected = collector.collect()
    assert [g[0].completion.policy_versions for g in collected.filled.kept] == [(7,) * 8 + (8,) * 2] * 3
    assert collected.filled.generations == 1


def test_groups_that_would_be_too_old_are_given_up_and_counted(policy):
    collector = make_collector(policy, ["z" * 40, "a"], budget=5)
    sample_phase(collector, 0)
    collector.engine.sync_weights(4)
    collected = collector.collect(oldest_useful_version=1)
    assert collected.num_expired == 1
    assert collected.num_resumed == 0
    assert [group[0].group_id for group in collected.filled.kept] == [1]


@given(
    lengths=st.lists(st.integers(0, 15), min_size=6, max_size=6),
    budget=st.integers(1, LIMIT - 1),
    phases=st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_every_group_comes_out_once_and_whole(policy, lengths, budget, phases):
    """Whatever is cut where: texts, limits and versions; started = finished + under way."""
    answers = {f"count/{i}": "x" * lengths[i % 6] for i in range(50)}
    collector = make_collector(policy, answers, budget=budget, groups=2)
    finished = [t for version in range(phases) for t in sample_phase(collector, version)]
    ids = Counter(t.group_id for t in finished)
    assert set(ids.values()) <= {2}
    assert sorted([*ids, *(group[0].group_id for group in collector.open_groups)]) == list(range(2 * phases))
    for t in finished:
        wanted = lengths[int(t.prompt.id.partition("/")[2]) % 6]
        assert len(t.completion.token_ids) == min(wanted + 1, LIMIT)
        assert t.completion.finish_reason == ("stop" if wanted + 1 <= LIMIT else "length")
        versions = t.completion.policy_versions
        begun = t.group_id // 2
        assert versions == tuple(begun + i // budget for i in range(len(versions)))
    for group in collector.open_groups:
        assert not all(t.is_finished for t in group)
        # No response is under way for longer than its limit allows.
        assert phases - group[0].group_id // 2 <= -(-LIMIT // budget)


def texts_by_response(updates):
    return {
        (tuple(p[pm].tolist()), tuple(r[rm].tolist()))
        for u in updates
        for p, pm, r, rm in zip(
            u.batch.prompt_ids, u.batch.prompt_mask, u.batch.response_ids, u.batch.response_mask, strict=True
        )
    }


def test_the_cut_does_not_change_what_is_sampled(model_folder):
    """Learning rate 0: the responses are those of a run without a budget, token by token."""
    whole, _ = fit(model_folder(), learning_rate=0.0, trainer={"max_epochs": 4})
    cut, data = fit(
        model_folder(), learning_rate=0.0, trainer={"max_epochs": 4}, rollout=RolloutSettings(token_budget=2)
    )
    assert texts_by_response(cut) <= texts_by_response(whole)
    assert len(texts_by_response(cut)) > 20
    assert max(u.log_ratio.abs().max() for u in cut) < 1e-5
    assert data.phase_metrics["rollout/resumed"] > 0


class Remembering(Watch):
    """Keeps the weights before every update."""

    def __init__(self):
        super().__init__()
        self.weights = {}

    def on_train_batch_start(self, trainer, pl_module, *args):
        state = pl_module.policy.state_dict()
        self.weights[trainer.global_step] = {name: value.clone() for name, value in state.items()}


def test_each_segment_has_the_log_probs_of_the_weights_that_sampled_it(model_folder):
    """Scored afresh with the weights of every version, the tokens of that version have exactly these log-probs."""
    remembered = Remembering()
    updates, _ = fit(
        model_folder(),
        rollout=RolloutSettings(token_budget=2),
        trainer={"max_epochs": 6, "callbacks": [watch := Watch(), remembered]},
    )
    updates = watch.updates
    mixed = 0
    policy = Policy(str(model_folder())).load()
    for update in updates:
        batch = update.batch
        for version in batch.policy_versions[batch.response_mask].unique().tolist():
            policy.load_state_dict(remembered.weights[version])
            part = batch.response_mask & (batch.policy_versions == version)
            with torch.no_grad():
                scored = policy.score(batch).log_probs
            assert (scored - batch.rollout_log_probs)[part].abs().max() < 1e-5
        oldest = torch.where(batch.response_mask, batch.policy_versions, 10**6).amin(1)
        newest = torch.where(batch.response_mask, batch.policy_versions, -1).amax(1)
        mixed += int((newest > oldest).sum())
    assert mixed > 10


@pytest.mark.parametrize("replayed", [False, True])
def test_every_group_is_trained_once_a_phase_and_none_is_lost(model_folder, replayed):
    """Without replay: what was started is trained on exactly E times, or still waits."""
    buffer = ReplayBuffer(capacity=12) if replayed else None
    updates, data = fit(
        model_folder(),
        rollout=RolloutSettings(token_budget=2),
        buffer=buffer,
        task=CountingTask(200),
        trainer={"max_epochs": 6},
    )
    trained = Counter(
        tuple(p[m].tolist()) for u in updates for p, m in zip(u.batch.prompt_ids, u.batch.prompt_mask, strict=True)
    )
    started = data.collector.state_dict()["groups_started"]
    # 6 phases of 4, and what the first one starts while it waits: 6 tokens at 2 a phase take three.
    assert 24 < started <= 24 + 2 * 4
    if replayed:
        assert max(trained.values()) > 8
        return
    assert set(trained.values()) == {8}  # 4 responses × 2 inner epochs
    present = set(data.queue.phase_group_ids)
    waiting = [group for group in data.buffer.groups if group[0].group_id not in present]
    assert len(trained) + len(waiting) + len(data.collector.open_groups) == started
    asked = {e.ids for e in data.deck.draw(0, started)}
    assert set(trained) <= asked


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_budget": 0}, "token_budget"),
        ({"train_on": "newest"}, "train_on"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        RolloutSettings(**change)


def test_the_engine_goes_on_in_the_stream_of_a_response(policy):
    """Draw k of a response is the same number, whether it is sampled at one go or from token 3 on."""
    from bapo_lightning.types import GenerationRequest

    engine = HFEngine()
    engine.attach(policy)
    engine.sync_weights(0)
    sampling = SamplingSettings(max_new_tokens=20)
    requests = [GenerationRequest((0, 5, 6), seed, "") for seed in range(30)]
    whole = engine.generate(requests, sampling)
    longer = [i for i, c in enumerate(whole) if len(c.token_ids) > 5]
    assert len(longer) > 5
    tails = engine.generate(
        [
            GenerationRequest((0, 5, 6), i, "", response_ids=whole[i].token_ids[:3], max_new_tokens=2 + i % 3)
            for i in longer
        ],
        sampling,
    )
    for i, tail in zip(longer, tails, strict=True):
        expected = whole[i].token_ids[3 : 5 + i % 3]
        assert tail.token_ids == expected
        assert tail.log_probs == pytest.approx(whole[i].log_probs[3 : 3 + len(expected)], abs=1e-5)
        assert tail.finish_reason == ("stop" if expected[-1] in policy.stop_ids else "length")


class Lengths(ScriptedEngine):
    """The n-th prompt gets an answer of ``lengths[n]`` tokens."""

    def __init__(self, lengths):
        super().__init__(["a"])
        self.lengths, self.order = lengths, {}

    def _text(self, request):
        return "a" * (self.lengths[self.order.setdefault(request.prompt_ids, len(self.order))] - 1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lag": 1},
        {"lag": 2},
        {"lag": 2, "rollout": RolloutSettings(token_budget=2, overlap=True)},
        {"rollout": RolloutSettings(token_budget=2, overlap=True), "max_staleness": 8},
    ],
)
@pytest.mark.parametrize("seed", [2, 3])
def test_a_phase_never_starves_while_groups_are_under_way(model_folder, settings, seed):
    """Lengths of 1 and 12 at a budget of 2: groups that are left over may be used up by the phases before."""
    rng = random.Random(seed)
    settings = dict(settings)
    if "max_staleness" in settings:
        settings["buffer"] = ReplayBuffer(max_staleness=settings.pop("max_staleness"))
    updates, _ = fit(
        model_folder(),
        engine=Lengths([rng.choice([1, 12]) for _ in range(300)]),
        task=CountingTask(300),
        sampling=SamplingSettings(max_new_tokens=LIMIT),
        group_size=2,
        groups_per_phase=1,
        groups_per_update=1,
        inner_epochs=1,
        trainer={"max_epochs": 30},
        **{"rollout": RolloutSettings(token_budget=2), **settings},
    )
    assert len(updates) == 30


class SeldomWrong(EvenLength):
    """Right nine times in ten, so that two of three groups of four are uniform."""

    def __init__(self):
        super().__init__()
        self.rng = random.Random(0)

    def score(self, responses, answers, finish_reasons=None):
        right = [self.rng.random() < 0.9 for _ in responses]
        return [Score(float(r), "correct" if r else "wrong") for r in right]


def test_a_budget_does_not_end_the_search_for_groups_that_teach(model_folder):
    """Dynamic sampling may go on as often as it was allowed to, also for groups that take several samplings."""
    updates, _ = fit(
        model_folder(),
        reward=SeldomWrong(),
        rollout=RolloutSettings(token_budget=5),
        max_generations=50,
        groups_per_phase=1,
        groups_per_update=1,
        inner_epochs=1,
        task=CountingTask(200),
        trainer={"max_epochs": 10},
    )
    assert len(updates) == 10
