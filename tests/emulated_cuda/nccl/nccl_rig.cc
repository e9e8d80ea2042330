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

void TestStream::Hold(std::atomic<bool>* gate) {
  const auto wait = [](void* context) {
    while (!static_cast<std::atomic<bool>*>(context)->load()) std::this_thread::yield();
  };
  EXPECT_EQ(cudaLaunchHostFunc(stream_, wait, gate), cudaSuccess);
}

void TestStream::Fill(std::vector<float>* data, float value) {
  struct Job {
    std::vector<float>* data;
    float value;
  };
  const auto fill = [](void* context) {
    const std::unique_ptr<Job> job(static_cast<Job*>(context));
    std::fill(job->data->begin(), job->data->end(), job->value);
  };
  EXPECT_EQ(cudaLaunchHostFunc(stream_, fill, new Job{data, value}), cudaSuccess);
}

void TestStream::Copy(std::vector<float>* target, const std::vector<float>* source) {
  struct Job {
    std::vector<float>* target;
    const std::vector<float>* source;
  };
  const auto copy = [](void* context) {
    const std::unique_ptr<Job> job(static_cast<Job*>(context));
    *job->target = *job->source;
  };
  EXPECT_EQ(cudaLaunchHostFunc(stream_, copy, new Job{target, source}), cudaSuccess);
}

Status ErrorOfCreation(Host& host, const OptionValues::Overrides& options) {
  const auto plugin = PluginUnderTest::Load(kNcclPlugin);
  if (!plugin.ok()) return plugin.status();
  return plugin->Create<Communicator>(host, options).status();
}

}  // namespace engine::test
