"""The built-in ``digits`` task: it needs no download, learns in minutes on a CPU, and scores by `MathReward`.

``task`` has the problems. ``vocabulary`` has the words and the tokenizer, ``demonstrations`` writes noisy responses,
``supervised`` trains the tiny policy on them (a Lightning run of its own), and ``regime`` measures what came out.
``warm_start/`` is the result, as a Hugging Face folder with ``measured.json``; ``scripts/make_digits_warm_start.py``
makes it again. A config names it ``package:bapo_lightning/tasks/digits/warm_start``.
"""

from bapo_lightning.tasks.digits.task import DigitsTask

__all__ = ["DigitsTask"]
