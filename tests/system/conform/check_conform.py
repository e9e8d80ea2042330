#!/usr/bin/env python3
"""`engine conform` on plugins with one fault each: it is found, by the right test, and can be repeated.

  check_conform.py ROOT ENGINE FOLDER     FOLDER has libengine_wrong_{hook,wire,scheduler,optimizer,dataset,comm}.so
"""
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT, ENGINE, FOLDER = pathlib.Path(sys.argv.pop(1)), sys.argv.pop(1), sys.argv.pop(1)
MARGINS = "hook.WritesNothingBesideTheGradient"
FAULTS = [  # role, fault, the one test that finds it, what it says
    ("hook", "throw", MARGINS, "crashed with SIGABRT"),
    ("hook", "hang", MARGINS, "did not end within 1 s"),
    ("hook", "exit", MARGINS, "ended the process"),
    ("hook", "remember", "hook.RemembersOnlyWhatItSaves", "scale"),
    ("hook", "save_wrong", "saved_state.RefusesOrTakesWhateverAFileHolds", "not 4 bytes"),
    ("wire", "lose", "wire.WhatArrivesTendsToTheGradient", "error(4000)"),
    ("scheduler", "allocate", "scheduler.DoesNotAllocateAfterTheFirstStep", "allocations"),
    ("optimizer", "overrun", "optimizer.WritesNothingBesideValueAndStates", "beyond the last of 16 elements"),
    ("dataset", "order", "dataset.ASampleDependsOnItsIndexAndNotOnWhatElseIsAskedFor", "is another one alone"),
]
# Faults that others find as well, and the test that is made for them: role, faults and tests of each suite.
FAULTS_OF_ONE = {
    "hook": "extension:plugin.HasNoExtensionThatNobodyKnows infinite:hook.KeepsGradientsFinite "
            "order:hook.GivesTheSameBitsInAnyOrder order:hook.DoesToSpansWhatItDoesToTheWhole "
            "global:hook.GivesTheResultOfOneRankWhenRanksSumWhatTheyObserved save_lose:saved_state.ComesBackAsItWas",
    "wire": "name:wire.DescribesItsForm leave:wire.PackWritesAllOfTheWireAndNothingElse add:wire.UnpackReplacesWhatWasThere "
            "replace:wire.UnpackOfFurtherRanksAdds remember:wire.RemembersOnlyInItsStates unit:wire.StatesAreInTheUnitOfTheMean "
            "refuse:wire.UnpackRefusesOrTakesWhateverArrives",
    "scheduler": "steps:scheduler.TakesTheSameOrderInEveryStep objects:scheduler.TwoInstancesDecideAlike "
                 "static:scheduler.RanksStartTransfersInOneOrder error:scheduler.ForgetsPendingTasksAfterAnError "
                 "credit:scheduler.NoRankWaitsForAnotherForEverAtServers",
    "optimizer": "state:optimizer.DescribesItsStates up:optimizer.MovesAgainstTheGradient "
                 "cut:optimizer.GivesTheSameBitsHoweverATensorIsCut remember:optimizer.RemembersOnlyInItsStates "
                 "scale:optimizer.MultipliesTheGradientByItsScale empty:optimizer.AcceptsAnEmptySpan "
                 "decay:optimizer.LeavesAParameterWithoutGradientAndDecayAlone",
    "dataset": "digest:dataset.SaysWhatASampleIs classes:dataset.ClassesAreInTheirRange none:dataset.NothingIsWrittenForNoSample",
    "comm": "sum:communicator.EveryKindDTypeAndSizeGivesTheRightResult "
            "root:communicator.EveryKindDTypeAndSizeGivesTheRightResult early:communicator.ABarrierWaitsForEveryRank "
            "leak:communicator.ReleaseGivesAWorkBack "
            "abort:communicator_failure.AbortFailsPendingAndLaterTransfersWithTheFirstReason "
            "traits:communicator.TraitsAreCoherent open:communicator.LeavesNoDescriptorOpen "
            "ranks:communicator.ASumHasTheSameBitsOnAllRanks runs:communicator.ASumHasTheSameBitsInEveryRun "
            "started:communicator.ATransferStartsBetweenItsSubmissionAndItsEnd "
            "late:communicator.ATransferBehindOthersThatMoveIsNotLate broken:communicator.BrokenTransfersAreRefusedWithoutAWork "
            "reason:communicator.AbortIsRemembered warm:communicator.SubmitAndReleaseDoNotAllocateOnceWarm "
            "quiet:communicator_failure.AnAbortElsewhereEndsEveryRank "
            "unnamed:communicator_failure.ATimeoutNamesTheRankThatIsMissing "
            "alone:communicator_failure.CreationWithoutAllRanksFailsByItsDeadline "
            "alone:communicator_failure.CreationWithoutAllRanksNamesTheMissing "
            "mixed:communicator_failure.TransfersInDifferentOrderAreAnErrorAndNeverAWrongResult "
            "mixed:communicator_failure.DifferentKeysAreRefusedOnEveryRank "
            "mixed:communicator_failure.TwoTransfersInOppositeOrderAreRefusedOnEveryRank "
            "right:communicator_process.SurvivorsOfAKilledRankNameItPromptly extensions:shared_memory.IsZeroedAndBounded "
            "extensions:grouped_transfers.GiveWhatSingleOnesDo extensions:grouped_transfers.RefuseWhatIsNoGroup "
            "extensions:sub_groups.RanksOfOneColourAreTogetherInTheOrderOfTheirKeys "
            "extensions:wire_progress.GrowsWithWhatMoves extensions:link_cost.IsThatOfAMessage",
}


def library(role):
    return f"{FOLDER}/libengine_wrong_{role}.so"


def conform(words, exit_code, program=(ENGINE + "-conform",)):  # which `engine conform` starts
    done = subprocess.run([*program, *words.split()], capture_output=True, text=True)
    assert done.returncode == exit_code, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def failed(words):
    tests = json.loads(conform(words + " --json", 79).stdout)["tests"]
    return [test for test in tests if test["outcome"] == "failed"]


def at_once(judge, faults):
    """(fault, what judge returns for it); judgements wait more than they compute."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(zip(faults, pool.map(judge, faults)))


class Conform(unittest.TestCase):
    def test_each_fault_is_found_by_one_test_and_repeated(self):
        def judge(of):
            role, fault, _, _ = of
            timeout = " --timeout 1" if fault == "hang" else ""
            found = failed(f"{library(role)} --set fault={fault}{timeout}")
            if not found:
                return found, ""
            return found, conform(found[0]["repeat"].removeprefix("engine conform ") + timeout, 79).stdout

        for (role, fault, name, message), (found, again) in at_once(judge, FAULTS):
            with self.subTest(fault=fault):
                self.assertEqual([f"{test['suite']}.{test['test']}" for test in found], [name])
                self.assertEqual(found[0]["level"], "must")
                self.assertTrue(found[0]["header"].startswith("engine/") and found[0]["contract"])
                self.assertIn(message, found[0]["message"])
                repeat = found[0]["repeat"]
                self.assertTrue(repeat.startswith(f"engine conform {library(role)} --set fault={fault} --suite {name}"))
                self.assertIn(f"FAILED (must) {name}", again)
                self.assertTrue(again.endswith("must 0/1, should 0/0 passed\n"))

    def test_tests_that_are_made_for_a_fault_find_it(self):
        faults = [(role, *fault.split(":")) for role, of in FAULTS_OF_ONE.items() for fault in of.split()]
        for (role, fault, name), found in at_once(
                lambda of: failed(f"{library(of[0])} --set fault={of[1]} --suite {of[2]} --level should{' -n 2' * (of[1] in ('sum', 'root'))}"),
                faults):
            with self.subTest(role=role, fault=fault):
                self.assertEqual([f"{test['suite']}.{test['test']}" for test in found], [name])

    def test_a_seed_repeats_what_happens_on_some_graphs(self):
        [found] = failed(library("scheduler") + " --set fault=forget --suite scheduler.RunsEveryTaskOnceAndOnlyWhenItIsReady")
        self.assertNotEqual(found["seed"], "1")
        [again] = failed(found["repeat"].removeprefix("engine conform "))
        self.assertEqual((again["seed"], again["message"]), (found["seed"], found["message"]))

    def test_what_is_right_conforms(self):
        at_once(lambda of: conform(library(of[0]) + " --level should" + "".join(of[1:]), 0), (
            ("comm", " -n 3 --suite communicator --suite communicator_failure"), *zip(("hook", "wire", "scheduler", "optimizer", "dataset"))))
        conform(library("hook") + " --set fault=save", 0)
        by_step = conform(library("hook") + " --set fault=by_step --badge", 0).stdout
        self.assertTrue(re.fullmatch(r"\*\*wrong_hook 1\.0\.0\*\* \(hook, plugin ABI [\d.]+\) conforms: "
                                     r"must (\d+)/\1, should 2/2, judged by engine [\d.]+\n", by_step), by_step)

    def test_json_goes_to_a_file_beside_the_text(self):
        with tempfile.NamedTemporaryFile("r") as file:
            self.assertIn("must 9/9, should 2/2 passed", conform(f"{library('dataset')} --json {file.name}", 0).stdout)
            self.assertEqual(json.load(file)["must"], {"ran": 9, "failed": 0})
        conform(library("dataset") + " --json /dev/full", 203)

    def test_nothing_that_ran_is_a_failure(self):
        self.assertIn("no test of the suite ran", conform(library("hook") + " --suite hook.NoSuchTest", 79).stdout)
        self.assertIn("gradients travel as they are", conform(library("hook") + " --suite wire", 79).stdout)

    def test_what_cannot_be_judged_is_one_sentence(self):
        for words, exit_code, message in [(library("hook") + " --suite nosuch", 2, "there is no suite 'nosuch'"),
                                          (library("hook") + " --suite scheduler", 79, "a plugin of kind hook"),
                                          (library("hook") + " --set falt=x", 78, "did you mean 'fault'?"),
                                          (FOLDER + "/nothing.so", 79, "nothing.so"),
                                          ("/etc/passwd", 79, "no ELF file"),
                                          (ENGINE, 79, ENGINE)]:
            done = conform(words, exit_code, (ENGINE, "conform"))
            self.assertEqual((done.stdout, done.stderr.count("\n")), ("", 1))
            self.assertTrue(done.stderr.startswith("engine: ") and message in done.stderr, done.stderr)
        conform("", 2)

    def test_what_is_demanded_stands_in_the_headers(self):
        """Of the longer words of each sentence three quarters, but for their endings."""
        def stems(text):
            return {word[:5] for word in re.findall(r"[a-z]{4,}", text.lower())}
        literal = r'"((?:[^"\\]|\\.)*)"'
        header_of = rf"(?:CONTRACT\(\s*(?:MUST|SHOULD),\s*{literal},|\b(?:MUST|SHOULD)\()"
        contract = re.compile(rf"{header_of}\s*((?:{literal}\s*)+)\)")
        contracts = 0
        for suite in ROOT.glob("tools/conform/**/*_suite.cc"):
            text = suite.read_text()
            default = re.search(rf"kHeader\[\] = {literal}", text)
            for header, sentence, _ in contract.findall(text):
                contracts += 1
                header = header or default[1]
                words = stems("".join(re.findall(literal, sentence)))
                missing = words - stems((ROOT / "interfaces" / header).read_text())
                self.assertLessEqual(4 * len(missing), len(words), f"{suite.name}: {header} lacks {missing}: {sentence}")
        self.assertGreater(contracts, 40)


unittest.main()
