#!/usr/bin/env python3
"""What bench/gpu.sh measured: prints tables, and writes FOLDER/DATE-GPU.json with the predictions beside it.

    gpu_report.py gpu_bench.jsonl gpu_predictions.json FOLDER

Also works on the lines of a script that was killed. Exit code 1: a batch has no figure of the engine, or none of a peer.
"""

import json
import pathlib
import re
import statistics
import sys

CONTEXT = 1024
FLOP_PER_TOKEN = 803.5e6  # 6 per parameter and 6 per layer, width and token of the context: GPT-2 of 124 million parameters


class Bench:
    def __init__(self, lines):
        self.report = lines[0]["data"]
        self.gpu = next((line[4:].split(",")[0] for line in self.report if line.startswith("gpu ")), "unknown")
        self.training = {}  # batch, contender: what each of its rounds gave
        self.missing = {}
        self.others = {}
        for line in lines[1:]:
            batch, _, rest = line["name"].partition(".")
            if line["name"] == "all":
                continue
            if line["result"] != "ok" or not line["data"]:
                self.missing[line["name"]] = f"{line['result']}: {line['reason'] or 'it printed no result'}"
            if not line["data"] or (line["result"] != "ok" and batch.isdigit()):
                continue
            if batch.isdigit():
                self.training.setdefault(batch, {}).setdefault(rest.rpartition(".")[0], []).extend(line["data"])
            else:
                self.others[line["name"]] = line["data"]
        self.ceilings = self.others.get("ceilings", [{}])[0]

    def rates(self, batch):
        """Tokens per second of every block, by contender."""
        return {name: [int(batch) * CONTEXT / seconds for run in runs for seconds in run["seconds"]]
                for name, runs in self.training[batch].items()}

    def best_peer(self, batch):
        """Name and median of the fastest contender that is not the engine."""
        medians = {name: statistics.median(rate) for name, rate in self.rates(batch).items()
                   if not name.startswith("engine")}
        return max(medians.items(), key=lambda item: item[1], default=(None, None))

    def table(self):
        yield "| batch | contender | tokens/s, median | of blocks | of the best peer | of the product's rate | loss |"
        yield "|---|---|---|---|---|---|---|"
        for batch, runs in self.training.items():
            peer, base = self.best_peer(batch)
            for name, rate in self.rates(batch).items():
                median = statistics.median(rate)
                ratio = "the best" if name == peer else f"{median / base:.2f}" if base else "-"
                tflops = self.ceilings.get("tflops")
                share = f"{median * FLOP_PER_TOKEN / (tflops * 1e12):.1%}" if tflops else "-"
                losses = f"{runs[name][0]['first_loss']:.3f} to {runs[name][0]['loss']:.3f}"
                yield f"| {batch} | {name} | {median:,.0f} | {min(rate):,.0f} to {max(rate):,.0f} | {ratio} | {share} | {losses} |"

    def other_attention(self):
        """Contenders whose kernels are not those of the attention in their name, as with a cache that takes one for another."""
        for batch, runs in self.training.items():
            for name, rounds in runs.items():
                kernels = rounds[0].get("attention", [])
                if kernels and any("cudnn" in kernel for kernel in kernels) != name.endswith("cudnn"):
                    yield f"{batch} {name} ran {', '.join(kernels)}"

    def complete(self):
        planned = {(batch, name.startswith("engine")) for batch in self.training for name in self.training[batch]}
        measured = set(planned)
        for batch, _, name in (name.partition(".") for name in self.missing):
            if batch.isdigit():
                planned.add((batch, name.startswith("engine")))
        return planned == measured != set()

    def predictions(self, file):
        """Rows of the file for this GPU, each with what was measured, or None."""
        kind = next((kind for kind in ("H100", "H200") if kind in self.gpu), None)
        us = {(op["op"], op["pass"]): op["us"] for op in self.others.get("ops", [])}
        for row in file["tokens_per_s"]:
            batch = str(row["batch"])
            rates = self.rates(batch) if batch in self.training else {}
            medians = [statistics.median(rate) for name, rate in rates.items() if name.startswith(row["contender"])]
            yield {"what": f"tokens/s, batch {batch}, {row['contender']}", "predicted": row.get(kind),
                   "measured": max(medians, default=None)}
        for row in file["ms_of_a_step_of_64"]:
            known = row["ops"] and all((op, way) in us for op, way, _ in row["ops"])
            ms = sum(us[op, way] * times * 1e-3 for op, way, times in row["ops"]) if known else None
            yield {"what": f"ms, {row['what']}", "predicted": row.get(kind), "measured": ms}


def main():
    bench = Bench([json.loads(line) for line in open(sys.argv[1])])
    file = json.loads(pathlib.Path(sys.argv[2]).read_text())
    predictions = list(bench.predictions(file))
    print("\n".join(bench.table()))
    print("ceilings:", ", ".join(f"{value:,.0f} {name}" for name, value in bench.ceilings.items()) or "not measured")
    for name, reason in bench.missing.items():
        print(f"missing: {name}: {reason}")
    for sentence in bench.other_attention():
        print(f"not what it is called: {sentence}")
    print("\n| | predicted | measured |\n|---|---|---|")
    for row in predictions:
        if row["predicted"]:
            words = ", ".join(f"{name} {value:,g}" for name, value in row["predicted"].items())
            print(f"| {row['what']} | {words} | {'-' if row['measured'] is None else format(row['measured'], ',.4g')} |")

    date = bench.report[0].split()[1]
    path = pathlib.Path(sys.argv[3]) / f"{date[:10]}-{re.sub('[^A-Za-z0-9]+', '-', bench.gpu).strip('-')}.json"
    path.write_text(json.dumps({
        "report": bench.report, "training": bench.training, "missing": bench.missing,
        "best_peer": {batch: bench.best_peer(batch)[0] for batch in bench.training}, **bench.others,
        "predictions": {"source": file["source"], "before": file["before"], "after": file["after"], "rows": predictions},
    }, indent=1) + "\n")
    print(f"written to {path}")
    return 0 if bench.complete() else 1


if __name__ == "__main__":
    sys.exit(main())
