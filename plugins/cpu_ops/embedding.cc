// y[b, ..., t] = weight[token[b, ..., t]] (+ positions[t]).
#include <cstring>
#include <string_view>

#include "cpu_op.h"
#include "engine/ext/row_table.h"
#include "parallel.h"

namespace engine::cpu_ops {
namespace {

class EmbeddingOp final : public kit::ShapedOp<CpuOp, kit::EmbeddingRule>, public RowTableBase {
 public:
  using ShapedOp::ShapedOp;

  void* Query(std::string_view id) noexcept override { return Offer<RowTable>(id, this); }
  int32_t table_input() const noexcept override { return kWeight; }

  bool TakesBFloat16() const noexcept override { return true; }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckTokens(call.inputs[kTokens]));
    WithElement(activation(), [&]<typename T>(T) { ForwardOf<T>(call); });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView& tokens = call.inputs[kTokens];
    const int64_t length = tokens.shape[-1];
    WithElement(activation(), [&]<typename T>(T) {
      const T* dy = As<const T>(call.output_grads[0]);
      Scatter(call, kWeight, tokens.count(), dy, [&](int64_t i) { return tokens.i32()[i]; });
      Scatter(call, kPositions, tokens.count(), dy, [&](int64_t i) { return i % length; });
    });
    return {};
  }

  static constexpr int32_t kTokens = 0, kWeight = 1, kPositions = 2;

  Status CheckTokens(const TensorView& tokens) const noexcept {
    const int64_t in_sample = tokens.shape.Count(1);
    for (int64_t i = 0; i < tokens.count(); ++i) {
      const int32_t token = tokens.i32()[i];
      if (token >= 0 && token < given_.vocabulary) continue;
      return Status::Error(
          StatusCode::kBadData,
          "%s: token %d at position %lld of sample %lld is outside the vocabulary [0, %lld)",
          name(), token, static_cast<long long>(i % in_sample),
          static_cast<long long>(i / in_sample), static_cast<long long>(given_.vocabulary));
    }
    return {};
  }

  template <typename T>
  void ForwardOf(const OpCall& call) const noexcept {
    const int32_t* tokens = call.inputs[kTokens].i32();
    const T* table = As<const T>(call.inputs[kWeight]);
    const T* positions = given_.positions > 0 ? As<const T>(call.inputs[kPositions]) : nullptr;
    T* y = As<T>(call.outputs[0]);
    const int64_t length = call.inputs[kTokens].shape[-1];
    ForRows(call.inputs[kTokens].count(), given_.width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* row = table + tokens[i] * given_.width;
        if (positions != nullptr) {
          Add(row, positions + i % length * given_.width, y + i * given_.width, 0, given_.width);
        } else {
          std::memcpy(y + i * given_.width, row, static_cast<size_t>(given_.width) * sizeof(T));
        }
      }
    });
  }

  // Adds row i of `dy` to the row target_row(i) of the gradient of `input`. Threads share columns,
  // so each sum has one order whatever their number.
  template <typename T, typename TargetRow>
  void Scatter(const OpCall& call, int32_t input, int64_t count, const T* dy,
               const TargetRow& target_row) const noexcept {
    if (!WantsGradient(call, static_cast<size_t>(input))) return;
    const TensorView& gradient = call.input_grads[static_cast<size_t>(input)];
    float* target = gradient.f32();
    if (!Accumulates(call, input)) std::memset(target, 0, gradient.size_bytes());
    ForEachPart(PartCount(count * given_.width, kElementGrain), given_.width, kLine,
                [&](int32_t, int64_t begin, int64_t end) {
                  for (int64_t i = 0; i < count; ++i) {
                    float* const row = target + target_row(i) * given_.width;
                    Add(row, dy + i * given_.width, row, begin, end);
                  }
                });
  }
};

}  // namespace

const OpFactory kMakeEmbedding = kit::NewOp<EmbeddingOp>;

}  // namespace engine::cpu_ops
