"""Callbacks: they watch a run from the side and never steer it.

What belongs here: curves, histograms, samples, benchmark scores, progress, tables, stopping cleanly. A callback reads
`PolicyModule.last_update` (one update, token by token) and `ReplayDataModule.phase_metrics` (one rollout phase). To add
one, subclass ``lightning.pytorch.Callback`` and log with `log_at_update`, so that every curve shares one x-axis.
"""

from bapo_lightning.callbacks.entropy_clip_monitor import EntropyClipMonitor
from bapo_lightning.callbacks.evaluation import AIMEEvaluation
from bapo_lightning.callbacks.graceful_stop import GracefulStop
from bapo_lightning.callbacks.newest_checkpoint import NewestCheckpoint
from bapo_lightning.callbacks.predictions import PredictionWriter
from bapo_lightning.callbacks.progress import PhaseProgressBar
from bapo_lightning.callbacks.samples import SampleWriter
from bapo_lightning.callbacks.summary import RunSummary

__all__ = [
    "AIMEEvaluation",
    "EntropyClipMonitor",
    "GracefulStop",
    "NewestCheckpoint",
    "PhaseProgressBar",
    "PredictionWriter",
    "RunSummary",
    "SampleWriter",
]
