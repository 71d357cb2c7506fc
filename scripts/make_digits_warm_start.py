"""Make the warm-started policy of the built-in digits task, and measure the regime that it starts RL in.

Two knobs set the regime: ``--error-rate`` (success after the warm start) and ``--hesitation`` (length of failures
against successes, and so the positive share). The folder that the package ships was made with the defaults; name
another one in a config as ``model.policy.path``.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from bapo_lightning.tasks.digits.demonstrations import RESPONSE_LIMIT, Demonstrator
from bapo_lightning.tasks.digits.regime import measure_regime
from bapo_lightning.tasks.digits.supervised import train_warm_start
from bapo_lightning.tasks.digits.task import DigitsTask
from bapo_lightning.tasks.digits.vocabulary import build_tokenizer

NUM_DIGITS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder to write the model, tokenizer and measured.json"
    )
    parser.add_argument("--error-rate", type=float, default=0.19, help="probability of a wrong running sum")
    parser.add_argument(
        "--hesitation", type=float, default=0.72, help="probability of hesitating once more after an error"
    )
    parser.add_argument("--steps", type=int, default=800, help="optimizer steps of the supervised run")
    parser.add_argument("--seed", type=int, default=0, help="seeds weights, demonstrations and the measurement")
    arguments = parser.parse_args()

    started = time.monotonic()
    demonstrator = Demonstrator(arguments.error_rate, arguments.hesitation)
    policy = train_warm_start(
        demonstrator, num_digits=NUM_DIGITS, steps=arguments.steps, seed=arguments.seed, progress=True
    )
    tokenizer = build_tokenizer()
    regime = measure_regime(policy, tokenizer, DigitsTask(256, NUM_DIGITS, seed=1), seed=arguments.seed)

    arguments.out.mkdir(parents=True, exist_ok=True)
    policy.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    settings = {
        "error_rate": arguments.error_rate,
        "hesitation": arguments.hesitation,
        "steps": arguments.steps,
        "seed": arguments.seed,
        "num_digits": NUM_DIGITS,
        "response_limit_tokens": RESPONSE_LIMIT,
    }
    measured = {"settings": settings, "regime": {name: round(value, 4) for name, value in asdict(regime).items()}}
    (arguments.out / "measured.json").write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(measured, indent=2))
    print(f"{arguments.out}, made in {(time.monotonic() - started) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
