// Every op of a step of GPT-2 (124 million parameters) on a GPU, alone: microseconds, and what that
// is in TFLOP/s (of the products that the algorithm needs) and GB/s (of operands and results, each
// moved once). One line of JSON per op with --json.
//
//   cmake --build build/release --target cuda_op_times engine_cuda_ops
//   build/release/bench/cuda_op_times build/release/lib/engine/plugins/libengine_cuda_ops.so
//     [SAMPLES [bf16|tf32|float32 [OP]]] [OPTION=VALUE...] [--json]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/kernels/op_times.h"

namespace engine::bench {
namespace {

constexpr int64_t kContext = 1024, kWidth = 768, kHeads = 12, kVocabulary = 50304;

std::vector<TimedCase> Cases(int64_t samples, DType activation) {
  const auto x = [&](int64_t width) {
    return TensorSpec{{samples, kContext, width}, activation, 1};
  };
  const TensorSpec tokens{{samples, kContext}, DType::kInt32, 1};
  const double rows = static_cast<double>(samples * kContext);
  const auto product = [&](const char* name, const char* op, int64_t from, int64_t to) {
    const double flop = 2 * rows * static_cast<double>(from) * static_cast<double>(to);
    return TimedCase{.name = name,
                     .op = op,
                     .attributes = {{"units", std::to_string(to)}},
                     .inputs = {x(from)},
                     .forward_flop = flop,
                     .backward_flop = 2 * flop};
  };
  // Two products of T x T x width, half of them behind the diagonal; backward has five.
  const double attention = 2 * rows * static_cast<double>(kContext * kWidth);
  std::vector<TimedCase> cases;
  cases.push_back({.name = "embedding",
                   .op = "embedding",
                   .attributes = {{"vocabulary", std::to_string(kVocabulary)},
                                  {"width", std::to_string(kWidth)},
                                  {"positions", std::to_string(kContext)}},
                   .inputs = {tokens},
                   .classes = kVocabulary});
  cases.push_back({.name = "norm", .op = "layer_norm", .inputs = {x(kWidth)}});
  cases.push_back({.name = "add, norm", .op = "add_layer_norm", .inputs = {x(kWidth), x(kWidth)}});
  cases.push_back(product("qkv", "linear", kWidth, 3 * kWidth));
  cases.push_back({.name = "attention",
                   .op = "attention",
                   .attributes = {{"heads", std::to_string(kHeads)}},
                   .inputs = {x(3 * kWidth)},
                   .forward_flop = attention,
                   .backward_flop = 2.5 * attention});
  cases.push_back(product("proj", "linear", kWidth, kWidth));
  cases.push_back(product("mlp", "mlp", kWidth, 4 * kWidth));
  for (double* flop : {&cases.back().forward_flop, &cases.back().backward_flop}) *flop *= 2;
  const double head = 2 * rows * static_cast<double>(kWidth * kVocabulary);
  cases.push_back({.name = "head",
                   .op = "tied_linear",
                   .inputs = {x(kWidth), {{kVocabulary, kWidth}, activation, 0}},
                   .forward_flop = head,
                   .backward_flop = 2 * head});
  cases.push_back({.name = "loss",
                   .op = "softmax_cross_entropy",
                   .inputs = {x(kVocabulary), tokens},
                   .classes = kVocabulary});
  return cases;
}

void Print(const TimedCase& timed, const char* pass, double us, double flop, double bytes,
           bool json) {
  const double tflops = flop / us * 1e-6, gbytes = bytes / us * 1e-3;
  if (json) {
    std::printf(
        "{\"op\": \"%s\", \"pass\": \"%s\", \"us\": %.2f, \"tflops\": %.1f, "
        "\"gbytes_per_s\": %.0f}\n",
        timed.name.c_str(), pass, us, tflops, gbytes);
  } else {
    std::printf("%-14s %-9s %10.1f %10.1f %10.0f\n", timed.name.c_str(), pass, us, tflops, gbytes);
  }
  std::fflush(stdout);  // whatever comes next
}

int Run(int argc, char** argv) {
  bool json = false;
  std::vector<std::string> words;
  Overrides options;
  for (int i = 1; i < argc; ++i) {
    const char* const word = argv[i];
    if (std::strcmp(word, "--json") == 0) {
      json = true;
    } else if (const char* const equal = std::strchr(word, '=')) {
      options[std::string(word, equal)] = equal + 1;
    } else {
      words.emplace_back(word);
    }
  }
  if (words.empty()) {
    std::fprintf(stderr,
                 "usage: cuda_op_times PLUGIN [SAMPLES [bf16|tf32|float32 [OP]]] [OPTION=VALUE...] "
                 "[--json]\n");
    return 2;
  }
  const int64_t samples = words.size() > 1 ? std::atoll(words[1].c_str()) : 64;
  const std::string precision = words.size() > 2 ? words[2] : "bf16";
  options.emplace("precision", precision);
  const auto timer = OpTimer::Load(words[0], options);
  if (!timer.ok() || samples < 1) {
    std::fprintf(stderr, "cuda_op_times: %s\n",
                 timer.ok() ? "SAMPLES must be at least 1" : timer.status().message());
    return timer.ok() ? 2 : 79;
  }
  if (!json) {
    std::printf("%lld samples of %lld tokens, %s\n%-14s %-9s %10s %10s %10s\n",
                static_cast<long long>(samples), static_cast<long long>(kContext),
                precision.c_str(), "op", "pass", "us", "TFLOP/s", "GB/s");
  }
  const DType activation = precision == "bf16" ? DType::kBFloat16 : DType::kFloat32;
  for (const TimedCase& timed : Cases(samples, activation)) {
    if (words.size() > 3 && timed.name != words[3]) continue;
    const auto time = (*timer)->Time(timed, 20, 5);
    if (!time.ok()) {
      std::fprintf(stderr, "cuda_op_times: %s: %s\n", timed.name.c_str(), time.status().message());
      return 1;
    }
    Print(timed, "forward", time->forward_us, timed.forward_flop, time->forward_bytes, json);
    Print(timed, "backward", time->backward_us, timed.backward_flop, time->backward_bytes, json);
  }
  return 0;
}

}  // namespace
}  // namespace engine::bench

int main(int argc, char** argv) {
  return engine::bench::Run(argc, argv);
}
