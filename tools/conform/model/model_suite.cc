// What every model must hold to, with the ops and the data that --with names.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "app/model/model_graph.h"
#include "app/plugins/roles.h"
#include "engine/ext/initial_values.h"
#include "tools/conform/contract.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/model.h";

class Models : public testing::Test {
 protected:
  Models() {
    for (const PluginUnderTest& other : UnderTest().others) {
      if (other.file().kind != PluginKind::kOps) continue;
      selection_.ops.push_back({other.file(), other.Values()});
      libraries_.push_back(Must(other.Create<OpLibrary>(host_)));
    }
    selection_.resolve_op = plugins::ResolveOp;
    if (const PluginUnderTest* const dataset = UnderTest().Other(PluginKind::kDataset)) {
      dataset_ = Must(dataset->Create<Dataset>(host_));
      Must(dataset_->Open(UnderTest().seed));
    }
  }
  void SetUp() override {
    ASSERT_FALSE(selection_.ops.empty())
        << "a model is judged with ops: give --with libengine_cpu_ops.so, or those that it needs";
  }

  model::ModelRequest Request(bool with_loss) const {
    static const SampleTensor input{.name = "input", .shape = {8}};
    static const SampleTensor target{.name = "class", .dtype = DType::kInt32, .classes = 10};
    const DatasetInfo info =
        dataset_ ? dataset_->info() : DatasetInfo{.inputs = {&input, 1}, .targets = {&target, 1}};
    model::ModelRequest request = model::RequestFor(info, 4, with_loss);
    request.plugins = &selection_;
    return request;
  }
  graph::Graph Build(const Model& model, bool with_loss = true) const {
    return Must(model::BuildModel(model, Request(with_loss), factory_));
  }

  MemoryHost host_;
  plugin::PluginSelection selection_;
  std::vector<std::unique_ptr<OpLibrary>> libraries_;
  std::unique_ptr<Dataset> dataset_;
  const plugin::OpFactory factory_ =
      [this](const std::string& name,
             const std::vector<plugin::OwnedOption>& given) -> Result<std::unique_ptr<Op>> {
    ENGINE_ASSIGN_OR_RETURN(const plugin::ResolvedOp resolved,
                            selection_.resolve_op(selection_.ops, name, given));
    const std::vector<OptionValue> values = plugin::Views(resolved.attributes);
    Op* op = nullptr;
    ENGINE_RETURN_IF_ERROR(libraries_[resolved.plugin]->CreateOp(name, Options(values), &op));
    return std::unique_ptr<Op>(op);
  };
};

// Everything in which two graphs can differ, as text.
std::string Describe(const graph::Graph& graph) {
  std::string text;
  const auto add = [&](int64_t value) { text += " " + std::to_string(value); };
  for (const graph::Node& node : graph.nodes) {
    text += node.name + " = " + node.op_name;
    std::ranges::for_each(node.inputs, add);
    std::ranges::for_each(node.outputs, add);
    text += "\n";
  }
  for (const graph::Parameter& parameter : graph.parameters) {
    text += parameter.name + (parameter.trainable ? " trainable" : " frozen");
    for (int32_t i = 0; i < parameter.shape.ndim; ++i) add(parameter.shape[i]);
    text += "\n";
  }
  for (const graph::GraphOutput& output : graph.outputs) {
    text += "output " + output.name + " " + std::to_string(output.value) + "\n";
  }
  return text + "loss " + std::to_string(graph.loss);
}

TEST_F(Models, BuildsTheSameGraphEveryTime) {
  MUST("The same graph for the same data and ops, on every rank.");
  const auto one = Make<Model>(), other = Make<Model>();
  const graph::Graph graph = Build(*one);
  EXPECT_NE(graph.loss, graph::kNone);
  EXPECT_FALSE(graph.outputs.empty());
  EXPECT_EQ(Describe(Build(*one)), Describe(graph));
  EXPECT_EQ(Describe(Build(*other)), Describe(graph));
}

TEST_F(Models, GivesTheSameValuesEveryTime) {
  CONTRACT(
      MUST, "engine/ext/initial_values.h",
      "Writes all elements of a parameter that Has is 1 for, in the order of its shape; the same "
      "on every rank.");
  const auto one = Make<Model>(), other = Make<Model>();
  const graph::Graph graph = Build(*one), same = Build(*other);
  const InitialValues* const given = Query<InitialValues>(*one);
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const auto& [parameter, values] = std::tie(graph.parameters[i], graph.parameters[i].values);
    EXPECT_EQ(values, same.parameters[i].values) << parameter.name;
    if (values.empty()) continue;
    std::vector<float> again(values.size(), NAN);
    Must(given->Read(parameter.name, again));
    EXPECT_EQ(again, values) << parameter.name << ": an element that is not written";
  }
}

TEST_F(Models, BuildsAGraphForInference) {
  MUST(
      "with_loss = 0: a graph for inference ends at its outputs, may not use the targets' values, "
      "and has no parameters but those of the graph with a loss.");
  const auto model = Make<Model>();
  const graph::Graph trained = Build(*model), graph = Build(*model, false);
  EXPECT_EQ(graph.loss, graph::kNone);
  ASSERT_EQ(graph.outputs.size(), trained.outputs.size());
  std::map<std::string, Shape> shapes;
  for (const graph::Parameter& parameter : trained.parameters) {
    shapes[parameter.name] = parameter.shape;
  }
  for (const graph::Parameter& parameter : graph.parameters) {
    ASSERT_TRUE(shapes.contains(parameter.name)) << parameter.name;
    EXPECT_TRUE(shapes[parameter.name] == parameter.shape) << parameter.name;
  }
}

TEST_F(Models, ReturnsTheErrorsOfItsBuilder) {
  MUST("Build returns the first error that a call of the builder gave.");
  const auto model = Make<Model>();
  const model::ModelRequest request = Request(true);
  for (int good_ops = 0;; ++good_ops) {
    int left = good_ops;
    const auto factory = [&](const std::string& name, const auto& given) {
      return left-- > 0 ? factory_(name, given) : Status::Error(StatusCode::kConfig, "planned");
    };
    model::GraphBuilder builder(request, factory);
    const Status status = model->Build(builder);
    if (left >= 0) return Must(status);  // there are no more ops
    ASSERT_FALSE(status.ok()) << "op " << good_ops << " could not be made";
  }
}

}  // namespace
}  // namespace engine::conform
