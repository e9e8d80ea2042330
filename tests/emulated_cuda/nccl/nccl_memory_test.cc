// Memory that NCCL knows.
#include <gmock/gmock.h>

#include <cstring>

#include "engine/ext/shared_memory.h"
#include "tests/emulated_cuda/nccl/nccl_rig.h"

namespace engine::test {
namespace {

SharedMemory* MemoryOf(Communicator& communicator) {
  return Query<SharedMemory>(communicator);
}

// Sums in memory of the communicator; ranks allocate alike.
void SumInItsMemory(World& world, int rank) {
  SharedMemory* const memory = MemoryOf(world.rank(rank));
  ASSERT_NE(memory, nullptr);
  for (const size_t count : {size_t{1}, size_t{5000}}) {
    void* data = nullptr;
    const Status allocated = memory->Allocate(count * sizeof(float), &data);
    ASSERT_TRUE(allocated.ok()) << allocated.message();
    auto* const values = static_cast<float*>(data);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(values[i], 0.0f) << "element " << i;
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(rank + 1);
    const Status status = SubmitAndWait(
        world.rank(rank),
        {.send = data, .recv = data, .count = static_cast<int64_t>(count), .sequence = count});
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(values[i], 3.0f) << "element " << i;
    memory->Free(data);
  }
  memory->Free(nullptr);
  void* none = nullptr;
  EXPECT_EQ(memory->Allocate(0, &none).code(), StatusCode::kInvalidArgument);
}

TEST(NcclMemory, IsZeroedAndServesTransfers) {
  OnRanks(2, SumInItsMemory);
}

TEST(NcclMemory, SymmetricWindowsAreRegisteredByAllRanksTogether) {
  OnRanks(2, {{"symmetric", "true"}}, SumInItsMemory);
}

// A thread of NCCL's may still be at work with what was aborted.
TEST(NcclMemory, ThatIsNotFreedGoesWithTheCommunicatorUnlessItWasAborted) {
  for (const bool aborted : {false, true}) {
    World world(kNcclPlugin, 1);
    void* data = nullptr;
    ASSERT_TRUE(MemoryOf(world.rank(0))->Allocate(100, &data).ok());
    if (aborted) world.rank(0).Abort(Status::Error(StatusCode::kAborted, "no more"));
    world.Destroy(0);
    cudaPointerAttributes found{};
    ASSERT_EQ(cudaPointerGetAttributes(&found, data), cudaSuccess);
    EXPECT_EQ(found.type, aborted ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered);
  }
}

TEST(NcclMemory, WhereNcclGivesNoneTheRuntimeDoesAndTheLogSaysSo) {
  const Fault fault("memory");
  const auto plugin = Must(PluginUnderTest::Load(kNcclPlugin));
  MemoryHost host({}, std::make_shared<MemoryStoreTable>());
  const auto created = plugin.Create<Communicator>(host);
  ASSERT_TRUE(created.ok()) << created.status().message();
  void* data = nullptr;
  ASSERT_TRUE(MemoryOf(**created)->Allocate(256, &data).ok());
  const std::vector<uint8_t> zeroes(256);
  EXPECT_EQ(std::memcmp(data, zeroes.data(), zeroes.size()), 0);
  EXPECT_THAT(host.log(), ::testing::Contains(::testing::HasSubstr("ncclMemAlloc")));
  MemoryOf(**created)->Free(data);
}

}  // namespace
}  // namespace engine::test
