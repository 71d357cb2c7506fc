"""Draw the curves of one or more runs side by side, from their TensorBoard event files.

python scripts/plot_curves.py runs/quickstart/version_0 runs/clip_higher/version_0 --out curves.png
"""

import argparse
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PANELS = {
    "success rate": ["rollout/success"],
    "entropy (nats)": ["policy/entropy"],
    "positive share": ["balance/value_share"],
    "clipping bounds": ["clip/bound_low", "clip/bound_high"],
}


def read_curves(folder: Path, tags: list[str]) -> dict[str, tuple[list[int], list[float]]]:
    """Points of each tag of a run that has any, by number of updates."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    known = set(events.Tags()["scalars"])
    points = {tag: sorted(events.Scalars(tag), key=lambda e: e.step) for tag in tags if tag in known}
    return {tag: ([e.step for e in found], [e.value for e in found]) for tag, found in points.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders with event files: runs/<name>/version_<k>")
    parser.add_argument("--labels", nargs="+", help="one a run; the run's name by default")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), help="picture to write")
    arguments = parser.parse_args()
    labels = arguments.labels or [run.parent.name for run in arguments.runs]
    if len(labels) != len(arguments.runs):
        parser.error(f"{len(arguments.runs)} runs need as many labels, got {len(labels)}")

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(4.2 * len(PANELS), 3.2), layout="constrained")
    for index, (run, label) in enumerate(zip(arguments.runs, labels, strict=True)):
        curves = read_curves(run, [tag for tags in PANELS.values() for tag in tags])
        if not curves:
            parser.error(f"{run} holds no curves")
        for axis, (title, tags) in zip(axes, PANELS.items(), strict=True):
            for tag in tags:
                steps, values = curves.get(tag, ([], []))
                axis.plot(steps, values, color=f"C{index}", label=label if tag == tags[0] else None, linewidth=1.5)
            axis.set_title(title)
            axis.set_xlabel("policy updates")
            axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(arguments.out, dpi=110)
    print(arguments.out)


if __name__ == "__main__":
    main()
