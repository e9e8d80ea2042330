// Cases of the ops of convolution nets.
#include "tests/conformance/ops/op_cases.h"
#include "tests/conformance/ops/reference_ops.h"

namespace engine::test {
namespace {

OptionValues::Overrides Attributes(const ReferenceWindow& window) {
  return {{"kernel", std::to_string(window.kernel)},
          {"stride", std::to_string(window.stride)},
          {"padding", std::to_string(window.padding)}};
}

std::string Name(std::string name, const ReferenceWindow& window, const Shape& x) {
  name.append("K").append(std::to_string(window.kernel));
  name.append("S").append(std::to_string(window.stride));
  name.append("P").append(std::to_string(window.padding));
  return NameOf(name, x);
}

void AddConv(const ReferenceWindow& window, const Shape& x, int64_t channels, bool bias,
             std::vector<OpCase>* cases) {
  OptionValues::Overrides attributes = Attributes(window);
  attributes["channels"] = std::to_string(channels);
  attributes["bias"] = bias ? "true" : "false";
  cases->push_back({Name("Conv2d", window, x) + "To" + std::to_string(channels),
                    "conv2d",
                    attributes,
                    {{x, DType::kFloat32, 1}},
                    ReferenceConv2d(window)});
}

void AddConvs(std::vector<OpCase>* cases) {
  // {kernel, stride, padding}, x (B, H, W, C), channels of the output, bias
  AddConv({1, 1, 0}, Shape{1, 1, 1, 1}, 1, true, cases);
  AddConv({1, 2, 0}, Shape{2, 5, 4, 3}, 16, false, cases);
  AddConv({1, 1, 0}, Shape{5, 3, 3, 33}, 48, true, cases);
  AddConv({2, 1, 1}, Shape{2, 3, 4, 2}, 3, true, cases);
  AddConv({2, 2, 0}, Shape{1, 5, 7, 5}, 5, true, cases);
  AddConv({3, 1, 1}, Shape{5, 6, 7, 1}, 5, true, cases);
  AddConv({3, 1, 1}, Shape{2, 5, 5, 16}, 33, true, cases);
  AddConv({3, 1, 0}, Shape{3, 7, 6, 3}, 16, true, cases);
  AddConv({3, 2, 1}, Shape{5, 5, 8, 5}, 16, false, cases);
  AddConv({3, 2, 1}, Shape{5, 2, 2, 16}, 64, false, cases);
  AddConv({3, 1, 1}, Shape{5, 1, 1, 33}, 33, false, cases);
  AddConv({3, 1, 1}, Shape{16, 2, 2, 33}, 80, false, cases);
  AddConv({3, 3, 2}, Shape{2, 7, 5, 3}, 3, true, cases);
  AddConv({3, 5, 0}, Shape{2, 9, 8, 2}, 4, true, cases);  // positions between windows
  AddConv({5, 1, 2}, Shape{2, 6, 5, 3}, 16, true, cases);
  AddConv({5, 2, 4}, Shape{1, 3, 6, 5}, 3, true, cases);
  AddConv({7, 2, 3}, Shape{3, 9, 10, 3}, 33, false, cases);
  AddConv({7, 1, 3}, Shape{1, 2, 2, 1}, 1, true, cases);
  AddConv({3, 1, 1}, Shape{3, 17, 20, 16}, 32, true, cases);  // several threads, several chunks
}

void AddPools(std::vector<OpCase>* cases) {
  const auto add = [&](const char* name, const char* op, const ReferenceWindow& window,
                       const Shape& x, const ReferenceOp& reference) {
    cases->push_back(
        {Name(name, window, x), op, Attributes(window), {{x, DType::kFloat32, 1}}, reference});
  };
  const std::pair<ReferenceWindow, Shape> pools[] = {
      {{1, 1, 0}, Shape{1, 1, 1, 1}},    {{2, 2, 0}, Shape{5, 4, 6, 16}},
      {{2, 2, 0}, Shape{2, 5, 7, 5}},    {{3, 2, 1}, Shape{3, 8, 7, 33}},
      {{3, 1, 1}, Shape{2, 5, 4, 3}},    {{3, 3, 2}, Shape{2, 7, 5, 16}},
      {{2, 3, 0}, Shape{2, 8, 6, 17}},   {{5, 2, 2}, Shape{2, 3, 2, 4}},
      {{2, 2, 0}, Shape{16, 20, 20, 8}}, {{3, 2, 1}, Shape{16, 20, 20, 16}}};
  for (const auto& [window, x] : pools) {
    add("MaxPool", "max_pool", window, x, ReferenceMaxPool(window));
    add("AvgPool", "avg_pool", window, x, ReferenceAvgPool(window));
  }
}

}  // namespace

void AddImageOps(std::vector<OpCase>* cases) {
  AddConvs(cases);
  AddPools(cases);
  const auto add = [&](const char* name, const char* op, const std::vector<Shape>& shapes,
                       const ReferenceOp& reference) {
    for (const Shape& x : shapes) {
      cases->push_back({NameOf(name, x), op, {}, {{x, DType::kFloat32, 1}}, reference});
    }
  };
  add("GlobalAvgPool", "global_avg_pool", {Shape{3, 5, 7}, Shape{5, 4, 3, 33}, Shape{70, 8, 8, 16}},
      ReferenceGlobalAvgPool());
  add("ToChannelsLast", "to_channels_last",
      {Shape{3, 1, 4, 5}, Shape{5, 3, 5, 7}, Shape{9, 33, 16, 16}}, ReferenceToChannelsLast());
}

}  // namespace engine::test
