// A table and what its tests compare it with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "table.h"

namespace engine::zmq_ps {

using Floats = std::vector<float>;
using Requests = std::vector<uint64_t>;
using Ranks = std::vector<uint32_t>;

constexpr size_t kCount = 10000;

inline bool Says(const Status& status, const char* text) {
  if (std::string(status.message()).find(text) != std::string::npos) return true;
  ADD_FAILURE() << "'" << text << "' is not in '" << status.message() << "'";
  return false;
}

// Every argument of a call and the order of the calls are seen in the result.
class MomentumOptimizer final : public OptimizerBase {
 public:
  OptimizerTraits traits() const noexcept override {
    OptimizerTraits traits;
    traits.gate = gate;
    traits.state_count = 2;
    return traits;
  }
  Status Update(const UpdateCall& call) noexcept override {
    if (call.step == failing_step) {
      return Status::Error(StatusCode::kDevice, "the optimizer does not like step %d",
                           static_cast<int>(call.step));
    }
    for (int64_t i = 0; i < call.count; ++i) {
      const float gradient =
          call.gradient[i] * call.gradient_scale + 0.01f * call.weight_decay_scale * call.value[i];
      call.states[0][i] = 0.9f * call.states[0][i] + gradient;
      call.states[1][i] += static_cast<float>(call.step) * gradient * gradient +
                           std::copysign(0.5f, call.gradient[i]);  // tells -0 from 0
      call.value[i] -= call.learning_rate * (call.states[0][i] + 0.001f * call.states[1][i]);
    }
    return {};
  }

  UpdateGate gate = UpdateGate::kSpan;
  uint64_t failing_step = 0;
};

// Of every bucket, slice 1 of 3: longer than a block of the sum, with spans that end within blocks.
inline const std::vector<ServedSpan> kSpans = {{3000, 1, 0}, {1, 0, 0}, {6999, 0.5f, 0}};

inline Header RequestOf(Operation operation, uint32_t worker, const ServedFields& served = {},
                        uint64_t bucket = 7) {
  return {
      .kind = MessageKind::kPush,
      .worker = worker,
      .slice = 1,
      .key = bucket,
      .spec = {.operation = operation, .slices = 3, .offset = 5000, .count = 10000, .total = 20000},
      .served = served};
}
inline Header RegistrationOf(uint32_t worker, uint64_t bucket = 7) {
  return RequestOf(Operation::kRegister, worker, {.row = 100}, bucket);
}

// A parameter and its states, updated the plain way.
struct Plain {
  explicit Plain(Floats start) : values(std::move(start)) {
    for (Floats& state : states) state.resize(values.size());
  }
  void Update(MomentumOptimizer& optimizer, const Floats& gradient, float gradient_scale,
              float learning_rate, uint64_t step) {
    size_t at = 0;
    for (const ServedSpan& span : kSpans) {
      UpdateCall call;
      call.value = values.data() + at;
      call.gradient = gradient.data() + at;
      for (int i = 0; i < 2; ++i) call.states[i] = states[i].data() + at;
      call.count = span.count;
      call.gradient_scale = gradient_scale;
      call.learning_rate = learning_rate;
      call.weight_decay_scale = span.weight_decay_scale;
      call.step = step;
      ASSERT_TRUE(optimizer.Update(call).ok());
      at += static_cast<size_t>(span.count);
    }
  }
  Floats values;
  Floats states[2];
};

// In memory that is aligned to nothing, as what comes from a network.
inline ::zmq::message_t MessageOf(std::span<const float> values) {
  auto* const memory = new char[values.size_bytes() + 1];
  if (!values.empty()) std::memcpy(memory + 1, values.data(), values.size_bytes());
  const auto free = [](void*, void* hint) { delete[] static_cast<char*>(hint); };
  return {memory + 1, values.size_bytes(), free, memory};
}

inline Floats FloatsOf(const ::zmq::message_t& message) {
  Floats values(message.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), message.data(), message.size());
  return values;
}

// Of so different sizes that every order of addition gives another sum.
inline Floats RandomFloats(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> digits(-1, 1);
  Floats values(count);
  for (float& value : values) value = std::ldexp(digits(random), static_cast<int>(random() % 12));
  return values;
}

inline Floats SumOf(const std::vector<Floats>& inputs) {
  Floats sum = inputs[0];
  for (size_t i = 1; i < inputs.size(); ++i) {
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += inputs[i][k];
  }
  return sum;
}

// Equal as bytes: -0 is not 0.
inline bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline ParameterTraits TraitsOf(UpdateMode mode, int32_t staleness = 0) {
  return {.mode = mode, .staleness = staleness};
}

// A table with one cell, values stored; tasks run at once.
class TableBench {
 public:
  TableBench(UpdateMode mode, uint32_t workers, int32_t staleness = 0, bool store = true)
      : table(TraitsOf(mode, staleness), workers, optimizer), plain(RandomFloats(10000, 99)) {
    for (uint32_t worker = 0; worker < workers; ++worker) {
      EXPECT_TRUE(table.Register(RegistrationOf(worker), kSpans).ok());
    }
    const Status stored = store ? Store(-1, plain.values) : Status();
    EXPECT_TRUE(stored.ok()) << stored.message();
  }

  Status Store(int32_t state, const Floats& values, uint64_t bucket = 7) {
    return table.Store(RequestOf(Operation::kStore, 0, {.state = state}, bucket),
                       MessageOf(values));
  }
  Status TryPush(uint32_t worker, uint64_t step, const Floats& gradient, float weight = 2,
                 float learning_rate = 0.1f) {
    return TryPush(worker, {.step = step, .learning_rate = learning_rate, .weight = weight}, {},
                   gradient);
  }
  Status TryPush(uint32_t worker, const ServedFields& served, const std::vector<int32_t>& rows,
                 const Floats& data) {
    return table.Push(RequestOf(Operation::kPush, worker, served), rows, MessageOf(data));
  }
  void Push(uint32_t worker, uint64_t step, const Floats& gradient, float weight = 2) {
    const Status status = TryPush(worker, step, gradient, weight);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  Status TryPushRows(uint32_t worker, uint64_t step, const std::vector<int32_t>& rows,
                     const Floats& data) {
    return TryPush(worker,
                   {.step = step,
                    .learning_rate = 0.1f,
                    .weight = 2,
                    .rows = static_cast<int32_t>(rows.size())},
                   rows, data);
  }
  Status TryPull(uint32_t worker, const ServedFields& served, uint64_t request = 1,
                 std::span<const int32_t> rows = {}, uint64_t bucket = 7) {
    Header pull = RequestOf(Operation::kPull, worker, served, bucket);
    pull.request = request;
    return table.Pull(pull, rows);
  }
  void Pull(uint32_t worker, uint64_t step, uint64_t request, int32_t state = -1) {
    const Status status = TryPull(worker, {.step = step, .state = state}, request);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  Ranks Missing(uint32_t worker, uint64_t step) const {
    return table.Missing(RequestOf(Operation::kPull, worker, {.step = step}));
  }
  // The update that is due now.
  UpdateTask& Due() {
    UpdateTask* const task = table.NextWork();
    ENGINE_CHECK(task, "no update is due");
    return *task;
  }
  void End(UpdateTask& task) {
    ++updates;
    for (size_t i = 0; i < task.arrays; ++i) copies += task.from[i] != task.to[i] ? 1 : 0;
    Run(task);
    table.Finished(&task);
  }
  void RunAll() {
    while (UpdateTask* const task = table.NextWork()) End(*task);
  }
  std::vector<PullAnswer> Answers() {
    std::vector<PullAnswer> answers;
    table.TakeReady(&answers);
    return answers;
  }
  Requests Answered() {
    Requests requests;
    for (const PullAnswer& answer : Answers()) {
      EXPECT_TRUE(answer.status.ok()) << answer.status.message();
      requests.push_back(answer.request);
    }
    return requests;
  }
  // What a pull of "now" gives.
  Floats Now(int32_t state = -1) {
    Pull(0, 0, 12345, state);
    const std::vector<PullAnswer> answers = Answers();
    EXPECT_EQ(answers.size(), 1u);
    return answers.empty() ? Floats() : FloatsOf(answers[0].data);
  }
  void PlainUpdate(const Floats& gradient, float weight, uint64_t step) {
    plain.Update(optimizer, gradient, 1 / std::max(weight, 1.0f), 0.1f, step);
  }
  void ExpectAsPlain() {
    EXPECT_TRUE(SameBits(Now(), plain.values));
    EXPECT_TRUE(SameBits(Now(0), plain.states[0]));
    EXPECT_TRUE(SameBits(Now(1), plain.states[1]));
  }

  MomentumOptimizer optimizer;
  Table table;
  Plain plain;
  int updates = 0;
  int copies = 0;  // arrays that were copied because an answer still referred to them
};

}  // namespace engine::zmq_ps
