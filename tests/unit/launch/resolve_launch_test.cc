#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "app/launch/launch.h"
#include "app/launch/launcher_environment.h"

namespace engine::launch {
namespace {

using testing::HasSubstr;
using Mode = LaunchPlan::Mode;

const EnvironmentVariables kTorchrun = {
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
const EnvironmentVariables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"PMIX_NAMESPACE", "1918763009"},
};
const EnvironmentVariables kSlurm = {
    {"SLURM_PROCID", "5"},
    {"SLURM_NTASKS", "6"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "2"},
    {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"},
    {"SLURM_JOB_ID", "17"},
    {"SLURM_STEP_ID", "0"},
};

EnvironmentVariables operator+(EnvironmentVariables a, const EnvironmentVariables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

EnvironmentVariables Without(EnvironmentVariables environment, const char* name) {
  environment.erase(name);
  return environment;
}

LaunchPlan Plan(const LaunchFlags& flags, const EnvironmentVariables& environment) {
  Result<LaunchPlan> plan = ResolveLaunch(flags, environment);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? *plan : LaunchPlan{};
}

std::string Refusal(const LaunchFlags& flags, const EnvironmentVariables& environment) {
  Result<LaunchPlan> plan = ResolveLaunch(flags, environment);
  EXPECT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  return plan.status().message();
}

TEST(ResolveLaunch, WithoutAnythingIsOneRank) {
  LaunchPlan plan = Plan({}, {{"PATH", "/bin"}});
  EXPECT_EQ(plan.mode, Mode::kSpawn);
  EXPECT_EQ(plan.info.world_size, 1);
}

TEST(ResolveLaunch, FlagsSpawnOrStartThreads) {
  LaunchPlan plan = Plan({.world_size = 3}, {});
  EXPECT_EQ(plan.mode, Mode::kSpawn);
  EXPECT_EQ(plan.info.world_size, 3);
  EXPECT_EQ(plan.info.local_world_size, 3);
  plan = Plan({.world_size = 2, .threads = true}, {});
  EXPECT_EQ(plan.mode, Mode::kThreads);
  EXPECT_EQ(plan.info.world_size, 2);
}

TEST(ResolveLaunch, Torchrun) {
  LaunchPlan plan = Plan({}, kTorchrun);
  EXPECT_EQ(plan.mode, Mode::kJoin);
  EXPECT_EQ(plan.info.rank, 3);
  EXPECT_EQ(plan.info.world_size, 4);
  EXPECT_EQ(plan.info.local_rank, 1);
  EXPECT_EQ(plan.info.local_world_size, 2);
  EXPECT_EQ(plan.rendezvous, "n0:29501");  // the agent holds 29500
  EXPECT_EQ(plan.job, "none.0");
  EXPECT_EQ(plan.source, "torchrun");
  plan = Plan({}, kTorchrun + EnvironmentVariables{{"TORCHELASTIC_USE_AGENT_STORE", "False"}});
  EXPECT_EQ(plan.rendezvous, "n0:29500");
  plan = Plan({}, kTorchrun + EnvironmentVariables{{"MASTER_ADDR", "fe80::1"}});
  EXPECT_EQ(plan.rendezvous, "[fe80::1]:29501");
}

TEST(ResolveLaunch, TorchNamesWithoutLocalOnes) {
  LaunchPlan plan = Plan(
      {}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "5000"}});
  EXPECT_EQ(plan.info.local_rank, 0);
  EXPECT_EQ(plan.info.local_world_size, 1);
  EXPECT_EQ(plan.rendezvous, "n0:5000");
}

TEST(ResolveLaunch, OpenMpiOnOneHost) {
  LaunchPlan plan = Plan({}, kOpenMpi);
  EXPECT_EQ(plan.mode, Mode::kJoin);
  EXPECT_EQ(plan.info.rank, 1);
  EXPECT_EQ(plan.rendezvous, "unix:engine-" + std::to_string(getuid()) + "-1918763009");
  EXPECT_EQ(plan.source, "Open MPI");
  plan = Plan({}, Without(kOpenMpi, "PMIX_NAMESPACE") +
                      EnvironmentVariables{{"OMPI_MCA_orte_hnp_uri", "77.0;tcp://x:1"}});
  EXPECT_EQ(plan.job, "77.0");
}

TEST(ResolveLaunch, OpenMpiOnSeveralHostsNeedsAnAddress) {
  EnvironmentVariables hosts = kOpenMpi + EnvironmentVariables{{"OMPI_COMM_WORLD_SIZE", "4"}};
  std::string message = Refusal({}, hosts);
  EXPECT_THAT(message, HasSubstr("Open MPI started 4 ranks, 2 of them on this host"));
  EXPECT_THAT(message, HasSubstr("--rendezvous HOST:PORT"));
  EXPECT_EQ(Plan({.rendezvous = "n0:1234"}, hosts).rendezvous, "n0:1234");
  EXPECT_EQ(Plan({}, hosts + EnvironmentVariables{{"MASTER_ADDR", "n0"}, {"MASTER_PORT", "99"}})
                .rendezvous,
            "n0:99");
}

TEST(ResolveLaunch, Slurm) {
  LaunchPlan plan = Plan({.rendezvous = "n0:1"}, kSlurm);
  EXPECT_EQ(plan.info.rank, 5);
  EXPECT_EQ(plan.info.world_size, 6);
  EXPECT_EQ(plan.info.local_rank, 1);
  EXPECT_EQ(plan.info.local_world_size, 2);
  EXPECT_EQ(plan.job, "17.0");
  EXPECT_THAT(Refusal({}, kSlurm), HasSubstr("--rendezvous"));
  plan = Plan(
      {}, kSlurm + EnvironmentVariables{{"SLURM_NODEID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "6"}});
  EXPECT_EQ(plan.rendezvous, "unix:engine-" + std::to_string(getuid()) + "-17.0");
  // Inside a batch script nothing was started by srun.
  EXPECT_EQ(Plan({.world_size = 2}, Without(kSlurm, "SLURM_STEP_ID")).mode, Mode::kSpawn);
}

TEST(ResolveLaunch, PmiNeedsAnAddress) {
  EnvironmentVariables pmi = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
  EXPECT_THAT(Refusal({}, pmi), HasSubstr("--rendezvous"));
  EXPECT_EQ(Plan({.rendezvous = "n0:1"}, pmi).source, "PMI");
}

TEST(ResolveLaunch, InnerLaunchersHideTheOnesThatStartedThem) {
  EXPECT_EQ(Plan({}, kOpenMpi + kSlurm).source, "Open MPI");
  EXPECT_EQ(Plan({}, kTorchrun + kSlurm).source, "torchrun");
}

TEST(ResolveLaunch, SourcesThatDisagreeAreNamed) {
  EnvironmentVariables plain = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "5000"}};
  std::string message = Refusal({}, plain + kOpenMpi);
  EXPECT_THAT(message, HasSubstr("torchrun (RANK=0, WORLD_SIZE=2)"));
  EXPECT_THAT(message, HasSubstr("Open MPI (OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2)"));
  EXPECT_EQ(Plan({.launcher = "openmpi"}, plain + kOpenMpi).info.rank, 1);
  EXPECT_EQ(Plan({.launcher = "torchrun"}, plain + kOpenMpi).info.rank, 0);
  EnvironmentVariables agreeing = plain + EnvironmentVariables{{"RANK", "1"}};
  EXPECT_EQ(Plan({}, agreeing + kOpenMpi).info.rank, 1);
}

TEST(ResolveLaunch, FlagsThatContradictTheLauncher) {
  std::string message = Refusal({.world_size = 2}, kTorchrun);
  EXPECT_THAT(message, HasSubstr("-n 2"));
  EXPECT_THAT(message, HasSubstr("torchrun (RANK=3, WORLD_SIZE=4)"));
  EXPECT_EQ(Plan({.world_size = 4}, kTorchrun).mode, Mode::kJoin);
  EXPECT_THAT(Refusal({.threads = true}, kTorchrun), HasSubstr("--threads"));
  LaunchPlan plan = Plan({.world_size = 2, .launcher = "none"}, kTorchrun);
  EXPECT_EQ(plan.mode, Mode::kSpawn);
  EXPECT_EQ(plan.info.world_size, 2);
}

TEST(ResolveLaunch, IncompleteOrWrongVariables) {
  EXPECT_THAT(Refusal({}, {{"RANK", "0"}}), HasSubstr("RANK is set and WORLD_SIZE is not"));
  EXPECT_THAT(Refusal({}, {{"WORLD_SIZE", "2"}}), HasSubstr("WORLD_SIZE is set and RANK is not"));
  EXPECT_THAT(Refusal({}, Without(kTorchrun, "MASTER_ADDR")), HasSubstr("MASTER_ADDR"));
  for (const char* rank : {"4", "-1", "x", "1x", "99999999999"}) {
    EXPECT_THAT(Refusal({}, kTorchrun + EnvironmentVariables{{"RANK", rank}}),
                HasSubstr(std::string("RANK=") + rank));
  }
  EXPECT_THAT(Refusal({}, kTorchrun + EnvironmentVariables{{"LOCAL_RANK", "2"}}),
              HasSubstr("LOCAL_WORLD_SIZE"));
  EXPECT_THAT(Refusal({}, kTorchrun + EnvironmentVariables{{"MASTER_PORT", "65535"}}),
              HasSubstr("MASTER_PORT=65535"));
}

TEST(ResolveLaunch, WrongFlags) {
  EXPECT_THAT(Refusal({.world_size = -1}, {}), HasSubstr("-n -1"));
  EXPECT_THAT(Refusal({.launcher = "mpi"}, {}), HasSubstr("--launcher mpi is unknown"));
  EXPECT_THAT(Refusal({.launcher = "slurm"}, {}), HasSubstr("--launcher slurm"));
  EXPECT_THAT(Refusal({.rendezvous = "n0:1"}, {}), HasSubstr("--rendezvous n0:1"));
  EXPECT_THAT(Refusal({.rendezvous = "n0"}, kTorchrun), HasSubstr("has no port"));
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
  EXPECT_EQ(joined.info.one_host, 0u) << "2 of its 4 ranks are here";
  EXPECT_EQ(Plan({}, kOpenMpi).info.one_host, 1u);
}

TEST(ResolveLaunch, ServerFlagsThatMeanNothing) {
  EXPECT_THAT(Refusal({.serve_at = "n0:1"}, {}), HasSubstr("add --servers N"));
  EXPECT_THAT(Refusal({.servers = 1, .serve_at = "n0"}, {}), HasSubstr("has no port"));
  EXPECT_THAT(Refusal({.servers = 1, .serve_at = "unix:a"}, {}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(Refusal({.threads = true, .servers = 1, .serve_at = "n0:1"}, {}),
              HasSubstr("drop --threads"));
  EXPECT_THAT(Refusal({.servers = 1, .key_file = "key"}, {}), HasSubstr("add --serve-at"));
  EXPECT_THAT(Refusal({.key_file = "key"}, kTorchrun), HasSubstr("add --servers N"));
  EXPECT_THAT(Refusal({.restarts = 1}, {}), HasSubstr("add -n N"));
  EXPECT_THAT(Refusal({.world_size = 2, .threads = true, .restarts = 1}, {}),
              HasSubstr("--threads makes threads"));
  EXPECT_THAT(Refusal({.restarts = 1}, kTorchrun), HasSubstr("drop --restarts"));
  EXPECT_THAT(Refusal({.servers = 1, .serve_at = "n0:1"}, kTorchrun), HasSubstr("drop --serve-at"));
  EXPECT_THAT(Refusal({.servers = -1}, {}), HasSubstr("--servers -1"));
}

TEST(ResolveServe, IsOneServerOfARunElsewhere) {
  const Result<LaunchPlan> plan = ResolveServe("n0:5000", 3, "key");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->mode, Mode::kServe);
  EXPECT_EQ(plan->info.rank, 3);
  EXPECT_EQ(plan->info.is_server, 1u);
  EXPECT_EQ(plan->rendezvous, "n0:5000");
  EXPECT_EQ(plan->key_file, "key");
  EXPECT_FALSE(ResolveServe("n0", 0, "").ok());
  EXPECT_FALSE(ResolveServe("n0:5000", -1, "").ok());
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
