"""BAPO's search against Algorithm 1 step by step, and every strategy's surrogate against a fixed window.

Prints ratios of times measured side by side in one run, and counts that depend on no machine. Run it alone:

    python benchmarks/clipping.py                  # 10^4, 10^5 and 10^6 tokens; about two minutes
    python benchmarks/clipping.py --device cuda

The loop is what a reader of the paper would write: it measures the share at some bounds, moves one bound, and measures
again, until the target is met or both bounds are at their limits. Worst case: the target is out of reach, so that it
takes all 51 steps. "hoisted" is the same loop with ratios, weights and signs computed once before it.
"""

import argparse
import inspect
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from bapo_lightning import clipping
from bapo_lightning.clipping import BAPOClip, ClippingStrategy, FixedClip, call_bounds

WIDTH = 1000
LOW, HIGH = (0.6, 0.02, 15), (1.2, 0.05, 36)
UNREACHABLE = 0.999


def make_batch(num_tokens: int, device: str) -> dict[str, Tensor]:
    """An update of responses of up to 1000 tokens, off-policy, most tokens probable."""
    generator = torch.Generator().manual_seed(0)
    shape = (num_tokens // WIDTH, WIDTH)
    lengths = torch.randint(WIDTH // 2, WIDTH + 1, (shape[0], 1), generator=generator)
    batch = {
        "log_ratio": 0.3 * torch.randn(shape, generator=generator),
        "advantages": torch.randn((shape[0], 1), generator=generator).expand(shape).contiguous(),
        "mask": torch.arange(WIDTH) < lengths,
        "rollout_log_probs": -torch.rand(shape, generator=generator).exponential_(generator=generator) * 0.5,
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}


def share_at(low: float, high: float, ratio: Tensor, advantages: Tensor, weight: Tensor) -> float:
    """P/(P+N) of clipped values, reduced over ranks: one all-reduce and one wait for the device."""
    value = torch.where(advantages > 0, ratio.clamp(max=high), ratio.clamp(min=low)) * advantages * weight
    sums = torch.stack([value.clamp(min=0).sum(dtype=torch.float64), -value.clamp(max=0).sum(dtype=torch.float64)])
    if dist.is_initialized():
        dist.all_reduce(sums)
    positive, negative = sums.tolist()
    return positive / (positive + negative)


def prepare(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Ratios, advantages and weights; masked tokens weigh 0."""
    ratio = torch.where(batch["mask"], batch["log_ratio"], 0.0).clamp(max=20.0).exp()
    weight = torch.where(batch["mask"], batch["rollout_log_probs"].exp(), 0.0)
    return ratio, torch.where(batch["mask"], batch["advantages"], 0.0), weight


def step_by_step(batch: dict[str, Tensor], *, hoisted: bool) -> tuple[float, float, int]:
    """Algorithm 1: upper bound first, one measurement a step."""
    prepared = prepare(batch)
    low_steps = high_steps = 0
    while True:
        low, high = LOW[0] + low_steps * LOW[1], HIGH[0] + high_steps * HIGH[1]
        share = share_at(low, high, *(prepared if hoisted else prepare(batch)))
        if share >= UNREACHABLE or (low_steps, high_steps) == (LOW[2], HIGH[2]):
            return round(low, 4), round(high, 4), low_steps + high_steps
        if high_steps < HIGH[2]:
            high_steps += 1
        else:
            low_steps += 1


def at_one_go(batch: dict[str, Tensor]) -> tuple[float, float, int]:
    """The library's search."""
    bounds = BAPOClip(target=UNREACHABLE).bounds(**batch)
    assert isinstance(bounds.low, float)
    assert isinstance(bounds.high, float)
    return bounds.low, bounds.high, bounds.steps


def seconds(runs: dict[str, Callable[[], object]], device: str, repeats: int) -> dict[str, float]:
    """Median time of each, taken in turn so that all meet the same conditions."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if repeat > 0:  # the first is to warm up
                taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in taken.items()}


class OnDevice(Tensor):
    """A tensor that counts what would make the host wait if it lay on an accelerator; so are the results of it."""

    waits = 0
    _READS = frozenset(
        ("cpu", "tolist", "item", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__", "masked_select")
    )

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Count reads; what was read is an ordinary tensor."""
        name = getattr(function, "__name__", "")
        result = super().__torch_function__(function, types, args, kwargs)
        if name in cls._READS:
            OnDevice.waits += 1
            return result.as_subclass(Tensor) if isinstance(result, Tensor) else result
        return result


def count_waits(run: Callable[[dict[str, Tensor]], object], batch: dict[str, Tensor]) -> int:
    """Times that the host waits for the device."""
    OnDevice.waits = 0
    run({name: tensor.as_subclass(OnDevice) for name, tensor in batch.items()})
    return OnDevice.waits


def _count_all_reduces(rank: int, store: str, results: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    all_reduce, calls = dist.all_reduce, []

    def counting(*args: object, **kwargs: object) -> object:
        calls.append(1)
        return all_reduce(*args, **kwargs)

    dist.all_reduce = counting
    batch, counts = make_batch(10_000, "cpu"), {}
    for name, run in SEARCHES.items():
        calls.clear()
        run(batch)
        counts[name] = len(calls)
    if rank == 0:
        Path(results).write_text(json.dumps(counts), encoding="utf-8")
    dist.destroy_process_group()


def count_all_reduces() -> dict[str, int]:
    """All-reduces of one search, with two real processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_count_all_reduces, args=(f"{folder}/store", f"{folder}/counts.json"), nprocs=2)
        counts: dict[str, int] = json.loads(Path(folder, "counts.json").read_text(encoding="utf-8"))
    return counts


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hide what the profiler writes there by itself."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def peak_bytes(run: Callable[[], object], device: str) -> int:
    """Largest memory of tensors that a call holds at once, beyond what was there."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        with quiet_stderr():
            activities = [torch.profiler.ProfilerActivity.CPU]
            with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
                run()
            profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]"]
    return max(totals) - min(totals[0], totals[-1])


SEARCHES: dict[str, Callable[[dict[str, Tensor]], tuple[float, float, int]]] = {
    "at one go": at_one_go,
    "step by step": lambda batch: step_by_step(batch, hoisted=False),
    "step by step, hoisted": lambda batch: step_by_step(batch, hoisted=True),
}


def bench_search(device: str, repeats: int) -> None:
    """Time, collectives, waits and memory of the search."""
    all_reduces = count_all_reduces()
    print(f"search of one update, worst case (51 steps), {device}, {torch.get_num_threads()} threads\n")
    print(
        f"{'tokens':>9}  {'search':22} {'time':>10} {'x at one go':>12} {'all-reduces':>12} {'waits':>6} {'memory':>22}"
    )
    first: dict[str, float] = {}
    for num_tokens in (10_000, 100_000, 1_000_000):
        batch = make_batch(num_tokens, device)
        runs = {name: partial(search, batch) for name, search in SEARCHES.items()}
        found = {name: run() for name, run in runs.items()}
        if len(set(found.values())) != 1:
            raise SystemExit(f"the searches disagree: {found}")
        times = seconds(runs, device, repeats)
        for name, run in runs.items():
            memory = peak_bytes(run, device)
            print(
                f"{num_tokens:>9}  {name:22} {1e3 * times[name]:>7.1f} ms {times[name] / times['at one go']:>11.1f}x "
                f"{all_reduces[name]:>12} {count_waits(SEARCHES[name], batch):>6} {memory / 2**20:>9.1f} MiB = "
                f"{memory / num_tokens:>4.0f} B/tok"
            )
        if num_tokens == 100_000:
            first = times
        elif first:
            print(f"\nten times the tokens take {times['at one go'] / first['at one go']:.1f} times as long\n")


def bench_surrogates(device: str, repeats: int, num_tokens: int = 200_000) -> None:
    """Forward and backward of every strategy's surrogate, and its `bounds`, relative to a fixed window."""
    batch = make_batch(num_tokens, device)
    inputs = tuple(batch.values())
    further = {"entropy": -batch["rollout_log_probs"], "proximal_log_probs": batch["rollout_log_probs"] + 0.1}
    strategies: dict[str, ClippingStrategy] = {"FixedClip": FixedClip()}
    for name in clipping.__all__:
        kind = getattr(clipping, name)
        if inspect.isclass(kind) and issubclass(kind, ClippingStrategy) and not inspect.isabstract(kind):
            strategies[name] = kind()

    def train(strategy: ClippingStrategy, bounds: clipping.ClipBounds) -> None:
        log_ratio = batch["log_ratio"].clone().requires_grad_()
        objective = strategy.surrogate(log_ratio, batch["advantages"], bounds).objective
        torch.where(batch["mask"], objective, 0.0).sum().backward()

    found = {name: call_bounds(strategy, *inputs, **further) for name, strategy in strategies.items()}
    surrogates = seconds({n: (lambda n=n, s=s: train(s, found[n])) for n, s in strategies.items()}, device, repeats)
    bounds = seconds(
        {n: (lambda s=s: call_bounds(s, *inputs, **further)) for n, s in strategies.items()}, device, repeats
    )
    print(f"surrogate (forward and backward) and bounds of {num_tokens} tokens, relative to FixedClip\n")
    for name in strategies:
        print(
            f"  {name:22} surrogate {surrogates[name] / surrogates['FixedClip']:>5.2f}x   "
            f"bounds {bounds[name] / bounds['FixedClip']:>5.2f}x"
        )


def bench_update(device: str, num_responses: int = 4, width: int = 128) -> None:
    """The search as a share of one forward and backward pass of a model of 135 million parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    config = LlamaConfig(vocab_size=49152, num_key_value_heads=3, tie_word_embeddings=True, **shape)
    model = LlamaForCausalLM(config).to(device)
    ids = torch.randint(49152, (num_responses, width), device=device)
    batch = {n: t[:num_responses, :width].contiguous() for n, t in make_batch(10_000, device).items()}

    def update() -> None:
        model(input_ids=ids, labels=ids).loss.backward()

    times = seconds({"update": update, "search": lambda: at_one_go(batch)}, device, repeats=3)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"\nof {num_responses * width} tokens of a model of {parameters / 1e6:.0f} M parameters, the search takes "
        f"{100 * times['search'] / times['update']:.3f} % of forward and backward"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    bench_search(arguments.device, arguments.repeats)
    bench_surrogates(arguments.device, arguments.repeats)
    bench_update(arguments.device)


if __name__ == "__main__":
    main()
