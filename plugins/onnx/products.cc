#include "products.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "norms.h"
#include "patterns.h"

namespace engine::onnx {
namespace {

// The columns of the dimensions before the last two, samples first.
struct Leading {
  std::vector<Column> columns;
  std::vector<std::vector<int>> dims;  // each of the result's, as columns or kShared
  bool batched = false;
};

Result<Leading> AlignLeading(Lowering& lowering, const Node& node, std::vector<Value*> values) {
  ENGINE_ASSIGN_OR_RETURN(const auto dims, lowering.AlignAll(node, values, 2));
  Leading leading;
  for (const auto& columns : dims) {
    for (const Column& column : columns) {
      leading.batched = leading.batched || column.samples;
      if (!column.InMemory()) continue;
      leading.columns.insert(column.samples ? leading.columns.begin() : leading.columns.end(),
                             column);
    }
  }
  const auto place_of = [&](const Column& column) {
    const auto found = std::ranges::find(leading.columns, column.axis, &Column::axis);
    return found == leading.columns.end() ? kShared
                                          : static_cast<int>(found - leading.columns.begin());
  };
  for (const auto& columns : dims) {
    std::vector<int>& dim = leading.dims.emplace_back();
    for (const Column& column : columns) dim.push_back(place_of(column));
  }
  return leading;
}

// Dimensions of value `i` before its last two: samples, then the others as one or, where one tensor
// does not have all of them, as `most` at most.
Result<Groups> LeadingGroups(const Node& node, const Leading& leading, size_t i, size_t most) {
  Groups groups;
  size_t begin = 0;
  if (leading.batched) {
    const int axis = leading.columns[0].axis[i];
    groups.push_back(axis >= 0 ? std::vector{axis} : std::vector<int>());
    begin = 1;
  }
  for (size_t c = begin; c < leading.columns.size(); ++c) {
    const bool joins = c > begin && leading.columns[c].IsLike(leading.columns[c - 1]);
    if (!joins) groups.emplace_back();
    if (leading.columns[c].axis[i] >= 0) groups.back().push_back(leading.columns[c].axis[i]);
  }
  if (groups.size() <= most) return groups;
  return node.Unsupported("broadcasts in more dimensions than a tensor has");
}

// The layout of leading columns followed by these axes of rows and columns.
Layout ProductLayout(const Leading& leading, const Layout& rows, const std::vector<int>& row_axes,
                     const Layout& columns, const std::vector<int>& column_axes) {
  Layout y{.batched = leading.batched, .dims = leading.dims, .samples = rows.samples};
  for (const Column& column : leading.columns) y.axes.push_back(column.extent);
  const auto append = [&](const Layout& from, const std::vector<int>& axes) {
    std::vector<int>& dim = y.dims.emplace_back();
    for (const int axis : axes) {
      dim.push_back(static_cast<int>(y.axes.size()));
      y.axes.push_back(from.axes[axis]);
    }
  };
  append(rows, row_axes);
  append(columns, column_axes);
  return y;
}

// Whether the axes of the last dimension lie before those of the one before it.
bool IsTransposed(const Layout& layout) {
  const std::vector<int>&rows = layout.dims[layout.dims.size() - 2], &columns = layout.dims.back();
  return !rows.empty() && !columns.empty() && columns[0] < rows[0];
}

Status LowerMatMul(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const bool found, LowerAttention(lowering, node));
  if (found) return {};
  ENGINE_ASSIGN_OR_RETURN(Value a, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(Value b, lowering.Input(node, 1));
  if (IsMatrix(b)) return LowerLinear(lowering, node, a, b, nullptr);
  return LowerProduct(lowering, node, std::move(a), std::move(b), 1);
}

// alpha op(A) op(B) + beta C
Status LowerGemm(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value a, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(Value b, lowering.Input(node, 1));
  const double alpha = node.Float("alpha", 1), beta = node.Float("beta", 1);
  constexpr int64_t kSwap[] = {1, 0};
  if (a.layout.rank() != 2 || b.layout.rank() != 2 || (beta != 1 && node.HasInput(2))) {
    return node.Unsupported("needs matrices, and a beta of 1");
  }
  if (node.Int("transA", 0) != 0) a.layout.Permute(kSwap);
  if (node.Int("transB", 0) != 0) b.layout.Permute(kSwap);
  ENGINE_ASSIGN_OR_RETURN(const Value bias, OptionalInput(lowering, node, 2));
  const bool has_bias = node.HasInput(2);
  const bool simple = !has_bias || IsVector(bias, b.Shape()[1]);
  if (alpha == 1 && IsMatrix(b) && simple) {
    return LowerLinear(lowering, node, a, b, has_bias ? &bias : nullptr);
  }
  ENGINE_RETURN_IF_ERROR(LowerProduct(lowering, node, std::move(a), std::move(b), alpha));
  if (!has_bias) return {};
  ENGINE_ASSIGN_OR_RETURN(const Value product, lowering.Get(node.output(0)));
  Layout layout;
  ENGINE_ASSIGN_OR_RETURN(const auto inputs, lowering.Broadcast(node, {product, bias}, &layout));
  return GiveOp(lowering, node, "add", inputs, {}, layout);
}

// Of two tensors, as a product of matrices: letters of both and of the result count its leading
// dimensions, those of both alone its sum; all others of one are its rows or columns.
Status LowerEinsum(Lowering& lowering, const Node& node) {
  std::string equation = node.Text("equation", "");
  std::erase(equation, ' ');
  const size_t comma = equation.find(','), arrow = equation.find("->");
  if (node.input_count() != 2 || comma > arrow || arrow == std::string::npos ||
      equation.find('.') != std::string::npos) {
    return node.Unsupported("has the equation '%s'; ab,cd->ef with two tensors is known",
                            equation.c_str());
  }
  const std::string letters[] = {equation.substr(0, comma),
                                 equation.substr(comma + 1, arrow - comma - 1)};
  const std::string result = equation.substr(arrow + 2);
  const auto has = [](const std::string& text, char c) { return text.find(c) != text.npos; };
  Value x[2];
  std::string leading, own[2];
  Dims leading_shape, own_shape[2];
  for (size_t i = 0; i < 2; ++i) {
    ENGINE_ASSIGN_OR_RETURN(x[i], lowering.Input(node, i));
    const std::string &here = letters[i], &other = letters[1 - i];
    const Dims shape = x[i].Shape();
    if (shape.size() != here.size()) return node.Damaged("has an equation of other dimensions");
    std::vector<std::vector<int>> dims;
    std::vector<int> sum, rows;
    for (const char c : i == 0 ? here : leading) {
      const size_t at = here.find(c);
      if (!has(other, c) || !has(result, c)) continue;
      dims.push_back(x[i].layout.dims[at]);
      if (i == 0) leading += c;
      if (i == 0) leading_shape.push_back(shape[at]);
    }
    for (const char c : letters[0]) {
      const size_t at = here.find(c);
      if (!has(other, c) || has(result, c) || at == here.npos) continue;
      sum.insert(sum.end(), x[i].layout.dims[at].begin(), x[i].layout.dims[at].end());
    }
    for (size_t at = 0; at < here.size(); ++at) {
      if (has(other, here[at])) continue;
      if (!has(result, here[at]) || has(here.substr(at + 1), here[at])) {
        return node.Unsupported("sums over one tensor alone, or takes a diagonal");
      }
      rows.insert(rows.end(), x[i].layout.dims[at].begin(), x[i].layout.dims[at].end());
      own[i] += here[at];
      own_shape[i].push_back(shape[at]);
    }
    dims.push_back(i == 0 ? rows : sum);
    dims.push_back(i == 0 ? sum : rows);
    x[i].layout.dims = std::move(dims);
  }
  ENGINE_RETURN_IF_ERROR(IsMatrix(x[1]) ? LowerLinear(lowering, node, x[0], x[1], nullptr)
                                        : LowerProduct(lowering, node, x[0], x[1], 1));
  ENGINE_ASSIGN_OR_RETURN(Value y, lowering.Get(node.output(0)));
  Dims shape = leading_shape, order;
  for (const Dims& part : own_shape) shape.insert(shape.end(), part.begin(), part.end());
  const std::string given = leading + own[0] + own[1];
  for (const char c : result) order.push_back(static_cast<int64_t>(given.find(c)));
  if (order.size() != given.size() || !y.layout.Reshape(shape)) {
    return node.Unsupported("has an equation that is no product of matrices");
  }
  y.layout.Permute(order);
  return Give(lowering, node, std::move(y));
}

// ---- Attention: softmax(scale q k^T + mask) v

struct Scores {
  Value q, k;
  double scale = 1;
  Value mask;  // added to the scores, if `masked`
  bool masked = false, causal = false;
};

// What is so small that its share in a softmax is 0, as -inf and the smallest number are.
constexpr double kHidden = -1e4;

// 0 up to the diagonal and hidden behind it, for all heads and samples.
bool IsCausal(const Tensor& mask) {
  const size_t rank = mask.dims.size();
  if (rank < 2 || mask.dims[rank - 1] != mask.dims[rank - 2]) return false;
  const int64_t side = mask.dims.back();
  for (int64_t i = 0; i < mask.count(); ++i) {
    const bool behind = i % side > i / side % side;
    if (behind ? mask.values[i] > kHidden : mask.values[i] != 0) return false;
  }
  return side > 1;
}

// Passes over the mask that a node adds to the scores, or puts in their place; the scores' name, or
// "" where there is none.
Result<std::string> PassMask(Lowering& lowering, const std::string& scores, Scores* found) {
  if (const Node* const add = SoleProducer(lowering, scores, "Add")) {
    for (size_t i = 0; i < 2; ++i) {
      if (!lowering.graph().IsConstant(add->input(i))) continue;
      ENGINE_ASSIGN_OR_RETURN(found->mask, lowering.Get(add->input(i)));
      found->masked = true;
      return add->input(1 - i);
    }
    return std::string();
  }
  const Node* const where = SoleProducer(lowering, scores, "Where");
  if (where == nullptr) return scores;
  // Where(condition, scores, -inf) or Where(condition, -inf, scores).
  for (size_t i = 1; i < 3; ++i) {
    double hidden = 0;
    if (!lowering.IsScalar(where->input(i), &hidden) || hidden > kHidden ||
        !lowering.graph().IsConstant(where->input(0))) {
      continue;
    }
    ENGINE_ASSIGN_OR_RETURN(const Value condition, lowering.Get(where->input(0)));
    Tensor mask = *condition.constant;
    mask.type = Tensor::Type::kFloat;
    for (double& value : mask.values) value = (value != 0) == (i == 1) ? hidden : 0;
    found->mask = lowering.ValueOf(std::move(mask));
    found->masked = true;
    return where->input(3 - i);
  }
  return std::string();
}

// Passes over a multiplication or division by a number.
std::string PassScale(Lowering& lowering, const std::string& value, double* scale) {
  for (const char* const type : {"Mul", "Div"}) {
    const Node* const node = SoleProducer(lowering, value, type);
    if (node == nullptr) continue;
    const bool divides = node->type() == "Div";
    for (size_t i = divides ? 1 : 0; i < 2; ++i) {
      double factor = 0;
      if (!lowering.IsScalar(node->input(i), &factor) || factor == 0) continue;
      *scale *= divides ? 1 / factor : factor;
      return PassScale(lowering, node->input(1 - i), scale);
    }
  }
  return value;
}

// What the softmax of attention is taken of.
Result<bool> FindScores(Lowering& lowering, const std::string& softmaxed, Scores* found) {
  ENGINE_ASSIGN_OR_RETURN(const std::string masked, PassMask(lowering, softmaxed, found));
  if (masked.empty()) return false;
  const std::string product = PassScale(lowering, masked, &found->scale);
  const Node* const node = SoleProducer(lowering, product, "MatMul");
  if (node == nullptr) return false;
  const std::string q = PassScale(lowering, node->input(0), &found->scale);
  // Keys are transposed: their factor stands before or behind that.
  const std::string k = PassScale(lowering, node->input(1), &found->scale);
  const Node* const transpose = SoleProducer(lowering, k, "Transpose");
  if (transpose == nullptr || found->scale <= 0) return false;
  ENGINE_ASSIGN_OR_RETURN(found->q, lowering.Get(q));
  ENGINE_ASSIGN_OR_RETURN(found->k, lowering.Get(k));
  const int rank = found->k.layout.rank();
  if (rank < 3 || found->q.layout.rank() != rank || !found->q.layout.batched ||
      !found->k.layout.batched) {
    return false;
  }
  std::swap(found->k.layout.dims[rank - 1], found->k.layout.dims[rank - 2]);
  return true;
}

}  // namespace

bool IsMatrix(const Value& value) {
  return !value.parameter.empty() && value.layout.rank() == 2 && !value.layout.dims[0].empty() &&
         !value.layout.dims[1].empty();
}

bool IsVector(const Value& value, int64_t extent) {
  return !value.parameter.empty() && value.layout.axes == Dims{extent} &&
         value.Shape().back() == extent;
}

Status LowerLinear(Lowering& lowering, const Node& node, const Value& x, const Value& weight,
                   const Value* bias) {
  const Layout& layout = x.layout;
  if (layout.dims.empty()) return node.Damaged("multiplies a number by a matrix");
  if (x.Shape().back() != weight.Shape()[0]) {
    return node.Misfit(
        "multiplies rows of %lld by a matrix with %lld rows: the "
        "data has another shape than the model was exported for",
        static_cast<long long>(x.Shape().back()), static_cast<long long>(weight.Shape()[0]));
  }
  ENGINE_ASSIGN_OR_RETURN(const Last last, MakeLast(lowering, node, x, layout.dims.back()));
  // (K, N) in memory is what the op calls transposed; PyTorch has (N, K).
  const std::vector<int>&rows = weight.layout.dims[0], &columns = weight.layout.dims[1];
  const bool transposed = !IsTransposed(weight.layout);
  const bool natural = rows.size() == 1 && columns.size() == 1;
  const int64_t units = weight.Shape()[1];
  ENGINE_ASSIGN_OR_RETURN(
      const ModelValue made,
      lowering.EmitLayer(node, "linear", last.input, weight,
                         transposed ? Groups{rows, columns} : Groups{columns, rows}, natural, bias,
                         {kit::Int("units", units), kit::Bool("bias", bias != nullptr),
                          kit::Bool("transposed", transposed)}));
  Layout y = last.layout;
  y.axes.resize(y.axes.size() - layout.dims.back().size());
  y.dims.back() = {static_cast<int>(y.axes.size())};
  y.axes.push_back(units);
  return Give(lowering, node, made, std::move(y));
}

Status LowerProduct(Lowering& lowering, const Node& node, Value a, Value b, double scale) {
  if (a.layout.rank() < 2 || b.layout.rank() < 2) {
    return node.Unsupported("multiplies a vector; make it a matrix");
  }
  ENGINE_ASSIGN_OR_RETURN(const Leading leading, AlignLeading(lowering, node, {&a, &b}));
  const bool swap_a = IsTransposed(a.layout), swap_b = IsTransposed(b.layout);
  ModelValue inputs[2];
  for (size_t i = 0; i < 2; ++i) {
    const Value& x = i == 0 ? a : b;
    ENGINE_ASSIGN_OR_RETURN(Groups groups, LeadingGroups(node, leading, i, kMaxDims - 2));
    const auto rank = x.layout.dims.size();
    const std::vector<int>&rows = x.layout.dims[rank - 2], &columns = x.layout.dims[rank - 1];
    const bool swap = i == 0 ? swap_a : swap_b;
    groups.push_back(swap ? columns : rows);
    groups.push_back(swap ? rows : columns);
    while (!x.layout.batched && groups.size() > 2 && groups[0].empty())
      groups.erase(groups.begin());
    ENGINE_ASSIGN_OR_RETURN(inputs[i], lowering.Arrange(node, x, groups));
  }
  const std::vector<int>& rows = a.layout.dims[a.layout.dims.size() - 2];
  return GiveOp(lowering, node, "matmul", {inputs[0], inputs[1]},
                {kit::Bool("transpose_a", swap_a), kit::Bool("transpose_b", swap_b),
                 kit::Float("scale", scale)},
                ProductLayout(leading, a.layout, rows, b.layout, b.layout.dims.back()));
}

Result<bool> LowerAttention(Lowering& lowering, const Node& node) {
  const Node* const softmax = SoleProducer(lowering, node.input(0), "Softmax");
  if (softmax == nullptr) return false;
  Scores scores;
  ENGINE_ASSIGN_OR_RETURN(const bool found, FindScores(lowering, softmax->input(0), &scores));
  ENGINE_ASSIGN_OR_RETURN(Value v, lowering.Input(node, 1));
  const int64_t axis = softmax->Int("axis", -1), rank = v.layout.rank();
  if (!found || !v.layout.batched || scores.q.layout.rank() != rank ||
      (axis != -1 && axis != rank - 1)) {
    return false;
  }
  ENGINE_ASSIGN_OR_RETURN(const Leading leading,
                          AlignLeading(lowering, node, {&scores.q, &scores.k, &v}));
  for (const Column& column : leading.columns) {
    if (std::ranges::any_of(column.axis, [](int at) { return at < 0; })) return false;
  }
  if (!leading.batched || leading.columns.empty()) return false;
  Tensor mask;
  if (scores.masked) {
    mask = *scores.mask.constant;
    scores.causal = IsCausal(mask);
    // (H, T, S), (1, T, S) or (T, S) fit; others are left to the ops that broadcast.
    while (mask.dims.size() > 2 && mask.dims[0] == 1) mask.dims.erase(mask.dims.begin());
    int64_t heads = 1;
    for (const Column& column : leading.columns) heads *= column.extent;
    const bool per_head = mask.dims.size() == 3 && mask.dims[0] * lowering.samples() == heads;
    if (!scores.causal && mask.dims.size() != 2 && !per_head) return false;
    for (double& value : mask.values) value = std::max(value, -3.4e38);
  }
  std::vector<ModelValue> inputs;
  for (Value* const x : {&scores.q, &scores.k, &v}) {
    const size_t i = inputs.size();
    ENGINE_ASSIGN_OR_RETURN(Groups groups, LeadingGroups(node, leading, i, 2));
    if (groups.size() == 1) groups.emplace_back();
    groups.push_back(x->layout.dims[x->layout.dims.size() - 2]);
    groups.push_back(x->layout.dims.back());
    ENGINE_ASSIGN_OR_RETURN(inputs.emplace_back(), lowering.Arrange(node, *x, groups));
  }
  if (scores.masked && !scores.causal) {
    const Value fitted = lowering.ValueOf(std::move(mask));
    ENGINE_ASSIGN_OR_RETURN(inputs.emplace_back(),
                            lowering.Arrange(node, fitted, fitted.layout.dims));
  }
  const Layout &q = scores.q.layout, &values = v.layout;
  ENGINE_RETURN_IF_ERROR(
      GiveOp(lowering, node, "scaled_dot_product_attention", inputs,
             {kit::Bool("causal", scores.causal), kit::Float("scale", scores.scale)},
             ProductLayout(leading, q, q.dims[q.dims.size() - 2], values, values.dims.back())));
  return true;
}

std::span<const HandlerEntry> ProductHandlers() {
  static constexpr HandlerEntry kHandlers[] = {
      {"Einsum", LowerEinsum}, {"Gemm", LowerGemm}, {"MatMul", LowerMatMul}};
  return kHandlers;
}

}  // namespace engine::onnx
