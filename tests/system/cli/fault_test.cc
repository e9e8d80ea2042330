// However a plugin misbehaves, a run ends as it should: with the exit code of what has happened, in its
// time, in one line that names the plugin, and with nothing left behind. What can be right is left
// alone.
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

constexpr int kAll = -1;

// Ways to misbehave (fault.h) that end in the same way.
struct Group {
  const char* role;
  int exit_code;
  std::string sentence;  // what the line says; behind a "@" where that does not name the plugin
  const char* modes;     // with spaces between
  int ranks = 2;
  int rank = kAll;  // the one at fault
  std::string more = "";
  int warnings = 0;  // lines of the log beside the one of the end
};

class Faults : public CliTest {
 protected:
  void Expect(const std::vector<Group>& groups) {
    folder_.Write(
        "run.pbtxt",
        "seed: 3\n"
        "train { steps: 4 global_batch: 8 check_ranks_every: 2 learning_rate { base: 0.1 } }\n"
        "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n");
    for (const Group& group : groups) {
      std::istringstream modes(group.modes);
      for (std::string mode; modes >> mode;) cases_.push_back({&group, mode});
    }
    const auto begin = std::chrono::steady_clock::now();
    constexpr size_t kAtOnce = 8;
    for (std::span<const Case> rest = cases_; !rest.empty();) {
      const auto some = rest.first(std::min(kAtOnce, rest.size()));
      rest = rest.subspan(some.size());
      std::vector<std::unique_ptr<EngineProcess>> runs;
      for (const Case& one : some) runs.push_back(Start(CommandOf(*one.group, one.mode)));
      for (size_t i = 0; i < some.size(); ++i) {
        SCOPED_TRACE(std::string(some[i].group->role) + " " + some[i].mode);
        ExpectEnd(*some[i].group, runs[i]->Wait());
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(90));
    const std::filesystem::directory_iterator left(folder_.path());
    EXPECT_EQ(std::distance(left, {}), 1) << "files are left";
  }

 private:
  struct Case {
    const Group* group;
    std::string mode;
  };

  static std::string CommandOf(const Group& group, const std::string& mode) {
    const std::string role = group.role, name = "faulty_" + role;
    const bool is_data = role == "dataset", is_model = role == "model", is_ops = role == "ops";
    const std::string block = (is_data ? "data." : is_model ? "model." : "") + name;
    std::string words = "run run.pbtxt -q --threads --plugin-path " ENGINE_TEST_FAULTY " -n " +
                        std::to_string(group.ranks) + " --set " + block + ".mode=\"" + mode +
                        "\" --set " + block + ".rank=" + std::to_string(group.rank) +
                        " --set communication.timeout_ms=1000 " + group.more;
    if (block == name) words += " --plugins " + (is_ops ? "cpu_ops," + name : name);
    if (!is_data) words += " --set data.synthetic.shape=8 --set data.synthetic.classes=4";
    if (!is_model) words += " --set model.mlp.hidden=8";
    return is_ops ? words + " --set model.mlp.activation=faulty" : words;
  }

  static void ExpectEnd(const Group& group, const Outcome& run) {
    EXPECT_EQ(run.exit_code, group.exit_code) << run.err;
    if (group.exit_code == 0 && group.sentence.empty()) return;
    const bool is_named = group.sentence.front() != '@';
    EXPECT_THAT(run.err,
                AllOf(HasSubstr(group.sentence.substr(is_named ? 0 : 1)),
                      HasSubstr(is_named ? "faulty_" : "engine: "),
                      Not(HasSubstr("outside of any plugin")), Not(HasSubstr("broken invariant"))));
    const auto lines = std::count(run.err.begin(), run.err.end(), '\n');
    EXPECT_EQ(lines, group.exit_code == 0 ? group.ranks : 1 + group.warnings) << run.err;
    EXPECT_LT(run.err.size(), 2200u * static_cast<size_t>(lines));
    const auto is_control = [](unsigned char c) { return (c < ' ' && c != '\n') || c == 0x7f; };
    EXPECT_TRUE(std::none_of(run.err.begin(), run.err.end(), is_control)) << run.err;
  }

  std::vector<Case> cases_;
};

constexpr const char *kCable = "the cable was pulled", *kOdd = R"(odd\x0a\x1b[31m\x07/../name)",
                     *kDiffers = "other answers of plugins than rank 0",
                     *kDiverged = "@ranks diverged: after step 2 rank 1 differs",
                     *kNan = "@the loss of step",
                     *kItself = "describes itself in a way that this engine does not know",
                     *kThrown = ": an exception that nobody catches: no such cable",
                     *kNoEnd = "describes a transfer as ended that has no end";
const std::string kSharded = "--set train.shard_optimizer=true";

TEST_F(Faults, OfACommunicator) {
  const char* const role = "communicator";
  Expect({{role, 0, "", ". started", 2},
          {role, 79, kCable, "Submit.ok WaitHost.ok create.ok", 2},
          {role, 0, kOdd, "log"},
          {role, 0, "of an unknown level", "level"},
          {role, 79, kCable,
           "Submit.error Submit.interrupted Submit.internal Submit.unknown Submit.negative "
           "WaitHost.error WaitHost.interrupted WaitHost.unknown create.error create.internal "
           "create.unknown"},
          {role, 79, kCable, "Submit.error create.error", 2, 1},
          {role, 200, kCable, "Submit.peer Submit.aborted WaitHost.peer"},
          {role, 79, kOdd, "Submit.text WaitHost.text create.text"},
          {role, 79, "took broadcast and gave no work for it", "no_work"},
          {role, 79, "took broadcast and gave no work for it", "no_work", 2, 1},
          {role, 79, "reported success and made no object", "nothing"},
          {role, 79, kNoEnd, "early twice state=77 state=-1 state=2"},
          {role, 79, kNoEnd, "early twice", 2, 1},
          {role, 78, "needs all-reduce of float32", "kinds=0 dtypes=0 dtypes=2"},
          {role, 79, kDiffers, "kinds=3 dtypes=3 in_flight=2", 2, 1},
          {role, 79, kDiverged, "drift", 2, 1},
          {role, 134, kThrown,
           "create.throw Submit.throw WaitHost.throw Submit.error,Abort.throw destructor.throw"},
          {role, 139, "crashed with SIGSEGV in plugin '", "Submit.segv"}});
}

TEST_F(Faults, OfAScheduler) {
  const char* const role = "scheduler";
  Expect(
      {{role, 0, "", ". plan_reversed stages=1 newest_first", 2},
       {role, 79, kCable, "Plan.ok", 2},
       {role, 79, "its plan has ",
        "plan_nothing plan_misses plan_empty plan_twice parameter=99 offset=1 offset=-1 count=0 "
        "count=-1 count=1000 count=9223372036854775807"},
       {role, 79, "its plan has unknown stages", "stages=9 stages=-1"},
       {role, 79, kItself, "order=9 order=-1"},
       {role, 79, kCable, "Plan.error Plan.interrupted Plan.unknown Begin.error Begin.internal"},
       {role, 79, kOdd, "Plan.text Begin.text"},
       {role, 79, "which is not ready", "other_lane again task=9999 task=0 action=9 action=-1"},
       {role, 79, "which is not ready", "task=9999", 2, 1},
       {role, 79, "with another key instead", "newest_first", 2, 1},
       {role, 79, kDiffers, "plan_reversed order=1 stages=1", 2, 1},
       {role, 202, "stalled: scheduler 'faulty_scheduler' holds 'forward linear1'", "hold"},
       {role, 202, "stalled: scheduler 'faulty_scheduler' holds 'forward linear1'", "hold", 2, 1},
       {role, 134, kThrown, "Plan.throw Begin.throw On.throw Next.throw"},
       {role, 139, "crashed with SIGSEGV in plugin '", "On.segv"}});
}

TEST_F(Faults, OfAnOptimizer) {
  const char* const role = "optimizer";
  Expect({{role, 0, "", ". states=2", 2},
          {role, 79, kCable, "Update.ok", 2},
          {role, 79, kItself, "gate=99 gate=-1"},
          {role, 79, "describes too many states", "states=99 states=5 states=-1"},
          {role, 79, "describes two states of one name", "states=2,states_same"},
          {role, 79, "describes a state without a proper name",
           "states=1,state_path states=1,state_empty"},
          {role, 79, kCable,
           "create.error Update.invalid Update.error Update.interrupted Update.internal "
           "Update.unknown"},
          {role, 79, kOdd, "Update.text"},
          {role, 200, kCable, "Update.peer"},
          {role, 79, kDiffers, "gate=2 states=1 version=2", 2, 1},
          {role, 79, kDiverged, "drift", 2, 1},
          {role, 78, kNan, "nan"},
          {role, 134, kThrown, "Update.throw"},
          {role, 139, "crashed with SIGSEGV in plugin '", "Update.segv"}});
}

TEST_F(Faults, OfAHook) {
  const char* const role = "hook";
  Expect(
      {{role, 0, "", ". stage=0 stage=2 scope=2 stage=2,states=2", 2},
       {role, 79, kCable, "Setup.ok", 2},
       {role, 0, "", "scope=1 scope=1,observed=16", 2, kAll, kSharded},
       {role, 79, kItself, "stage=99 stage=-1 scope=99 scope=-1"},
       {role, 79, "wants all gradients before any is sent", "stage=0,scope=1"},
       {role, 79, "scaled the gradient of 'linear2.weight' before its transfer", "stage=0,scale"},
       {role, 79, "but has no 'engine.wire_format.", "stage=2,no_format"},
       {role, 79, "a wire format with an unknown kind", "stage=2,kind=9 stage=2,kind=-1"},
       {role, 79, "a wire format with an unknown type of elements",
        "stage=2,kind=0,dtype=42 stage=2,kind=0,dtype=-1"},
       {role, 79, "describes too many states", "stage=2,states=3 stage=2,states=-1"},
       {role, 79, "describes two states of one name", "stage=2,states=2,states_same"},
       {role, 79, "describes a state without a proper name", "stage=2,states=1,state_path"},
       {role, 79, "packs 32 elements of a gradient into ",
        "stage=2,packed=0 stage=2,packed=-5 stage=2,packed=1152921504606846976"},
       {role, 79, "where 1 to 16 can be summed up",
        "scope=1,observed=0 scope=1,observed=17 scope=1,observed=1000 scope=1,observed_null "
        "scope=1,observed_varies",
        2, kAll, kSharded},
       {role, 79, kCable,
        "Setup.error BeginStep.error BeginStep.interrupted BeginStep.unknown Apply.error "
        "Apply.interrupted Apply.internal Apply.unknown stage=2,Pack.error"},
       {role, 79, kOdd, "Setup.text BeginStep.text Apply.text stage=2,Pack.text"},
       {role, 65, kCable, "stage=2,Unpack.data"},
       {role, 200, kCable, "Apply.peer"},
       {role, 79, kDiffers, "stage=0 scope=2 *stage=2,packed=4096 *stage=2,states=1", 2, 1},
       {role, 79, kDiverged, "drift", 2, 1},
       {role, 78, kNan, "nan"},
       {role, 134, kThrown, "Setup.throw Apply.throw"}});
}

TEST_F(Faults, OfOps) {
  const char* const role = "ops";
  Expect({{role, 0, "", ". view_of=0 in_place_of=0 in_place_of=1 saved=64", 2},
          {role, 79, kCable, "Forward.ok Infer.ok", 2},
          {role, 79, "made no op 'faulty'", "null", 1},
          {role, 79, "impossible number of outputs", "outputs=0 outputs=5 outputs=-1", 1},
          {role, 79, "impossible number of parameters", "parameters=-1 parameters=12 parameters=13",
           1},
          {role, 79, "impossible name of a parameter", "parameters=2 name_empty name_odd", 1},
          {role, 79, "impossible parameter",
           "parameter_ndim=60 parameter_ndim=-1 parameter_extent=0 parameter_extent=-5 "
           "parameter_extent=1152921504606846976 parameter_dtype=42 parameter_dtype=1 "
           "parameter_dtype=-1 initializer=99 initializer=-1 initializer=2,scale",
           1},
          {role, 79, "impossible output",
           "ndim=60 ndim=-1 rows=-8 rows=3 rows=0 extent=-70 extent=0 extent=1152921504606846976 "
           "dtype=42 dtype=-1",
           1},
          {role, 79, "impossible input to share memory with",
           "view_of=99 view_of=-7 view_of=1 view_of=0,extent=4 in_place_of=99 in_place_of=-7", 1},
          {role, 79, "inputs that it does not have",
           "differentiable=4096 differentiable=-1 accumulates=4096 passes=4096 equal=4096 "
           "gradient_in_place=4096",
           1},
          {role, 79, "impossible amount of memory",
           "saved=-5 saved=4611686018427387904 workspace=-5 workspace=4611686018427387904", 1},
          {role, 79, kCable,
           "CreateOp.error CreateOp.unknown Infer.error Infer.internal Forward.error "
           "Forward.interrupted Forward.internal Forward.unknown Evaluation.error Backward.error",
           1},
          {role, 79, kCable, "Forward.error", 2, 1},
          {role, 79, kOdd, "CreateOp.text Infer.text Backward.text", 1},
          {role, 200, kCable, "Forward.peer", 1},
          {role, 79, "@rank 1 has 'model and ops of 'mlp'", "parameter_extent=9 passes=1", 2, 1},
          {role, 78, kNan, "nan", 1},
          {role, 134, kThrown, "Infer.throw Forward.throw", 1},
          {role, 139, "crashed with SIGSEGV in plugin '", "Backward.segv", 1}});
}

TEST_F(Faults, OfADataset) {
  const char* const role = "dataset";
  Expect({{role, 0, "", ". held_out=0", 2},
          {role, 79, kCable, "Open.ok Fill.ok", 2},
          {role, 79, "samples without input, fewer than none, or a digest that is no text",
           "no_input train=-1 held_out=-1 digest", 1},
          {role, 65, "there is no sample to train on", "train=0", 1},
          {role, 79, "the tensor 'point' has a shape, a type, content or classes that cannot be",
           "ndim=-1 ndim=60 ndim=6 ndim=5 extent=0 extent=-1 extent=1152921504606846976 dtype=42 "
           "dtype=-1 content=99 content=-1 input_classes=4",
           1},
          {role, 79, "the tensor 'class' has a shape, a type, content or classes that cannot be",
           "classes=-1 target_ndim=-1", 1},
          {role, 79, "4 in 'class', which has 4 classes", "class", 1},
          {role, 79, "Fill has written behind the memory of 'point'", "overrun", 1},
          {role, 79, kCable,
           "create.error Open.error Open.unknown Open.interrupted Fill.error Fill.unknown", 1},
          {role, 79, kOdd, "tensor_name Open.text Fill.text", 1},
          {role, 79, "@" + std::string(kOdd) + ": samples without input", "name,train=-1", 1},
          {role, 79, kDiffers, "train=8 held_out=8 extent=9 classes=5 content=1", 2, 1},
          {role, 79, kCable, "Fill.error", 2, 1},
          {role, 78, kNan, "nan", 1},
          {role, 134, kThrown, "Open.throw Fill.throw", 1}});
}

TEST_F(Faults, OfAModel) {
  const char* const role = "model";
  Expect({{role, 0, "", ".", 2},
          {role, 79, kCable, "Build.ok", 2},
          {role, 79, "this is an error of its plugin",
           "no_output no_loss name rate value outputs op output frozen parameter_null "
           "parameter_name parameter,extent=0 parameter,extent=-1 "
           "parameter,extent=4611686018427387904 parameter,ndim=60 parameter,ndim=-1 "
           "parameter,dtype=42 parameter,dtype=-1 parameter,initializer=99",
           1},
          {role, 78, "'last' is no loss", "bad_loss", 1},
          {role, 78, "two layers are called 'first'", "twice", 1},
          {role, 78, "two parameters are called '", "parameter_twice parameter_before", 1},
          {role, 78,
           "op 'linear', units: ", "units=0 units=-1 units=9223372036854775807 attribute_type", 1},
          {role, 78, "has no attribute 'odd'", "attribute", 1},
          {role, 78, "got 13 inputs", "inputs", 1},
          {role, 79, kCable, "create.error Build.error Build.internal Build.unknown", 1},
          {role, 79, kOdd, "name Build.text", 1},
          {role, 79, kDiffers, "units=9", 2, 1},
          {role, 134, kThrown, "Build.throw destructor.throw", 1}});
}

using Slow = Faults;

// Memory that a communicator may still write to is waited for.
TEST_F(Slow, ATransferThatNeverEnds) {
  Expect({{"communicator", 202, "it is still pending", "never", 1, kAll, "", 1}});
}

}  // namespace
}  // namespace engine::test
