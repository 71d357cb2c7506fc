"""The built-in task: problems, demonstrations, and the policy that the package ships."""

import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bapo_lightning.errors import InputError
from bapo_lightning.models.location import locate_model
from bapo_lightning.rewards import MathReward
from bapo_lightning.tasks import DigitsTask, encode_prompt
from bapo_lightning.tasks.digits.demonstrations import RESPONSE_LIMIT, Demonstrator
from bapo_lightning.tasks.digits.vocabulary import TOKENS, build_tokenizer

WARM_START = "package:bapo_lightning/tasks/digits/warm_start"
REPOSITORY = Path(__file__).resolve().parents[2]


def running_sums(digits):
    return [sum(digits[: i + 1]) % 10 for i in range(len(digits))]


def test_problems_are_right_different_and_repeatable():
    prompts = DigitsTask(num_prompts=300, num_digits=6).load()
    assert len({p.id for p in prompts}) == len({p.messages for p in prompts}) == 300
    for prompt in prompts:
        digits = [int(d) for d in re.findall(r"\d", prompt.messages)]
        assert len(digits) == 6
        assert prompt.answer == str(sum(digits) % 10)
    assert DigitsTask(num_prompts=300, num_digits=6).load() == prompts
    assert DigitsTask(num_prompts=300, num_digits=6, seed=1).load() != prompts


def test_a_validation_set_can_skip_the_training_set():
    train = {p.messages for p in DigitsTask(num_prompts=60, num_digits=2).load()}
    held_out = {p.messages for p in DigitsTask(num_prompts=40, num_digits=2, skip=60).load()}
    assert len(train | held_out) == 100


@pytest.mark.parametrize("settings", [{"num_prompts": 0}, {"num_digits": 0}, {"num_digits": 2, "num_prompts": 101}])
def test_impossible_problems_are_refused(settings):
    with pytest.raises(InputError):
        DigitsTask(**settings).load()


def test_flawless_demonstrations_state_the_running_sums_and_are_correct():
    writer, rng = Demonstrator(error_rate=0.0, hesitation=0.5), random.Random(0)
    for _ in range(50):
        digits = [rng.randrange(10) for _ in range(6)]
        tokens = writer.write(digits, rng)
        sums = running_sums(digits)
        assert [int(t) for t in tokens[1:7]] == sums
        text = " ".join(tokens[:-1])
        (score,) = MathReward().score([text], [str(sums[-1])])
        assert score.status == "correct"
        assert tokens[-1] == "<eos>"


def test_errors_are_calibrated_and_make_responses_longer():
    """Error rate .2 over 6 sums: .8⁶ = .262 right at once, and one attempt in ten of the rest is begun anew."""
    writer, rng = Demonstrator(error_rate=0.2, hesitation=0.7), random.Random(0)
    counts, lengths = Counter(), {True: [], False: []}
    for _ in range(4000):
        tokens = writer.write([rng.randrange(10) for _ in range(6)], rng)
        right = "\\boxed{" in tokens
        counts[right] += 1
        lengths[right].append(len(tokens))
        assert len(tokens) <= RESPONSE_LIMIT
        assert set(tokens) <= set(TOKENS)
    expected = 0.8**6 + 0.1 * (1 - 0.8**6) * 0.8**6
    # Four standard errors of a share of 4,000.
    assert abs(counts[True] / 4000 - expected) < 4 * (expected * (1 - expected) / 4000) ** 0.5
    mean = {right: sum(values) / len(values) for right, values in lengths.items()}
    assert 1.3 < mean[False] / mean[True] < 1.8
    assert any(len(tokens_of) == RESPONSE_LIMIT for tokens_of in [[None] * n for n in lengths[False]])


def test_text_goes_to_ids_and_back_into_a_box_that_the_reward_reads():
    tokenizer = build_tokenizer()
    ids = encode_prompt(tokenizer, DigitsTask(num_prompts=1).load()[0])
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.eos_token_id not in ids
    response = tokenizer.convert_tokens_to_ids(["okay", "3", "4", "so", "\\boxed{", "7", "}", "<eos>"])
    text = tokenizer.decode(response, skip_special_tokens=True)
    assert MathReward().score([text], ["7"])[0].status == "correct"
    assert tokenizer("3 1 4 =")["input_ids"] == tokenizer("314=")["input_ids"]


def test_the_shipped_policy_is_in_the_regime_that_was_measured():
    """512 responses of the shipped policy; success within 4 standard errors of what was measured."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from bapo_lightning.tasks.digits.regime import measure_regime

    folder = Path(locate_model(WARM_START))
    measured = json.loads((folder / "measured.json").read_text())["regime"]
    assert 0.10 <= measured["success"] <= 0.40
    assert 1.4 <= measured["length_ratio"] <= 1.6
    assert 0.36 <= measured["positive_share"] <= 0.42
    assert (folder / "model.safetensors").stat().st_size <= 2_000_000
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    again = measure_regime(model, tokenizer, DigitsTask(64, 6, seed=2), seed=5)
    standard_error = (measured["success"] * (1 - measured["success"]) / 512) ** 0.5
    assert abs(again.success - measured["success"]) < 4 * standard_error
    assert abs(again.length_ratio - measured["length_ratio"]) < 0.2
    assert abs(again.positive_share - measured["positive_share"]) < 0.05


@pytest.mark.slow
def test_the_script_makes_the_shipped_policy_again(tmp_path):
    """Same knobs, same regime. Bits may differ between machines, so what is compared is what is measured."""
    script = REPOSITORY / "scripts" / "make_digits_warm_start.py"
    subprocess.run([sys.executable, script, "--out", tmp_path], check=True)
    measured = json.loads((Path(locate_model(WARM_START)) / "measured.json").read_text())
    again = json.loads((tmp_path / "measured.json").read_text())
    assert again["settings"] == measured["settings"]
    for name, tolerance in {"success": 0.08, "length_ratio": 0.15, "positive_share": 0.04, "entropy": 0.1}.items():
        assert again["regime"][name] == pytest.approx(measured["regime"][name], abs=tolerance), name
