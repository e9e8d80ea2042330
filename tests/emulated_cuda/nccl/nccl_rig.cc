#include "tests/emulated_cuda/nccl/nccl_rig.h"

namespace engine::test {

TestStream::TestStream(int rank) {
  EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
}

TestStream::~TestStream() {
  EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
}

Status TestStream::Synchronize(int64_t) noexcept {
  return cudaStreamSynchronize(stream_) == cudaSuccess
             ? Status()
             : Status::Error(StatusCode::kDevice, "the fake runtime failed");
}

void TestStream::Do(std::function<void()> work) {
  using Work = std::function<void()>;
  const auto run = [](void* kept) { (*std::unique_ptr<Work>(static_cast<Work*>(kept)))(); };
  EXPECT_EQ(cudaLaunchHostFunc(stream_, run, new Work(std::move(work))), cudaSuccess);
}

void TestStream::Hold(std::atomic<bool>* gate) {
  Do([gate] {
    while (!gate->load()) std::this_thread::yield();
  });
}

Status ErrorOfCreation(Host& host, const OptionValues::Overrides& options) {
  const auto plugin = PluginUnderTest::Load(kNcclPlugin);
  if (!plugin.ok()) return plugin.status();
  return plugin->Create<Communicator>(host, options).status();
}

}  // namespace engine::test
