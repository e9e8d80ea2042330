#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "app/launch/launch.h"
#include "app/launch/launcher_environment.h"
#include "tests/support/expect_status.h"

namespace engine::launch {
namespace {

using Mode = LaunchPlan::Mode;
using Variables = EnvironmentVariables;

const Variables kTorchrun = {
    {"RANK", "3"},
    {"WORLD_SIZE", "4"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"MASTER_ADDR", "n0"},
    {"MASTER_PORT", "29500"},
    {"TORCHELASTIC_RUN_ID", "none"},
    {"TORCHELASTIC_RESTART_COUNT", "0"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
};
const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"PMIX_NAMESPACE", "1918763009"},
};
const Variables kSlurm = {
    {"SLURM_PROCID", "5"},
    {"SLURM_NTASKS", "6"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "2"},
    {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"},
    {"SLURM_JOB_ID", "17"},
    {"SLURM_STEP_ID", "0"},
};

Variables operator+(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

Variables Without(Variables environment, const char* name) {
  environment.erase(name);
  return environment;
}

LaunchPlan Plan(const LaunchFlags& flags, const Variables& environment) {
  return ValueOf(ResolveLaunch(flags, environment));
}

// A plan of that mode for that rank, of as many ranks.
MATCHER_P3(Is, mode, rank, world_size, "") {
  return arg.mode == mode && arg.info.rank == rank && arg.info.world_size == world_size;
}
MATCHER_P2(IsLocal, rank, world_size, "") {
  return arg.info.local_rank == rank && arg.info.local_world_size == world_size;
}

std::string Refusal(const LaunchFlags& flags, const Variables& environment) {
  const Result<LaunchPlan> plan = ResolveLaunch(flags, environment);
  EXPECT_THAT(plan, FailsWith(StatusCode::kInvalidArgument));
  return plan.status().message();
}

TEST(ResolveLaunch, FlagsSpawnOrStartThreads) {
  EXPECT_THAT(Plan({}, {{"PATH", "/bin"}}), Is(Mode::kSpawn, 0, 1));
  EXPECT_THAT(Plan({.world_size = 3}, {}), AllOf(Is(Mode::kSpawn, 0, 3), IsLocal(0, 3)));
  EXPECT_THAT(Plan({.world_size = 2, .threads = true}, {}), Is(Mode::kThreads, 0, 2));
}

TEST(ResolveLaunch, Torchrun) {
  const LaunchPlan plan = Plan({}, kTorchrun);
  EXPECT_THAT(plan, AllOf(Is(Mode::kJoin, 3, 4), IsLocal(1, 2)));
  EXPECT_EQ(plan.rendezvous, "n0:29501");  // the agent holds 29500
  EXPECT_EQ(plan.job, "none.0");
  EXPECT_EQ(plan.source, "torchrun");
  const auto meets_at = [](const Variables& more) { return Plan({}, kTorchrun + more).rendezvous; };
  EXPECT_EQ(meets_at({{"TORCHELASTIC_USE_AGENT_STORE", "False"}}), "n0:29500");
  EXPECT_EQ(meets_at({{"MASTER_ADDR", "fe80::1"}}), "[fe80::1]:29501");
}

TEST(ResolveLaunch, TorchNamesWithoutLocalOnes) {
  const LaunchPlan plan = Plan(
      {}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "5000"}});
  EXPECT_THAT(plan, IsLocal(0, 1));
  EXPECT_EQ(plan.rendezvous, "n0:5000");
}

TEST(ResolveLaunch, OpenMpiOnOneHost) {
  const LaunchPlan plan = Plan({}, kOpenMpi);
  EXPECT_THAT(plan, Is(Mode::kJoin, 1, 2));
  EXPECT_EQ(plan.rendezvous, "unix:engine-" + std::to_string(getuid()) + "-1918763009");
  EXPECT_EQ(plan.source, "Open MPI");
  EXPECT_EQ(Plan({}, Without(kOpenMpi, "PMIX_NAMESPACE") +
                         Variables{{"OMPI_MCA_orte_hnp_uri", "77.0;tcp://x:1"}})
                .job,
            "77.0");
}

TEST(ResolveLaunch, OpenMpiOnSeveralHostsNeedsAnAddress) {
  Variables hosts = kOpenMpi + Variables{{"OMPI_COMM_WORLD_SIZE", "4"}};
  EXPECT_THAT(Refusal({}, hosts),
              AllOf(HasSubstr("Open MPI started 4 ranks, 2 of them on this host"),
                    HasSubstr("--rendezvous HOST:PORT")));
  EXPECT_EQ(Plan({.rendezvous = "n0:1234"}, hosts).rendezvous, "n0:1234");
  EXPECT_EQ(Plan({}, hosts + Variables{{"MASTER_ADDR", "n0"}, {"MASTER_PORT", "99"}}).rendezvous,
            "n0:99");
}

TEST(ResolveLaunch, Slurm) {
  LaunchPlan plan = Plan({.rendezvous = "n0:1"}, kSlurm);
  EXPECT_THAT(plan, AllOf(Is(Mode::kJoin, 5, 6), IsLocal(1, 2)));
  EXPECT_EQ(plan.job, "17.0");
  EXPECT_THAT(Refusal({}, kSlurm), HasSubstr("--rendezvous"));
  plan = Plan({}, kSlurm + Variables{{"SLURM_NODEID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "6"}});
  EXPECT_EQ(plan.rendezvous, "unix:engine-" + std::to_string(getuid()) + "-17.0");
  // Inside a batch script nothing was started by srun.
  EXPECT_EQ(Plan({.world_size = 2}, Without(kSlurm, "SLURM_STEP_ID")).mode, Mode::kSpawn);
}

// Rank 0 is on the first host of the step; the port follows from job and step.
TEST(ResolveLaunch, SlurmOnSeveralHostsMeetsAtItsFirst) {
  const auto meets_at = [](const Variables& more) { return Plan({}, kSlurm + more).rendezvous; };
  const Variables job = {{"SLURM_JOB_NODELIST", "n[1-3]"}};
  EXPECT_EQ(meets_at(job), "n1:10272");
  EXPECT_EQ(meets_at(job + Variables{{"SLURM_STEP_ID", "1"}}), "n1:10273");
  EXPECT_EQ(meets_at(job + Variables{{"SLURM_STEP_NODELIST", "n[2-3]"}}), "n2:10272");
  EXPECT_EQ(meets_at(job + Variables{{"MASTER_PORT", "99"}}), "n1:99");
  EXPECT_EQ(meets_at({{"MASTER_ADDR", "x"}}), "x:10272");
}

TEST(FirstHost, OfSlurmsLists) {
  for (const auto& [list, first] : std::map<std::string, std::string>{{"n1", "n1"},
                                                                      {"n1,n2", "n1"},
                                                                      {"n[01-03,7],m5", "n01"},
                                                                      {"n[7]", "n7"},
                                                                      {"r[1-2]n[3-4].x", "r1n3.x"},
                                                                      {"", ""},
                                                                      {"n[1", ""},
                                                                      {"n[]", ""},
                                                                      {"a b", ""}}) {
    EXPECT_EQ(FirstHost(list), first) << list;
  }
}

TEST(ResolveLaunch, Kubernetes) {
  const Variables index = {{"JOB_COMPLETION_INDEX", "1"}};
  const Variables job = index + Variables{{"WORLD_SIZE", "2"}};
  const Variables place = {{"MASTER_ADDR", "train-0.train"}, {"MASTER_PORT", "5000"}};
  const LaunchPlan plan = Plan({}, job + place);
  EXPECT_THAT(plan, AllOf(Is(Mode::kJoin, 1, 2), IsLocal(0, 1)));
  EXPECT_EQ(plan.rendezvous, "train-0.train:5000");
  EXPECT_EQ(plan.source, "Kubernetes");
  EXPECT_THAT(Refusal({}, job), HasSubstr("MASTER_ADDR"));
  EXPECT_EQ(Plan({}, index).mode, Mode::kSpawn) << "each pod runs for itself";
  EXPECT_EQ(Plan({}, kTorchrun + index).source, "torchrun") << "which has started ranks in a pod";
}

TEST(ResolveLaunch, PmiNeedsAnAddress) {
  Variables pmi = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
  EXPECT_THAT(Refusal({}, pmi), HasSubstr("--rendezvous"));
  EXPECT_EQ(Plan({.rendezvous = "n0:1"}, pmi).source, "PMI");
}

TEST(ResolveLaunch, PodsGetTheirNamesLater) {
  const Variables job = {{"JOB_COMPLETION_INDEX", "1"}, {"WORLD_SIZE", "2"}};
  const Variables place = {{"MASTER_ADDR", "train-0.train"}, {"MASTER_PORT", "5000"}};
  const LaunchPlan plan = Plan({}, job + place);
  EXPECT_THAT(plan, Is(Mode::kJoin, 1, 2));
  EXPECT_TRUE(plan.name_comes_later);
  EXPECT_FALSE(Plan({}, kTorchrun).name_comes_later);
  // Torch's name of the rank beside it, and mpirun in a pod.
  EXPECT_EQ(Plan({}, job + place + Variables{{"RANK", "1"}}).source, "torchrun");
  EXPECT_EQ(Plan({}, kOpenMpi + Variables{{"JOB_COMPLETION_INDEX", "3"}}).source, "Open MPI");
  EXPECT_THAT(Refusal({}, job + place + Variables{{"JOB_COMPLETION_INDEX", "2"}}),
              HasSubstr("JOB_COMPLETION_INDEX=2"));
}

TEST(ResolveLaunch, InnerLaunchersHideTheOnesThatStartedThem) {
  EXPECT_EQ(Plan({}, kOpenMpi + kSlurm).source, "Open MPI");
  EXPECT_EQ(Plan({}, kTorchrun + kSlurm).source, "torchrun");
}

TEST(ResolveLaunch, SourcesThatDisagreeAreNamed) {
  Variables plain = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "5000"}};
  EXPECT_THAT(Refusal({}, plain + kOpenMpi),
              AllOf(HasSubstr("torchrun (RANK=0, WORLD_SIZE=2)"),
                    HasSubstr("Open MPI (OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2)")));
  EXPECT_EQ(Plan({.launcher = "openmpi"}, plain + kOpenMpi).info.rank, 1);
  EXPECT_EQ(Plan({.launcher = "torchrun"}, plain + kOpenMpi).info.rank, 0);
  Variables agreeing = plain + Variables{{"RANK", "1"}};
  EXPECT_EQ(Plan({}, agreeing + kOpenMpi).info.rank, 1);
}

TEST(ResolveLaunch, FlagsThatContradictTheLauncher) {
  EXPECT_THAT(Refusal({.world_size = 2}, kTorchrun),
              AllOf(HasSubstr("-n 2"), HasSubstr("torchrun (RANK=3, WORLD_SIZE=4)")));
  EXPECT_EQ(Plan({.world_size = 4}, kTorchrun).mode, Mode::kJoin);
  EXPECT_THAT(Refusal({.threads = true}, kTorchrun), HasSubstr("--threads"));
  EXPECT_THAT(Plan({.world_size = 2, .launcher = "none"}, kTorchrun), Is(Mode::kSpawn, 0, 2));
}

struct Wrong {
  LaunchFlags flags;
  Variables environment;
  std::string sentence;
};

void ExpectRefused(const std::vector<Wrong>& cases) {
  for (const auto& [flags, environment, sentence] : cases) {
    EXPECT_THAT(Refusal(flags, environment), HasSubstr(sentence));
  }
}

TEST(ResolveLaunch, IncompleteOrWrongVariables) {
  ExpectRefused({
      {{}, {{"RANK", "0"}}, "RANK is set and WORLD_SIZE is not"},
      {{}, {{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set and RANK is not"},
      {{}, Without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR"},
      {{}, kTorchrun + Variables{{"LOCAL_RANK", "2"}}, "LOCAL_WORLD_SIZE"},
  });
  for (const std::string rank : {"4", "-1", "x", "1x", "99999999999"}) {
    ExpectRefused({{{}, kTorchrun + Variables{{"RANK", rank}}, "RANK=" + rank}});
  }
}

TEST(ResolveLaunch, WrongFlags) {
  ExpectRefused({
      {{.launcher = "slurm"}, {}, "--launcher slurm"},
      {{.rendezvous = "n0:1"}, {}, "--rendezvous n0:1"},
      {{.rendezvous = "n0"}, kTorchrun, "expected HOST:PORT"},
      {{.serve_at = "n0:1"}, {}, "add --servers N"},
      {{.servers = 1, .serve_at = "n0"}, {}, "expected HOST:PORT"},
      {{.servers = 1, .serve_at = "unix:a"}, {}, "HOST:PORT"},
      {{.threads = true, .servers = 1, .serve_at = "n0:1"}, {}, "drop --threads"},
      {{.servers = 1, .key_file = "key"}, {}, "add --serve-at"},
      {{.insecure = true}, {}, "are for members that join over a network"},
      {{.key_file = "key", .insecure = true}, kTorchrun, "drop one of them"},
      {{.restarts = 1}, {}, "add -n N"},
      {{.world_size = 2, .min_ranks = 3}, {}, "more than the 2"},
      {{.world_size = 2, .threads = true, .restarts = 1}, {}, "--threads makes threads"},
      {{.servers = 1, .serve_at = "n0:1"}, kTorchrun, "drop --serve-at"},
  });
}

TEST(ResolveLaunch, Servers) {
  LaunchPlan own = Plan({.world_size = 4, .servers = 2, .restarts = 3}, {});
  EXPECT_EQ(own.mode, Mode::kSpawn);
  EXPECT_EQ(own.info.servers, 2);
  EXPECT_EQ(own.restarts, 3);
  EXPECT_EQ(own.serve_at, "");
  EXPECT_EQ(Plan({.threads = true, .servers = 2}, {}).info.servers, 2);
  LaunchPlan elsewhere =
      Plan({.world_size = 4, .servers = 2, .serve_at = "n0:5000", .key_file = "key"}, {});
  EXPECT_EQ(elsewhere.serve_at, "n0:5000");
  EXPECT_EQ(elsewhere.key_file, "key");
  LaunchPlan joined = Plan({.servers = 2, .key_file = "key"}, kTorchrun);
  EXPECT_EQ(joined.mode, Mode::kJoin);
  EXPECT_EQ(joined.info.servers, 2);
  EXPECT_EQ(joined.key_file, "key");
  EXPECT_TRUE(Plan({.insecure = true}, kTorchrun).insecure);
  EXPECT_EQ(joined.info.one_host, 0u) << "2 of its 4 ranks are here";
  EXPECT_EQ(Plan({}, kOpenMpi).info.one_host, 1u);
}

TEST(ResolveServe, IsOneServerOfARunElsewhere) {
  const auto plan = ValueOf(ResolveServe("n0:5000", 3, "key"));
  EXPECT_EQ(plan.mode, Mode::kServe);
  EXPECT_EQ(plan.info.rank, 3);
  EXPECT_EQ(plan.info.is_server, 1u);
  EXPECT_EQ(plan.rendezvous, "n0:5000");
  EXPECT_EQ(plan.key_file, "key");
  EXPECT_FALSE(ResolveServe("n0", 0, "").ok());
}

TEST(ParseTasksPerNode, ExpandsRepetition) {
  EXPECT_EQ(ParseTasksPerNode("4"), (std::vector<int>{4}));
  EXPECT_EQ(ParseTasksPerNode("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  for (const char* text : {"", "x", "2(x", "2(x3", "2(x0)", "0", "2(x)3"}) {
    EXPECT_TRUE(ParseTasksPerNode(text).empty()) << text;
  }
}

}  // namespace
}  // namespace engine::launch
