"""A few responses of every phase, readable in TensorBoard and as JSON lines."""

import json

from lightning.pytorch import Callback, LightningModule, Trainer

from bapo_lightning.callbacks.logging import run_folder, tensorboard_writer
from bapo_lightning.datamodule import ReplayDataModule
from bapo_lightning.errors import InputError
from bapo_lightning.types import Trajectory


class SampleWriter(Callback):
    """Writes sampled responses with their reward, length and advantage.

    Args:
        samples_per_phase: Responses shown each phase, of different prompts, ≥ 1.
        phase_interval: Phases between two writings, ≥ 1.

    Raises:
        InputError: A value is below 1.
    """

    def __init__(self, samples_per_phase: int = 4, phase_interval: int = 1) -> None:
        if samples_per_phase < 1 or phase_interval < 1:
            raise InputError("SampleWriter.samples_per_phase and phase_interval must be at least 1")
        self.samples_per_phase = samples_per_phase
        self.phase_interval = phase_interval

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write samples of the phase that begins."""
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(datamodule, ReplayDataModule)
        if not trainer.is_global_zero or trainer.current_epoch % self.phase_interval:
            return
        # One response a group: the first correct one in every other group, so that both kinds are seen.
        groups: dict[int, list[Trajectory]] = {}
        for trajectory in datamodule.phase_trajectories:
            groups.setdefault(trajectory.group_id, []).append(trajectory)
        chosen = [
            next((t for t in group if (t.reward_status == "correct") == (i % 2 == 0)), group[0])
            for i, group in enumerate(list(groups.values())[: self.samples_per_phase])
        ]
        if not chosen:
            return
        writer = tensorboard_writer(trainer)
        if writer is not None:
            text = "\n\n---\n\n".join(_markdown(t) for t in chosen)
            writer.add_text("samples/rollouts", text, trainer.global_step)
        run = run_folder(trainer)
        if run is not None:
            folder = run / "samples"
            folder.mkdir(parents=True, exist_ok=True)
            lines = "".join(json.dumps(_record(t), ensure_ascii=False) + "\n" for t in chosen)
            (folder / f"phase_{trainer.current_epoch:05d}.jsonl").write_text(lines, encoding="utf-8")


def _prompt_text(trajectory: Trajectory) -> str:
    messages = trajectory.prompt.messages
    return messages if isinstance(messages, str) else "\n".join(f"{m['role']}: {m['content']}" for m in messages)


def _record(t: Trajectory) -> dict[str, object]:
    return {
        "prompt_id": t.prompt.id,
        "prompt": _prompt_text(t),
        "response": t.text,
        "answer": t.prompt.answer,
        "reward": t.reward,
        "status": t.reward_status,
        "reward_parts": dict(t.reward_parts),
        "advantage": t.advantage,
        "length": len(t.completion.token_ids),
        "finish_reason": t.completion.finish_reason,
    }


def _markdown(t: Trajectory) -> str:
    reward = "missing" if t.reward is None else f"{t.reward:g}"
    header = (
        "| prompt | reward | status | gold | tokens | end | advantage |\n|---|---|---|---|---|---|---|\n"
        f"| {_cell(t.prompt.id)} | {reward} | {t.reward_status} | {_cell(t.prompt.answer)} "
        f"| {len(t.completion.token_ids)} | {t.completion.finish_reason} | {t.advantage:.3f} |"
    )
    if t.reward_parts:
        named = (f"{name} {'missing' if value is None else f'{value:g}'}" for name, value in t.reward_parts.items())
        header += f"\n\nreward: {', '.join(named)}"
    return f"{header}\n\n{_fenced(_prompt_text(t))}\n\n{_fenced(t.text)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _fenced(text: str) -> str:
    """A code block that the text cannot close: its fence is longer than any run of backticks inside."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
