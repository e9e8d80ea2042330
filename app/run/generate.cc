#include "app/run/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

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

Result<std::string> Generate(exec::ModelMemory& memory, const std::string& prompt,
                             const GenerateOptions& options) {
  const graph::Graph& graph = memory.graph();
  const Shape& input = graph.values[graph.input].spec.shape;
  const Shape& output = graph.values[graph.logits].spec.shape;
  if (graph.values[graph.input].spec.dtype != DType::kInt32 || input.ndim != 2 ||
      output[-1] != 256 || !graph.others.empty()) {
    return Status::Error(StatusCode::kConfig,
                         "this model does not read bytes of text, so it cannot continue one");
  }
  const auto context = static_cast<size_t>(input[1]);
  const auto classes = static_cast<size_t>(output[-1]);
  std::string text = prompt.empty() ? "\n" : prompt;
  const size_t begin = text.size();
  std::mt19937_64 random(options.seed);
  std::vector<int32_t> tokens(context);
  std::vector<float> logits(classes);
  const TensorView all = memory.logits();
  while (text.size() < begin + static_cast<size_t>(options.bytes)) {
    const size_t used = std::min(text.size(), context);
    for (size_t i = 0; i < used; ++i) {
      tokens[i] = static_cast<unsigned char>(text[text.size() - used + i]);
    }
    std::fill(tokens.begin() + static_cast<int64_t>(used), tokens.end(), 0);
    ENGINE_RETURN_IF_ERROR(memory.SetBatch(tokens.data(), nullptr, 1));
    ENGINE_RETURN_IF_ERROR(memory.RunForward());
    const TensorView last{
        .data = static_cast<std::byte*>(all.data) + (used - 1) * classes * SizeOf(all.dtype),
        .shape = {static_cast<int64_t>(classes)},
        .dtype = all.dtype};
    ENGINE_RETURN_IF_ERROR(memory.ReadFloats(last, logits.data()));
    text.push_back(static_cast<char>(Draw(logits, options, random)));
  }
  return text.substr(begin);
}

}  // namespace engine::run
