"""Start-up, time per round and memory by number of clients, with cohorts of one size.

    python benchmarks/scale.py             a table
    python benchmarks/scale.py --json      the same as JSON
    python benchmarks/scale.py --text      40 000 clients of sentences and the word LSTM instead
    python benchmarks/scale.py --states    SCAFFOLD's states of 50 000 LeNet-5s, 12 GB, as on a machine with 8 GB

Every size runs in its own process, which gives its peak memory. With `--states`, every client takes part once and some
of them again, and another process resumes from the checkpoint; it needs 50 GB of disk, in TMPDIR, and some minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZES = (100, 10_000, 100_000, 1_000_000)
COHORT, ROUNDS = 100, 20
STATES, STATES_COHORT, STATES_AGAIN = 50_000, 500, 10  # clients, clients per round, rounds of clients seen before
MACHINE = 8e9  # bytes of memory of the simulated machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--text", action="store_true", help="clients of sentences")
    parser.add_argument("--states", action="store_true", help="states that do not fit into memory")
    parser.add_argument("--clients", type=int, action="append", help="number of clients (repeatable)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        one = (options.one, options.out) if options.states else (options.one, options.text, options.rounds)
        print(json.dumps((measure_states if options.states else measure)(*one)))
        return
    if options.states:
        compare_states(options.clients or [STATES], options.json)
        return
    rows = []
    if not options.json:
        print(f"{'clients':>10} {'data s':>8} {'start s':>8} {'ms/round':>9} {'data MB':>8} {'peak MB':>8}")
    for clients in options.clients or ((400, 4_000, 40_000) if options.text else SIZES):
        command = [sys.executable, __file__, "--one", str(clients), "--rounds", str(options.rounds)]
        row = json.loads(subprocess.check_output(command + ["--text"] * options.text))
        rows.append(row)
        if not options.json:
            print(
                f"{row['clients']:>10,} {row['data_seconds']:>8.2f} {row['start_seconds']:>8.2f} "
                f"{1000 * row['round_seconds']:>9.1f} {row['data_mb']:>8.0f} {row['peak_mb']:>8.0f}",
                flush=True,
            )
    if options.json:
        print(json.dumps(rows, indent=2))


def measure(clients: int, text: bool, rounds: int) -> dict[str, Any]:
    """Seconds to create one federation, to prepare a run, and of the median round."""
    import undrift as ud

    begun = time.perf_counter()
    data = sentences(clients) if text else vectors(clients)
    made = time.perf_counter()
    ticks = [time.perf_counter()]
    run = ud.simulate(
        "fedavg" if text else "scaffold",  # clients with a state
        "word-lstm" if text else "softmax",
        data,
        rounds=rounds,
        cohort=min(10 if text else COHORT, clients),
        batch_size=16 if text else 4,
        steps=1 if text else None,
        callbacks=[lambda row, run: ticks.append(time.perf_counter())],
    )
    del run
    seconds = [after - before for before, after in itertools.pairwise(ticks)]
    kept = (data.x.nbytes + data.y.nbytes + data.rows.nbytes + data.sizes.nbytes + data.offsets.nbytes) / 1e6
    return {
        "clients": clients,
        "samples": len(data.rows),
        "data_seconds": made - begun,
        "start_seconds": seconds[0],  # preparation and the first round
        "round_seconds": statistics.median(seconds[1:]) if len(seconds) > 1 else seconds[0],
        "data_mb": kept,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def compare_states(sizes: list[int], as_json: bool) -> None:
    rows = []
    for clients in sizes:
        with tempfile.TemporaryDirectory() as home:
            command = [sys.executable, __file__, "--states", "--one", str(clients), "--out", f"{home}/run"]
            row = {"clients": clients} | {k: json.loads(subprocess.check_output(command)) for k in ("run", "resumed")}
        rows.append(row)
        if not as_json:
            run, resumed = row["run"], row["resumed"]
            new, late, again = (1000 * run[f"{when}_round_seconds"] for when in ("first", "last", "later"))
            print(f"{clients:,} clients of {run['parameters']:,} parameters, {STATES_COHORT} per round")
            print(f"  states           {run['states']}")
            print(f"  peak memory      {run['peak_mb']:,.0f} MB; resumed {resumed['peak_mb']:,.0f} MB")
            print(f"  ms per round     {new:.0f} at first, {late:.0f} at last; clients seen before {again:.0f}")
            print(
                f"  seconds          {run['seconds']:.0f}, of which {run['save_seconds']:.0f} for the last checkpoint"
            )
            print(f"  resume seconds   {resumed['seconds']:.0f}", flush=True)
    if as_json:
        print(json.dumps(rows, indent=2))


def measure_states(clients: int, out: Path) -> dict[str, Any]:
    """Rounds until every client has a state, and some more; if the run exists, its resumption."""
    import numpy as np

    import undrift as ud
    from undrift.storage import memory

    memory.host_left = lambda: int(MACHINE) - resident()
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (2 * clients, 1, 28, 28), dtype=np.uint8), rng.integers(0, 10, 2 * clients)
    data = ud.FederatedData.from_rows(x, y, np.arange(2 * clients), np.full(clients, 2), classes=10)
    once = np.arange(clients).reshape(-1, STATES_COHORT).tolist()
    again = [rng.choice(clients, STATES_COHORT, replace=False).tolist() for _ in range(STATES_AGAIN)]
    ticks = [time.perf_counter()]

    def simulate() -> ud.Run:
        training: dict[str, Any] = {"rounds": len(once + again), "cohort": once + again, "batch_size": 2, "steps": 1}
        tick = [lambda row, run: ticks.append(time.perf_counter())]
        return ud.simulate("scaffold", "lenet5", data, out=out, callbacks=tick, **training)

    run = ud.resume(out, data=data) if out.exists() else simulate()
    done, seconds = time.perf_counter(), run.history["seconds"].to_numpy()
    return {
        "parameters": sum(value.numel() for value in run.parameters.values()),
        "states": run.states,
        "seconds": done - ticks[0],
        "save_seconds": done - ticks[-1],
        "first_round_seconds": float(np.median(seconds[1 : STATES_AGAIN + 1])),
        "last_round_seconds": float(np.median(seconds[len(once) - STATES_AGAIN : len(once)])),
        "later_round_seconds": float(np.median(seconds[len(once) :])),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def resident() -> int:
    """Bytes of memory that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def vectors(clients: int) -> Any:
    """Tiny clients: 1 to 7 samples of eight numbers, ten classes."""
    import numpy as np

    import undrift as ud

    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 8, clients)
    count = int(sizes.sum())
    x = rng.standard_normal((count, 8), dtype=np.float32)
    return ud.FederatedData.from_rows(x, rng.integers(0, 10, count), np.arange(count), sizes, classes=10)


def sentences(clients: int) -> Any:
    """Users with 10 to 60 sentences of 20 words, as Stack Overflow's: token numbers, some of them padding."""
    import numpy as np

    import undrift as ud
    from undrift.data.text import IGNORED

    rng = np.random.default_rng(0)
    sizes = rng.integers(10, 61, clients)
    count = int(sizes.sum())
    words = rng.zipf(1.3, (count, 21)).clip(max=10_000).astype(np.int16)
    words[np.arange(21) >= rng.integers(5, 22, count)[:, None]] = 0
    y = np.where(words[:, 1:] == 0, np.int16(IGNORED), words[:, 1:])
    return ud.FederatedData.from_rows(words[:, :-1], y, np.arange(count), sizes, classes=10_004)


if __name__ == "__main__":
    main()
