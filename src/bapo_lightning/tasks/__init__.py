"""Where prompts come from, and how they become token ids.

- ``source.py``: `PromptSource`, what every task is
- ``rows.py``, ``files.py``, ``hub.py``: prompts from tables, with fields mapped in the config
- ``arithmetic.py``, ``digits/``: tasks that need no data; the second brings its own tiny policy
- ``rendering.py``: chat template or plain text, and never a prompt cut short

What belongs here ends with ids: no sampling, no scoring. To add a task, subclass `PromptSource` and implement ``load``
(or `RowPrompts` and ``rows``), and list it below; it is then usable from YAML by name.
"""

from bapo_lightning.tasks.arithmetic import ArithmeticTask
from bapo_lightning.tasks.digits import DigitsTask
from bapo_lightning.tasks.files import JSONLPrompts, ParquetPrompts
from bapo_lightning.tasks.hub import HubPrompts
from bapo_lightning.tasks.rendering import RenderedPrompts, encode_prompt, render_prompts
from bapo_lightning.tasks.rows import RowPrompts
from bapo_lightning.tasks.source import PromptSource

__all__ = [
    "ArithmeticTask",
    "DigitsTask",
    "HubPrompts",
    "JSONLPrompts",
    "ParquetPrompts",
    "PromptSource",
    "RenderedPrompts",
    "RowPrompts",
    "encode_prompt",
    "render_prompts",
]
