"""One update: the same whatever the micro-batch, exact against a plain float64 computation, and never silent."""

import pytest
import torch
import torch.nn.functional as F
from harness import fit, make_module, random_batch, weights
from lightning.pytorch import Callback

from bapo_lightning.clipping import GSPO, BAPOClip, ClipHigher, FixedClip, TopEntropyTokens
from bapo_lightning.errors import InputError


def gradient_of_update(folder, batch, **settings):
    """Gradient (SGD step / learning rate), loss and bounds of one update."""
    module = make_module(folder, dtype=torch.float64, **settings)
    before = weights(module)
    fit(module, [batch], precision="64-true")
    after = weights(module)
    gradient = {name: (before[name] - after[name]) / 0.1 for name in before}
    return gradient, module.last_update


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("statistics_pass", ["keep_graphs", "extra_forward"])
@pytest.mark.parametrize(
    "clipping",
    [
        FixedClip(),
        BAPOClip(target=0.6),
        BAPOClip(target=0.5, contribution="gradient", weighting="none"),
        GSPO(low=0.7, high=1.3),
        TopEntropyTokens(inner=BAPOClip()),
    ],
    ids=["fixed", "bapo", "bapo_gradient", "gspo", "top_entropy_of_bapo"],
)
def test_micro_batches_change_nothing(model_folder, clipping, aggregation, statistics_pass):
    """B055, B057, B068: loss, bounds and gradient are equal for every cut, to 1e-9 in float64."""
    batch = random_batch(missing=(4,), dtype=torch.float64)
    settings = {
        "clipping": clipping,
        "aggregation": aggregation,
        "statistics_pass": statistics_pass,
        "kl_coefficient": 0.1,
        "entropy_coefficient": 0.01,
    }
    whole, record = gradient_of_update(model_folder(), batch, **settings)
    assert max(g.abs().max() for g in whole.values()) > 1e-3
    for size in (1, 2, 4, 5):
        cut, cut_record = gradient_of_update(model_folder(), batch, micro_batch_size=size, **settings)
        assert cut_record.loss == pytest.approx(record.loss, abs=1e-9)
        assert (cut_record.bounds.low, cut_record.bounds.high) == (record.bounds.low, record.bounds.high)
        assert cut_record.bounds.value_share == pytest.approx(record.bounds.value_share, abs=1e-9)
        assert torch.equal(cut_record.clipped_low, record.clipped_low)
        assert torch.equal(cut_record.clipped_high, record.clipped_high)
        torch.testing.assert_close(cut_record.log_probs, record.log_probs, atol=1e-9, rtol=0)
        for name in whole:
            torch.testing.assert_close(cut[name], whole[name], atol=1e-9, rtol=0, msg=name)


def plain_loss(model, batch, low, high, temperature):
    """Token-mean PPO loss, one response at a time, straight from the definition."""
    total, count = 0.0, 0
    for i in range(batch.num_responses):
        prompt = batch.prompt_ids[i][batch.prompt_mask[i]]
        response = batch.response_ids[i][batch.response_mask[i]]
        if not batch.loss_mask[i].any():
            continue
        logits = model(torch.cat([prompt, response])[None]).logits[0].double() / temperature
        for t, token in enumerate(response):
            log_prob = F.log_softmax(logits[len(prompt) + t - 1], -1)[token]
            ratio = (log_prob - batch.rollout_log_probs[i, t]).exp()
            advantage = batch.advantages[i, t]
            total = total + torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
            count += 1
    return -total / count


def test_the_gradient_is_that_of_the_definition(model_folder):
    batch = random_batch(missing=(3,), dtype=torch.float64)
    module = make_module(model_folder(), dtype=torch.float64)
    loss = plain_loss(module.policy.model, batch, 0.8, 1.28, 0.8)
    parameters = dict(module.policy.named_parameters())
    expected = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
    gradient, record = gradient_of_update(model_folder(), batch, clipping=ClipHigher())
    assert record.loss == pytest.approx(loss.item(), abs=1e-9)
    for name in expected:
        torch.testing.assert_close(gradient[name], expected[name], atol=1e-9, rtol=1e-9, msg=name)


def test_one_update_a_batch_and_exact_max_steps(model_folder):
    """B122: 8 batches are 8 updates; max_steps 5 stops after exactly 5."""
    batches = [random_batch(seed=i) for i in range(8)]
    for micro_batch_size in (None, 2):
        module = make_module(model_folder(), micro_batch_size=micro_batch_size)
        assert fit(module, batches).global_step == 8
        module = make_module(model_folder(), micro_batch_size=micro_batch_size)
        assert fit(module, batches, max_steps=5).global_step == 5


def test_the_schedule_moves_once_an_update(model_folder):
    """B128: StepLR with factor .5, three updates."""
    seen = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            seen.append(pl_module.last_update.learning_rate)

    module = make_module(
        model_folder(), lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    )
    fit(module, [random_batch()] * 3, callbacks=[Watch()])
    assert seen == [0.1, 0.05, 0.025]
    assert module.lr_schedulers().get_last_lr() == [0.0125]


def test_gradients_are_scaled_to_the_limit(model_folder):
    """B126: the norm after clipping is at most the value; the logged one is the norm before."""
    _, free = gradient_of_update(model_folder(), random_batch(dtype=torch.float64))
    limit = free.grad_norm / 3
    gradient, record = gradient_of_update(model_folder(), random_batch(dtype=torch.float64), max_grad_norm=limit)
    assert record.grad_norm == pytest.approx(free.grad_norm, rel=1e-9)
    norm = torch.stack([g.norm() for g in gradient.values()]).norm().item()
    assert norm == pytest.approx(limit, rel=1e-5)


def test_an_update_on_nothing_is_counted_and_changes_nothing(model_folder):
    """B059: every reward missing; Adam's momentum of the update before must not move the weights either."""
    module = make_module(model_folder(), optimizer=lambda p: torch.optim.AdamW(p, lr=0.01), kl_coefficient=0.1)
    states = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            states.append((weights(pl_module), pl_module.last_update))

    trainer = fit(module, [random_batch(), random_batch(missing=range(6))], callbacks=[Watch()])
    assert trainer.global_step == 2
    (first, first_record), (second, second_record) = states
    assert not first_record.skipped
    assert second_record.skipped
    assert second_record.loss == 0.0
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("advantage", "error", "message"),
    [
        (float("nan"), InputError, "advantages is nan at response 1, token 0"),
        (3e38, RuntimeError, "gradient norm of update 1"),
    ],
    ids=["nan", "overflow"],
)
def test_a_gradient_that_is_not_finite_stops_the_run(model_folder, advantage, error, message):
    module = make_module(model_folder())
    before = weights(module)
    batch = random_batch()
    batch.advantages[1, 0] = advantage
    with pytest.raises(error, match=message):
        fit(module, [batch])
    assert all(torch.equal(before[name], p) for name, p in weights(module).items())


@pytest.mark.parametrize(
    ("settings", "ours"),
    [({"gradient_clip_val": 1.0}, "model.max_grad_norm"), ({"accumulate_grad_batches": 2}, "model.micro_batch_size")],
)
def test_trainer_settings_that_do_not_apply_name_ours(model_folder, settings, ours):
    """B126."""
    with pytest.raises(InputError, match=ours):
        fit(make_module(model_folder()), [random_batch()], **settings)


@pytest.mark.parametrize(
    "settings",
    [{"kl_coefficient": -0.1}, {"max_grad_norm": 0.0}, {"micro_batch_size": 0}],
)
def test_impossible_settings_are_refused(model_folder, settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        make_module(model_folder(), **settings)


def test_fused_adamw_under_bf16_mixed_with_clipping(model_folder):
    """Lightning's own clipping raises here; the update must still work, and the extra pass must not freeze weights."""
    module = make_module(
        model_folder(),
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        max_grad_norm=0.5,
        micro_batch_size=2,
    )
    before = weights(module)
    fit(module, [random_batch()], precision="bf16-mixed")
    assert sum(not torch.equal(before[name], p) for name, p in weights(module).items()) == len(before)
