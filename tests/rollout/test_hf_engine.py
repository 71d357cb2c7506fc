"""Sampling with a real tiny model: own streams, exact log-probs, right stops."""

import math

import pytest
import torch
import torch.nn.functional as F

from bapo_lightning.models import Policy
from bapo_lightning.rollout import HFEngine
from bapo_lightning.rollout.sampler import RowStream, SeededSampler
from bapo_lightning.types import GenerationRequest, Prompt, SamplingSettings, TokenBatch, Trajectory


@pytest.fixture(params=["qwen2", "gpt2"])
def engine(request, model_folder):
    engine = HFEngine(max_batch_size=4)
    engine.attach(Policy(str(model_folder(request.param))).load())
    engine.sync_weights(3)
    return engine


def requests(*seeds, prompt=(0, 5, 6)):
    return [GenerationRequest(prompt, seed) for seed in seeds]


def test_behaviour_log_probs_are_the_trainers(engine):
    """B044: before any update the ratio is 1, for two batch sizes."""
    sampling = SamplingSettings(max_new_tokens=12, temperature=0.7)
    prompts = [(0, 5, 6), (0, 7), (0, 8, 9, 10, 11), (0, 3)]
    for size in (1, 4):
        engine.max_batch_size = size
        asked = [GenerationRequest(prompt, seed) for seed, prompt in enumerate(prompts)]
        completions = engine.generate(asked, sampling)
        trajectories = [
            Trajectory(Prompt(str(i), "", ""), p, c, 0, i, 3, reward=1.0)
            for i, (p, c) in enumerate(zip(prompts, completions, strict=True))
        ]
        batch = TokenBatch.from_trajectories(trajectories, pad_id=2, temperature=0.7, length_limit=12)
        difference = engine.policy.score(batch).log_probs - batch.rollout_log_probs
        assert difference.abs().max() < 1e-5
        assert (batch.rollout_log_probs[batch.response_mask] < 0).all()


def test_a_response_depends_on_its_seed_alone(engine):
    """B088: equal seeds repeat whatever the batch; other seeds differ."""
    sampling = SamplingSettings(max_new_tokens=12)
    together = engine.generate(requests(1, 2, 3, 4, 5), sampling)
    alone = [engine.generate(requests(seed), sampling)[0] for seed in (1, 2, 3, 4, 5)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert len({c.token_ids for c in together}) == 5
    mixed = engine.generate([*requests(9, prompt=(0, 5, 6, 7, 8, 9, 10)), *requests(2)], sampling)
    assert mixed[1].token_ids == together[1].token_ids


def test_completions_are_cut_at_the_first_stop_id_and_stamped(engine):
    engine.policy.stop_ids = (1, *range(20, 40))
    completions = engine.generate(requests(*range(8)), SamplingSettings(max_new_tokens=16))
    assert {c.finish_reason for c in completions} == {"stop"}
    for completion in completions:
        assert completion.token_ids[-1] in engine.policy.stop_ids
        assert not set(completion.token_ids[:-1]) & set(engine.policy.stop_ids)
        assert len(completion.token_ids) == len(completion.log_probs) == len(completion.policy_versions)
        assert set(completion.policy_versions) == {3}


def test_the_limit_ends_a_response_with_reason_length(engine):
    engine.policy.stop_ids = (63,)
    completions = engine.generate(requests(*range(4)), SamplingSettings(max_new_tokens=3))
    assert [len(c.token_ids) for c in completions if c.finish_reason == "length"] == [3] * sum(
        c.finish_reason == "length" for c in completions
    )
    assert any(c.finish_reason == "length" for c in completions)


def test_temperature_zero_takes_the_most_probable_token(engine):
    greedy = engine.generate(requests(1, 2), SamplingSettings(max_new_tokens=4, temperature=0.0))
    logits = engine.policy.model(torch.tensor([[0, 5, 6]])).logits[0, -1]
    assert greedy[0].token_ids == greedy[1].token_ids
    assert greedy[0].token_ids[0] == int(logits.argmax())


def test_the_mode_of_the_model_is_given_back(engine):
    engine.policy.model.train()
    engine.generate(requests(1), SamplingSettings(max_new_tokens=2))
    assert engine.policy.model.training


def test_sampled_frequencies_are_the_softmax():
    """20,000 draws from logits [2, 1, 0] at temperature .6: each frequency within 4 standard errors."""
    logits = torch.tensor([2.0, 1.0, 0.0])
    count = 20_000
    sampler = SeededSampler(
        [RowStream(seed) for seed in range(count)], SamplingSettings(max_new_tokens=1, temperature=0.6), 1
    )
    chosen = sampler(torch.zeros(count, 1), logits.expand(count, 3))
    tokens = sampler.tokens[0]
    assert torch.equal(chosen.argmax(-1), tokens)
    probabilities = F.softmax(logits.double() / 0.6, -1)
    for token, p in enumerate(probabilities.tolist()):
        frequency = (tokens == token).double().mean().item()
        assert abs(frequency - p) < 4 * math.sqrt(p * (1 - p) / count)
    torch.testing.assert_close(sampler.log_probs[0].double(), probabilities.log()[tokens], atol=1e-6, rtol=0)


def test_impossible_tokens_are_never_drawn():
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")])
    sampler = SeededSampler([RowStream(seed) for seed in range(2000)], SamplingSettings(max_new_tokens=1), 1)
    sampler(torch.zeros(2000, 1), logits.expand(2000, 5))
    assert set(sampler.tokens[0].tolist()) == {1, 3}
    # A draw at the very top of the range takes the last token that has mass, and no token beyond it.
    sampler._uniform[:] = 1.0
    sampler.step = 0
    sampler(torch.zeros(2000, 1), logits.expand(2000, 5))
    assert set(sampler.tokens[1].tolist()) == {3}


def test_top_p_cuts_the_tail_in_evaluation():
    logits = torch.tensor([3.0, 2.0, -4.0, -5.0])
    sampler = SeededSampler([RowStream(seed) for seed in range(2000)], SamplingSettings(max_new_tokens=1, top_p=0.9), 1)
    sampler(torch.zeros(2000, 1, dtype=torch.int64), logits.expand(2000, 4))
    assert set(sampler.tokens[0].tolist()) == {0, 1}
