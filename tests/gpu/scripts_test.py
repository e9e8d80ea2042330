#!/usr/bin/env python3
"""tests/gpu/run.sh and bench/gpu.sh themselves, on a stage of fakes: needs no GPU and no package of Python.

    scripts_test.py FAKE_SUITE [unittest's words]
"""

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAKE_SUITE = ""  # the program of fake_suite.cc

# `engine run ... output.metrics=FILE`: copies the losses that $FAKE_LOSSES names, or writes ten steps of half a second.
FAKE_ENGINE = """#!/usr/bin/env python3
import json, os, sys
path = [word for word in sys.argv if word.startswith("output.metrics=")][-1].partition("=")[2]
with open(path, "w") as file:
    for line in json.loads(os.environ.get("FAKE_LOSSES", "[]")) or [2.5] * 40:
        file.write(json.dumps({"event": "step", "loss": line, "seconds": 0.5}) + "\\n")
print("attention: of paper")
"""
# Compiled with cuDNN's attention it is fastest; eager with flash it fails; tuned it hangs.
FAKE_PEER = """
import sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
mode, attention = words["--mode"], words["--attention"]
if mode == "eager" and attention == "flash":
    sys.exit("torch.OutOfMemoryError: it takes too much")
if mode.startswith("max-autotune"):
    import time
    time.sleep(300)
seconds = {"default": 1.0, "eager": 4.0, "reduce-overhead": 0.8}[mode] + (attention == "flash")
print('{"seconds": [%s], "first_loss": 10.8, "loss": 9.5, "attention": ["cudnn_sdpa_flash"]}' % seconds)
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.results = self.folder / "results"
        write(self.folder / "path" / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA H100 of paper, 580.1, 81559 MiB'\n")
        (self.folder / "path" / "python3").symlink_to(sys.executable)  # not by way of a slow wrapper
        for name in ("ops_conformance", "cuda_attention_device", "golden_conformance", "image_golden_conformance"):
            self.suite(name, "Passes")
        write(self.folder / "stage" / "bin" / "engine", FAKE_ENGINE)
        write(self.folder / "stage" / "bin" / "engine-conform", "#!/bin/sh\n")
        write(self.folder / "stage" / "commit", "abc\n")
        for run in ("mlp.1", "mlp.2", "cnn.1", "resnet.1", "gpt.1", "gpt.2", "clip.1"):
            self.reference(run, [2.5, 2.25])

    def suite(self, program, test):
        write(self.folder / "stage" / "bin" / program, f"#!/bin/sh\nexec {FAKE_SUITE} \"$@\" --gtest_filter='Suite.{test}'\n")

    def reference(self, name, losses):
        write(self.folder / "stage" / "reference" / f"{name}.jsonl",
              "".join(json.dumps({"event": "step", "loss": loss}) + "\n" for loss in losses))

    def start(self, script, *words, **variables):
        environment = os.environ | {"STAGE": str(self.folder / "stage"), "RESULTS": str(self.results), "STEP_LIMIT": "30",
                                    "PATH": f"{self.folder / 'path'}:{os.environ['PATH']}"} | variables
        return subprocess.Popen([ROOT / script, *words], env=environment, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, start_new_session=True)

    def run_script(self, script, *words, **variables):
        process = self.start(script, *words, **variables)
        out = process.communicate(timeout=300)[0]
        return process.returncode, out

    def lines(self, name="gpu_checks"):
        text = (self.results / f"{name}.jsonl").read_text()
        return {line["name"]: line for line in map(json.loads, text.splitlines())}

    def packed(self, name="gpu_checks"):
        with tarfile.open(self.results / f"{name}.tar.gz") as archive:
            return {pathlib.Path(member.name).name: archive.extractfile(member).read().decode()
                    for member in archive if member.isfile()}


class Run(Scripts):
    def test_every_way_to_end_is_told(self):
        self.suite("cuda_attention_device", "Fails:Suite.Passes")
        self.suite("golden_conformance", "Crashes:Suite.Passes")
        self.suite("image_golden_conformance", "HangsAndIgnoresSignals:Suite.Passes")
        self.suite("engine-conform", "Fails")
        code, out = self.run_script("tests/gpu/run.sh", "ops", "att", "golden", "nccl.one", STEP_LIMIT="8")
        self.assertEqual(code, 1, out)
        lines = self.lines()
        self.assertEqual(list(lines), ["report", "ops_conformance", "attention", "golden.float32", "golden.bf16",
                                       "golden.images", "nccl.one_rank", "all"])
        self.assertEqual([line["result"] for line in list(lines.values())[1:-1]], ["ok"] + 5 * ["failed"])
        self.assertEqual(lines["ops_conformance"]["data"], [{"passed": 1, "skipped": 0}])
        self.assertIn("Failure", lines["attention"]["reason"])
        self.assertEqual(lines["attention"]["data"], [{"passed": 1, "skipped": 0}])
        self.assertEqual(lines["golden.float32"]["reason"], "crashed or killed: SIGSEGV")
        self.assertEqual(lines["golden.images"]["reason"], "timed out after 8 s")
        self.assertIn("Failure", lines["nccl.one_rank"]["reason"])
        self.assertEqual(lines["all"], {"name": "all", "ok": 1, "failed": 5, "skipped": 0, "not_run": 0})
        self.assertIn("abc", " ".join(lines["report"]["data"]))
        for name, line in list(lines.items())[1:-1]:
            self.assertRegex(out, rf"(?m)^{line['result']} +{name} ")
        self.assertEqual(sorted(path.name for path in self.results.iterdir()), ["gpu_checks.jsonl", "gpu_checks.tar.gz"])
        self.assertIn("Suite.Fails", self.packed()["attention"])

    def test_all_checks_can_be_ok(self):
        write(self.folder / "path" / "compute-sanitizer",
              "#!/bin/sh\nwhile [ \"${1#/}\" = \"$1\" ]; do shift; done\nexec \"$@\"\n")
        names = self.run_script("tests/gpu/run.sh", "--list")[1].split()[::2]
        code, out = self.run_script("tests/gpu/run.sh", FAKE_LOSSES="[2.5, 2.25]")
        self.assertEqual(code, 0, out)
        self.assertEqual(list(self.lines()), ["report", *names, "all"])
        self.assertEqual(self.lines()["all"]["ok"], len(names))
        self.assertIn("mlp.float32.gpu.jsonl", self.packed())

    def test_nothing_but_skipped_tests_is_a_failure(self):
        self.suite("ops_conformance", "Skips")
        self.assertEqual(self.run_script("tests/gpu/run.sh", "ops_conformance")[0], 1)
        self.assertIn("all 1 tests were skipped", self.lines()["ops_conformance"]["reason"])

    def test_a_check_that_cannot_run_here_is_skipped_and_alone_not_enough(self):
        write(self.folder / "path" / "compute-sanitizer", "#!/bin/sh\necho 'Error: Device not supported.'\nexit 1\n")
        self.assertEqual(self.run_script("tests/gpu/run.sh", "memcheck.attention")[0], 1)
        self.assertEqual(self.lines()["memcheck.attention"]["result"], "skipped")
        self.assertEqual(self.run_script("tests/gpu/run.sh", "memcheck.attention", "ops")[0], 0)

    def test_no_check_of_that_name_is_a_failure(self):
        self.assertEqual(self.run_script("tests/gpu/run.sh", "no_such_check")[0], 1)

    def test_losses_that_differ_or_lack_are_failures(self):
        for losses, reason in (([2.5, 2.26], "differ"), ([2.5], "1 losses, not 2"), ([2.5, float("nan")], "differ")):
            code, out = self.run_script("tests/gpu/run.sh", "mlp.float32", FAKE_LOSSES=json.dumps(losses))
            self.assertEqual(code, 1, out)
            self.assertIn(reason, self.lines()["mlp.float32"]["reason"])

    def test_what_comes_after_the_deadline_does_not_run(self):
        self.suite("ops_conformance", "Hangs")
        begin = time.monotonic()
        code, out = self.run_script("tests/gpu/run.sh", "ops", "attention", DEADLINE="8")
        self.assertLess(time.monotonic() - begin, 16)
        self.assertEqual(code, 1, out)
        self.assertIn("the rest of the 8 s", self.lines()["ops_conformance"]["reason"])
        self.assertEqual(self.lines()["attention"]["result"], "not run")
        self.assertEqual(self.lines()["all"]["not_run"], 1)

    def wait_for_second_check(self):
        began = self.folder / "began"
        write(self.folder / "stage" / "bin" / "cuda_attention_device", f"#!/bin/sh\ntouch {began}\nexec sleep 300\n")
        process = self.start("tests/gpu/run.sh", "ops", "attention", "golden", STEP_LIMIT="20")
        self.addCleanup(process.stdout.close)
        give_up = time.monotonic() + 60
        while not began.exists() and time.monotonic() < give_up:
            time.sleep(0.05)
        return process

    def test_a_signal_loses_only_the_check_that_it_cut(self):
        process = self.wait_for_second_check()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=20), 143)
        self.assertEqual(self.lines()["attention"]["reason"], "stopped by SIGTERM")
        self.assertEqual(self.lines()["all"], {"name": "all", "ok": 1, "failed": 1, "skipped": 0, "not_run": 0})
        self.assertIn("attention", self.packed())

    def test_a_kill_leaves_what_had_ended(self):
        process = self.wait_for_second_check()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=20)
        self.assertEqual(list(self.lines()), ["report", "ops_conformance"])
        self.assertIn("PASSED", self.packed()["ops_conformance"])

    def test_what_is_missing_is_one_sentence(self):
        code, out = self.run_script("tests/gpu/run.sh", STAGE=str(self.folder / "nowhere"))
        self.assertEqual((code, out.count("\n")), (66, 1), out)
        self.assertIn("run tests/gpu/stage.sh", out)
        write(self.folder / "path" / "nvidia-smi", "#!/bin/sh\nexit 9\n")
        for script in ("tests/gpu/run.sh", "bench/gpu.sh"):
            code, out = self.run_script(script)
            self.assertEqual((code, out.count("\n")), (79, 1), out)
            self.assertIn("no GPU", out)

    def test_the_list_has_every_check_once(self):
        code, out = self.run_script("tests/gpu/run.sh", "--list", PATH=os.environ["PATH"], STAGE="nowhere")
        names, limits = zip(*(line.split() for line in out.splitlines()))
        self.assertEqual(code, 0)
        self.assertEqual(len(names), len(set(names)))
        self.assertTrue(all(0 < int(limit) <= 300 for limit in limits), limits)
        for name in ("attention", "golden.bf16", "clip.float32", "equal_bits.recorded_after_evaluations",
                     "equal_bits.recorded_with_smaller_batches", "nccl.two_ranks.gpt", "racecheck.attention"):
            self.assertIn(name, names)


class Bench(Scripts):
    def setUp(self):
        super().setUp()
        write(self.folder / "peers" / "gpt2_gpu.py", FAKE_PEER)
        write(self.folder / "peers" / "gpu_ceilings.py", "print('{\"tflops\": 800.0, \"gbytes_per_s\": 3000.0}')\n")
        write(self.folder / "stage" / "bin" / "cuda_op_times",
              "#!/bin/sh\necho '{\"op\": \"attention\", \"pass\": \"forward\", \"us\": 500}'\n")

    def bench(self, **variables):
        return self.run_script("bench/gpu.sh", **{"ROUNDS": "1", "BATCHES": "64", "STEPS": "10", "STEP_LIMIT": "8",
                                                  "PEERS": str(self.folder / "peers"), **variables})

    def test_contenders_that_fail_or_hang_are_named_and_the_others_stand(self):
        code, out = self.bench()
        self.assertEqual(code, 0, out)
        lines = self.lines("gpu_bench")
        self.assertEqual(lines["64.torch-eager-flash.1"]["reason"], "torch.OutOfMemoryError: it takes too much")
        self.assertEqual(lines["64.torch-autotune-cudnn.1"]["reason"], "timed out after 8 s")
        self.assertIn("missing: 64.torch-eager-flash.1: failed: torch.OutOfMemoryError", out)
        self.assertIn("missing: 64.torch-autotune-cudnn.1: failed: timed out", out)
        self.assertIn("not what it is called: 64 torch-compile-flash ran cudnn_sdpa_flash\n", out)
        self.assertNotIn("64 torch-compile-cudnn ran", out)
        self.assertIn("| 64 | engine | 131,072 | 131,072 to 131,072 | 2.00 | 13.2% |", out)
        self.assertIn("| 64 | torch-compile-cudnn | 65,536 | 65,536 to 65,536 | the best |", out)
        self.assertIn("| ms, attention, forward | before 6.2, after 4.4 | 6 |", out)
        self.assertEqual(sorted(path.name.partition("-N")[2] or path.name for path in self.results.iterdir()),
                         ["VIDIA-H100-of-paper.json", "gpu_bench.jsonl", "gpu_bench.tar.gz"])
        result = json.loads(next(self.results.glob("*.json")).read_text())
        self.assertEqual(result["best_peer"], {"64": "torch-compile-cudnn"})
        self.assertEqual(result["ceilings"], [{"tflops": 800.0, "gbytes_per_s": 3000.0}])
        self.assertEqual(result["training"]["64"]["engine"], [{"seconds": [0.5] * 3, "first_loss": 2.5, "loss": 2.5,
                                                                "attention_by": ["attention: of paper"]}])
        self.assertIn("torch-eager-flash", " ".join(result["missing"]))
        self.assertIn("commit abc", result["report"])

    def test_a_batch_without_the_engine_is_a_failure(self):
        write(self.folder / "stage" / "bin" / "engine", "#!/bin/sh\necho 'engine: out of memory'\nexit 1\n")
        code, out = self.bench()
        self.assertEqual(code, 1, out)
        self.assertIn("missing: 64.engine.1: failed: engine: out of memory", out)

    def test_a_run_that_is_too_short_is_no_figure(self):
        self.assertEqual(self.bench(FAKE_LOSSES="[2.5, 2.5]", CONFIG="other.pbtxt")[0], 1)
        self.assertEqual(self.lines("gpu_bench")["64.engine.1"]["reason"], "ERROR: 2 steps, not 40")

    def test_the_most_important_come_first_and_the_rest_is_told_at_the_deadline(self):
        write(self.folder / "peers" / "gpt2_gpu.py", "import time\ntime.sleep(300)\n")
        code, out = self.bench(DEADLINE="20", BATCHES="4")
        self.assertEqual(code, 1, out)
        results = {name: line["result"] for name, line in self.lines("gpu_bench").items() if name[0] == "4"}
        self.assertEqual(list(results)[:6], ["4.engine.1", "4.engine-recorded.1", "4.engine-unordered.1",
                                             "4.torch-compile-cudnn.1", "4.torch-compile-flash.1", "4.torch-graphs-cudnn.1"])
        self.assertEqual((results["4.engine.1"], results["4.torch-autotune-cudnn.1"]), ("ok", "not run"))
        self.assertIn("missing: 4.torch-autotune-cudnn.1: not run: the 20 s of all steps are over", out)

    def test_another_model_is_measured_alone(self):
        code, out = self.bench(CONFIG="other.pbtxt")
        self.assertEqual(code, 0, out)
        self.assertEqual(list(self.lines("gpu_bench")), ["report", "64.engine.1", "64.engine-recorded.1", "64.engine-unordered.1",
                                                         "all"])


if __name__ == "__main__":
    FAKE_SUITE = sys.argv.pop(1)
    unittest.main()
