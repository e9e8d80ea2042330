#!/usr/bin/python3
"""Seconds from the kill (SIGKILL) of a random rank to the end of the next step, beside torchrun's restart.

  bench/training/recovery_beside_torchrun.py [KILLS] [MODEL]     needs a build in build/release and python3-torch

Two ranks with a thread each train MODEL (mlp or gpt); engine with --restarts and the communicator shm, then torchrun
--max-restarts with DistributedDataParallel over gloo, which starts all ranks again from the checkpoint of every tenth
step, in memory (/dev/shm). One run of each, in which a rank is killed KILLS times. Prints medians and ranges, and what
became of the steps: "not told" are those that rank 0 had made, but not written down, when it was killed.
"""

import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def children(pid):
    """The processes below `pid` that have no children of their own, which are the ranks."""
    try:
        below = [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:  # it has just ended
        return []
    return [leaf for child in below for leaf in (children(child) or [child])]


def train(model, folder):
    """A rank of torchrun."""
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(ROOT / "bench/peers"))
    import ddp_models

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    module, batch, _ = ddp_models.make(model, channels_last=False)
    ddp = torch.nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
    checkpoint, first = folder / "checkpoint.pt", 1
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    with open(folder / "steps", "a", encoding="ascii") as steps:
        for step in range(first, 10**9):
            optimizer.zero_grad()
            ddp(*batch()).backward()
            optimizer.step()
            if dist.get_rank() != 0:
                continue
            steps.write(f"{step}\n")
            steps.flush()
            if step % 10 == 0:
                state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, folder / "checkpoint.tmp")
                os.replace(folder / "checkpoint.tmp", checkpoint)


class Side:
    def __init__(self, side, model, folder):
        self.folder, self.side = folder, side
        self.steps_file = folder / ("metrics" if side == "engine" else "steps")
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        if side == "engine":
            settings = ["train.steps=100000000", "train.evaluate_every=-1", "cpu_ops.threads=1", "output.checkpoint=",
                        f"output.metrics={self.steps_file}"]
            if model == "gpt":
                settings += [f"data.text.path={ROOT / 'README.md'}", "data.text.context=128", "model.gpt.width=256",
                             "train.batch_per_rank=8"]
            else:
                settings += ["data.synthetic.shape=784", "model.mlp.hidden=1024,1024", "train.batch_per_rank=64"]
            command = [str(ROOT / "build/release/bin/engine"), "run", "-q", "-n", "2", "--restarts", "1000000",
                       "--plugins", "shm,adamw", *(word for one in settings for word in ("--set", one))]
            if model == "gpt":
                command.insert(2, str(ROOT / "configs/gpt_text.pbtxt"))
        else:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
                       "--max_restarts=1000000", "-r", "1", "-t", "1", "--log_dir", str(folder / "logs"), "--monitor_interval=0.1", __file__, "--train", model, str(folder)]
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.position = 0
        self.seen = []
        self.await_steps(20)

    def new_steps(self):
        if not self.steps_file.exists():
            return []
        with open(self.steps_file, encoding="utf-8") as file:
            file.seek(self.position)
            text = file.read()
        end = text.rfind("\n") + 1
        self.position += len(text[:end].encode())
        lines = text[:end].splitlines()
        new = [json.loads(line)["step"] for line in lines] if self.side == "engine" else [int(line) for line in lines]
        self.seen += new
        return new

    def await_steps(self, count, limit_s=120):
        deadline = time.monotonic() + limit_s
        found = 0
        while found < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{self.side} makes no steps: " + (self.folder / "log").read_text()[-2000:])
            found += len(self.new_steps())
            time.sleep(0.002)

    def kill(self):
        """Seconds until the first step that the ranks make after the loss."""
        before = set(children(self.process.pid))
        begin = time.monotonic()
        os.kill(random.choice(sorted(before)), signal.SIGKILL)
        while set(children(self.process.pid)) <= before:  # another is not there yet
            time.sleep(0.002)
        self.new_steps()  # what was made before
        self.await_steps(1)
        seconds = time.monotonic() - begin
        self.await_steps(12)
        return seconds

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.new_steps()
        lost = sorted(set(range(1, max(self.seen) + 1)) - set(self.seen))
        repeated = len(self.seen) - len(set(self.seen))
        return f"steps {max(self.seen)}, not told {len(lost)}, made again {repeated}"


def main():
    if sys.argv[1:2] == ["--train"]:
        return train(sys.argv[2], pathlib.Path(sys.argv[3]))
    kills, model = int((sys.argv + ["50"])[1]), (sys.argv + ["", "mlp"])[2]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as work:
        for name in ("engine", "torchrun"):
            (folder := pathlib.Path(work) / name).mkdir()
            side = Side(name, model, folder)
            try:
                times = sorted(side.kill() for _ in range(kills if name == "engine" else min(kills, 10)))
                print(f"{name:9} {model}: kill to next step median {statistics.median(times):.2f} s, "
                      f"{times[0]:.2f} to {times[-1]:.2f}, {len(times)} kills; {side.end()}")
            finally:
                side.process.terminate()


if __name__ == "__main__":
    main()
