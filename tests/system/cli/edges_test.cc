// What a process finds around it: closed streams, limits, signals, files that change while they are
// read. Each end has the exit code of the contract and a sentence that names what it was.

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"
#include "tests/unit/data/token_bytes.h"

namespace engine::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryMayBeLimited = false;  // shadow memory takes terabytes of addresses
#else
constexpr bool kMemoryMayBeLimited = true;
#endif

class Edges : public CliTest {
 protected:
  // `engine WORDS` in the folder after `setup` of a shell; `out` holds both of its streams.
  Outcome RunAfter(const std::string& setup, const std::string& words) const {
    ProbeProcess process({"/bin/sh", "-c",
                          "cd " + folder_.path().native() + "; " + setup + "; exec " +
                              ENGINE_TEST_BINARY + " " + words});
    const int exit_code = process.Wait();
    return {.exit_code = exit_code, .out = process.output(), .err = ""};
  }
  void ExpectEndsAtOnce(const std::string& words) const {
    for (const int signal : {SIGINT, SIGTERM}) {
      auto process = Start(words);
      // The thread of the model, which is named so.
      Await("its work", [&] {
        for (const auto& thread : std::filesystem::directory_iterator(
                 "/proc/" + std::to_string(process->pid()) + "/task")) {
          if (ReadWhole(thread.path() / "comm") == "rank0\n") return true;
        }
        return false;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      kill(process->pid(), signal);
      EXPECT_EQ(process->Wait().exit_code, 128 + signal) << words;
    }
  }
};

// Their numbers would be those of sockets and of shared memory, and this run warns of the seed.
TEST_F(Edges, ClosedStandardStreams) {
  Output(RunConfig("-q --set output.checkpoint=model.st"));
  for (const std::string plugins : {"tcp", "shm"}) {
    const Outcome outcome = RunAfter("exec 0<&- 1>&- 2>&-",
                                     "run run.pbtxt -n 2 --resume model.st --set seed=9 --set "
                                     "train.steps=20 --plugins " +
                                         plugins);
    EXPECT_EQ(outcome.exit_code, 0) << plugins << outcome.out;
  }
}

TEST_F(Edges, NobodyReadsItsMessages) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  const int pid = StartProgram({ENGINE_TEST_BINARY, "run", "run.pbtxt", "-n", "2", "--set",
                                "train.steps=100000000", "--set", "output.metrics=run.jsonl"},
                               {}, folder_.path().native(), ends[1], ends[1]);
  close(ends[1]);
  AwaitSteps(5);
  const std::string of_launcher = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid);
  kill(std::stoi(ReadWhole(of_launcher + "/children")), SIGKILL);
  int status = 0;
  Await("its end", [&] { return waitpid(pid, &status, WNOHANG) == pid; });
  EXPECT_EQ(ExitCodeOf(status), 128 + SIGKILL);
}

TEST_F(Edges, EvaluatingAndSamplingEndByTheFirstSignal) {
  Output(RunConfig("-q --set output.checkpoint=model.st"));
  ExpectEndsAtOnce("eval model.st --set data.synthetic.eval_samples=1000000000");
  TrainOnText("text.st");
  ExpectEndsAtOnce("sample text.st --bytes 1000000");
}

TEST_F(Edges, LimitsAreNamed) {
  const struct {
    const char *limit, *words, *sentence;
  } cases[] = {
      // a file has blocks of 512 bytes here
      {"-n 14", "-n 2", "a limit of 14 open files is too low: raise it to 64 (ulimit -n)"},
      {"-n 70", "-n 48", "Too many open files; raise the limit of this process: 70 open files"},
      {"-s 128", "-n 2", "128 KiB of stack is too low"},
      {"-v 24000", "-n 2", "24000 KiB of address space (ulimit -v)"},
      {"-v 65536", "-n 2", "65536 KiB of address space (ulimit -v)"},
      {"-d 16384", "-n 2", "16384 KiB of data (ulimit -d)"},
      {"-f 2", "-n 2 --set output.checkpoint=out/model.st",
       "out/model.st': write failed: File too large"},
      {"-f 2", "-n 2 --set output.checkpoint=out/model.st", "1 KiB in a file (ulimit -f)"},
      {"-f 2", "-n 2 --set output.checkpoint=out/model.st --set train.checkpoint_every=1",
       "out/model.st': write failed: File too large"},
      {"-f 2", "-n 2 --set output.trace=out/run.json", "1 KiB in a file (ulimit -f)"},
  };
  for (const auto& [limit, words, sentence] : cases) {
    if (!kMemoryMayBeLimited && (limit[1] == 'v' || limit[1] == 'd')) continue;
    const Outcome outcome =
        RunAfter(std::string("ulimit ") + limit, std::string("run run.pbtxt -q ") + words);
    EXPECT_EQ(outcome.exit_code, 203) << limit << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr(sentence)) << limit;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "out")) << "a temporary file is left";
}

// Wherever memory ends, in the engine, a plugin or a library: it is told so, and nothing else.
TEST_F(Edges, WantOfMemoryIsToldAtEveryPlace) {
  if (!kMemoryMayBeLimited) GTEST_SKIP() << "a sanitizer needs all addresses";
  int failed = 0;
  for (int mib = 40; mib <= 240; mib += 10) {
    const std::string kib = std::to_string(mib * 1024);
    const Outcome outcome = RunAfter("ulimit -v " + kib, "run run.pbtxt -q -n 2");
    if (outcome.exit_code == 0) continue;
    ++failed;
    EXPECT_EQ(outcome.exit_code, 203) << kib << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr(kib + " KiB of address space (ulimit -v)"));
  }
  EXPECT_GT(failed, 2);
}

TEST_F(Edges, ADataFileThatIsCutWhileItIsReadIsNamed) {
  folder_.Write("x_train.bin", TokenBytes(std::vector<int>(400000, 700)));
  folder_.Write("tokens.pbtxt",
                "model { gpt { layers: 1 width: 8 heads: 2 } }\n"
                "data { tokens { path: \".\" context: 8 vocabulary: 800 } }\n"
                "train { steps: 100000000 global_batch: 4 }\n"
                "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n"
                "output { metrics: \"run.jsonl\" }\n");
  auto process = Start("run tokens.pbtxt -q -n 2");
  AwaitSteps(5);
  std::filesystem::resize_file(folder_ / "x_train.bin", 2000);
  const Outcome outcome = process->Wait();
  EXPECT_EQ(outcome.exit_code, 66) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr(folder_ / "x_train.bin became shorter"), Not(HasSubstr("plugin"))));
}

}  // namespace
}  // namespace engine::test
