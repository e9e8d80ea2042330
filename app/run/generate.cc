#include "app/run/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace engine::run {
namespace {

// A draw from softmax(logits / temperature) over the top k.
int32_t Draw(const std::vector<float>& logits, const GenerateOptions& options,
             std::mt19937_64& random) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto larger = [&](int32_t a, int32_t b) { return logits[a] > logits[b]; };
  if (options.temperature <= 0) return *std::ranges::min_element(order, larger);
  const size_t kept =
      options.top_k > 0 ? std::min<size_t>(options.top_k, logits.size()) : logits.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(kept), order.end(), larger);
  std::vector<double> weights;
  for (size_t i = 0; i < kept; ++i) {
    weights.push_back(std::exp((logits[order[i]] - logits[order[0]]) / options.temperature));
  }
  // A generator's output scaled to [0, 1): the library's distributions differ between
  // implementations.
  double point = static_cast<double>(random() >> 11) * 0x1p-53 *
                 std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < kept; ++i) {
    point -= weights[i];
    if (point < 0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace

Status GenerateTokens(exec::ModelMemory& memory, const GenerateOptions& options,
                      std::vector<int32_t>* text) {
  const graph::Graph& graph = memory.graph();
  const Shape& input = graph.values[graph.input].spec.shape;
  const Shape& output = graph.values[graph.logits].spec.shape;
  const bool fits = graph.values[graph.input].spec.dtype == DType::kInt32 && input.ndim == 2 &&
                    output.ndim == 3 && output[1] == input[1] && graph.others.empty();
  if (!fits) {
    return Status::Error(
        StatusCode::kConfig,
        "this model does not read tokens and say which follows each of them, so it "
        "cannot continue a text");
  }
  if (text->empty()) {
    return Status::Error(StatusCode::kConfig,
                         "a model of tokens continues their numbers: --prompt '464 3290'");
  }
  const auto context = static_cast<size_t>(input[1]);
  const auto classes = static_cast<size_t>(output[2]);
  for (const int32_t token : *text) {
    if (token >= 0 && static_cast<size_t>(token) < classes) continue;
    return Status::Error(StatusCode::kConfig,
                         "token %d is outside [0, %zu), the model's vocabulary", token, classes);
  }
  std::mt19937_64 random(options.seed);
  std::vector<int32_t> tokens(context);
  std::vector<float> logits(classes);
  const TensorView all = memory.logits();
  for (int64_t i = 0; i < options.count; ++i) {
    const size_t used = std::min(text->size(), context);
    std::fill(std::copy(text->end() - static_cast<int64_t>(used), text->end(), tokens.begin()),
              tokens.end(), 0);
    ENGINE_RETURN_IF_ERROR(memory.SetBatch(tokens.data(), nullptr, 1));
    ENGINE_RETURN_IF_ERROR(memory.RunForward());
    const TensorView last{
        .data = static_cast<std::byte*>(all.data) + (used - 1) * classes * SizeOf(all.dtype),
        .shape = {static_cast<int64_t>(classes)},
        .dtype = all.dtype};
    ENGINE_RETURN_IF_ERROR(memory.ReadFloats(last, logits.data()));
    text->push_back(Draw(logits, options, random));
  }
  return {};
}

Result<std::string> Generate(exec::ModelMemory& memory, const std::string& prompt,
                             const GenerateOptions& options) {
  const Shape& output = memory.graph().values[memory.graph().logits].spec.shape;
  if (output[-1] != 256) {
    return Status::Error(StatusCode::kConfig,
                         "this model gives %lld numbers for each byte of a text, and there are 256 "
                         "bytes that may follow, so it cannot continue a text",
                         static_cast<long long>(output[-1]));
  }
  const std::string begin = prompt.empty() ? "\n" : prompt;
  std::vector<int32_t> tokens;
  for (const char byte : begin) tokens.push_back(static_cast<unsigned char>(byte));
  ENGINE_RETURN_IF_ERROR(GenerateTokens(memory, options, &tokens));
  return std::string(tokens.begin() + static_cast<int64_t>(begin.size()), tokens.end());
}

}  // namespace engine::run
