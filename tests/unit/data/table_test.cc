#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "engine/ext/class_names.h"
#include "tests/unit/data/dataset_under_test.h"
#include "tests/unit/data/npy_bytes.h"

namespace engine {
namespace {

using test::NpyBytes;
using test::OpenedDataset;

constexpr char kHouses[] =
    "area,rooms,\"city, town\",price\r\n"
    "50.5, 2 ,Oslo,100\r\n"
    "\r\n"
    "70,3,\"Ber\"\"gen\",150.5\r\n"
    "90,,Oslo,200";

class Table : public test::DatasetTest {
 protected:
  Table() : DatasetTest("table") { options_["holdout"] = "0"; }

  void SetCsv(const std::string& content) { options_["path"] = folder_.Write("t.csv", content); }

  // Rows `indices` of a split; the target is of type T.
  template <typename T>
  struct Rows {
    std::vector<float> features, weights;
    std::vector<T> targets;
    Status status;
  };
  template <typename T>
  static Rows<T> Read(const OpenedDataset& opened, const std::vector<int64_t>& indices,
                      Split split = Split::kTrain) {
    const DatasetInfo info = opened.dataset->info();
    Rows<T> rows;
    rows.features.resize(indices.size() * static_cast<size_t>(info.inputs[0].shape.Count()));
    rows.targets.resize(indices.size() * static_cast<size_t>(info.targets[0].shape.Count()));
    rows.weights.resize(indices.size());
    std::vector<void*> tensors = {rows.features.data(), rows.targets.data(), rows.weights.data()};
    tensors.resize(1 + info.targets.size());
    rows.status = opened.dataset->Fill({.split = split, .indices = indices, .tensors = tensors});
    return rows;
  }
  // Of reading row `index`.
  void ExpectBadRow(int64_t index, const std::string& reason) {
    const Status status = Read<float>(Open(), {index}).status;
    EXPECT_EQ(status.code(), StatusCode::kBadData);
    EXPECT_THAT(status.message(), HasSubstr(reason));
  }
};

TEST_F(Table, CategoriesAreOneHotAndTheLastColumnIsTheTarget) {
  SetCsv(kHouses);
  options_["missing"] = "mean";
  const OpenedDataset opened = Open();
  const DatasetInfo info = opened.dataset->info();
  EXPECT_EQ(info.train_samples, 3);
  EXPECT_EQ(info.targets[0].dtype, DType::kFloat32);
  EXPECT_EQ(info.targets[0].shape.ndim, 0);
  const auto rows = Read<float>(opened, {2, 0, 1});
  EXPECT_THAT(rows.features, ElementsAre(90, 2.5, 0, 1, 50.5, 2, 0, 1, 70, 3, 1, 0));
  EXPECT_THAT(rows.targets, ElementsAre(200, 100, 150.5));
  options_["encode"] = "number";
  options_["features"] = "city, town";
  ExpectError(StatusCode::kConfig, AllOf(HasSubstr("data.table.features"), HasSubstr("'city'"),
                                         HasSubstr("4 columns: area, rooms, city, town, price")));
  options_["features"] = "2, 0";
  EXPECT_THAT(Read<float>(Open(), {0, 1}).features, ElementsAre(1, 50.5, 0, 70));
}

TEST_F(Table, ClassesAreCategoriesInTheirOrderOrWholeNumbers) {
  SetCsv("kind,x\ncat,1\ndog,2\nant,3\ncat,4\n");
  options_["target"] = "kind";
  OpenedDataset opened = Open();
  EXPECT_EQ(opened.dataset->info().targets[0].classes, 3);
  EXPECT_THAT(Read<int32_t>(opened, {0, 1, 2, 3}).targets, ElementsAre(1, 2, 0, 1));
  const auto* const names = Query<ClassNames>(*opened.dataset);
  ASSERT_NE(names, nullptr);
  EXPECT_EQ(std::string(names->ClassName(0, 2)), "dog");

  options_["target"] = "x";
  opened = Open();
  EXPECT_EQ(opened.dataset->info().targets[0].classes, 5);
  EXPECT_THAT(Read<int32_t>(opened, {3}).targets, ElementsAre(4));
  EXPECT_TRUE(Query<ClassNames>(*opened.dataset)->ClassName(0, 0).empty());
  options_["target_type"] = "number";
  EXPECT_EQ(Open().dataset->info().targets[0].classes, 0);
  options_["target_type"] = "class";
  options_["categorical"] = "x";
  opened = Open();
  EXPECT_EQ(opened.dataset->info().targets[0].classes, 4);
  EXPECT_EQ(std::string(Query<ClassNames>(*opened.dataset)->ClassName(0, 0)), "1");
}

TEST_F(Table, SeveralTargetsAndAWeight) {
  SetCsv("a;b;c;w;id\n1;2;3;0.5;k9\n4;5;6;2;k8\n");
  options_["delimiter"] = ";";
  options_["target"] = "c, b";
  options_["weight"] = "w";
  options_["ignore"] = "-1";
  const OpenedDataset opened = Open();
  const DatasetInfo info = opened.dataset->info();
  ASSERT_EQ(info.targets.size(), 2u);
  EXPECT_EQ(std::string(info.targets[1].name), "sample_weight");
  EXPECT_EQ(info.targets[1].dtype, DType::kFloat32);
  EXPECT_TRUE(info.targets[0].shape == Shape{2});
  const auto rows = Read<float>(opened, {1, 0});
  EXPECT_THAT(rows.features, ElementsAre(4, 1));
  EXPECT_THAT(rows.targets, ElementsAre(6, 5, 3, 2));
  EXPECT_THAT(rows.weights, ElementsAre(2, 0.5));
  options_["features"] = "b";
  ExpectError(StatusCode::kConfig, HasSubstr("named twice"));
}

TEST_F(Table, MeansAreThoseOfTheRowsTrainedOn) {
  std::string csv = "x,y\n";
  for (int i = 0; i < 500; ++i) csv += std::to_string(1000000 + i * i) + ",0.5\n";
  SetCsv(csv);
  options_["normalize"] = "true";
  options_["holdout"] = "0.3";
  const OpenedDataset opened = Open(7);
  const DatasetInfo info = opened.dataset->info();
  EXPECT_EQ(info.train_samples + info.held_out_samples, 500);
  EXPECT_NEAR(static_cast<double>(info.held_out_samples), 150, 40);
  std::vector<int64_t> all(static_cast<size_t>(info.train_samples));
  std::iota(all.begin(), all.end(), 0);
  const auto rows = Read<float>(opened, all);
  double sum = 0, squares = 0;
  for (const float x : rows.features) sum += x, squares += double{x} * double{x};
  EXPECT_NEAR(sum / static_cast<double>(all.size()), 0, 1e-5);
  EXPECT_NEAR(squares / static_cast<double>(all.size()), 1, 1e-5);
  EXPECT_NE(Open(8).dataset->info().train_samples * 1000 + Read<float>(Open(8), {0}).features[0],
            info.train_samples * 1000 + rows.features[0])
      << "another seed holds out other rows";
}

TEST_F(Table, AFileOfItsOwnIsReadWithTheCategoriesOfTheOther) {
  SetCsv("kind,id,x\ncat,7,1\ndog,8,2\n");
  options_["target"] = "kind";
  options_["ignore"] = "id";
  options_["eval_path"] = folder_.Write("e.csv", "x,more,kind\n5,?,dog\n6,?,eel\n");
  const OpenedDataset opened = Open();
  EXPECT_EQ(opened.dataset->info().held_out_samples, 2);
  const auto row = Read<int32_t>(opened, {0}, Split::kHeldOut);
  EXPECT_THAT(row.features, ElementsAre(5));
  EXPECT_THAT(row.targets, ElementsAre(1));
  EXPECT_THAT(Read<int32_t>(opened, {1}, Split::kHeldOut).status.message(),
              HasSubstr("e.csv: line 3, column 3 'kind': the class is missing, or none of"));
  options_["eval_path"] = folder_.Write("e.csv", "y,kind\n5,dog\n");
  ExpectError(StatusCode::kBadData, HasSubstr("there is no column 3 'x'"));
}

TEST_F(Table, ErrorsNameFileLineAndColumn) {
  options_["target"] = "y";
  SetCsv("x,y\n1,2.5\n\n3\n");
  ExpectError(StatusCode::kBadData, HasSubstr("t.csv: line 4, column 2: 1 fields instead of 2"));
  SetCsv("x,y\n1,2.5\n\"3,4\n");
  ExpectError(StatusCode::kBadData, HasSubstr("line 3: a quoted field that does not end"));
  SetCsv("x,y\n1,2.5\n\"3\"0,4\n");
  ExpectError(StatusCode::kBadData, HasSubstr("line 3, column 1: text after the closing quote"));
  SetCsv("x,y\n");
  ExpectError(StatusCode::kBadData, HasSubstr("no row behind it"));
  SetCsv("x,y\n1,2.5\n,4\n5,NA\n");
  ExpectBadRow(1, "line 3, column 1 'x': a number is missing");
  ExpectBadRow(2, "line 4, column 2 'y': the target is missing");
  SetCsv("x,y\n1,2.5\n?,4\n");
  ExpectBadRow(1, "line 3, column 1 'x': ?: this is no number, as others of its column are");
  SetCsv("x,y\n1e39,2.5\n1,1e39\n");
  ExpectBadRow(0, "line 2, column 1 'x': a number is missing, or too large for float32");
  ExpectBadRow(1, "line 3, column 2 'y': the target is missing, or too large");
  SetCsv("x,x,y\n1,2,3\n");
  ExpectError(StatusCode::kBadData, HasSubstr("column 2 'x': an earlier column has the same name"));
  SetCsv("x,y\n1,k\xf6ln\n");
  ExpectError(StatusCode::kBadData, HasSubstr("save the file that has it as UTF-8"));
  SetCsv("x,y\n1,2.5\n");
  options_["weight"] = "x";
  options_["features"] = "y";
  options_["target"] = "0";
  ExpectError(StatusCode::kConfig, HasSubstr("named twice"));
  options_["delimiter"] = "ab";
  ExpectError(StatusCode::kConfig, HasSubstr("data.table.delimiter"));
  options_["path"] = folder_ / "none.csv";
  options_["delimiter"] = ",";
  ExpectError(StatusCode::kMissingInput, HasSubstr("none.csv"));
}

TEST_F(Table, ArraysAreFeaturesTargetsAndWeights) {
  options_["path"] =
      folder_.Write("x.npy", NpyBytes<uint8_t>("|u1", "(2, 1, 2, 2)", {1, 2, 3, 4, 5, 6, 7, 8}));
  options_["target_path"] = folder_.Write("y.npy", NpyBytes<int64_t>("<i8", "(2,)", {4, 0}));
  options_["weight_path"] = folder_.Write("w.npy", NpyBytes<double>("<f8", "(2,)", {0.5, 1.5}));
  const OpenedDataset opened = Open();
  const DatasetInfo info = opened.dataset->info();
  EXPECT_TRUE(info.inputs[0].shape == (Shape{1, 2, 2}));
  EXPECT_EQ(info.inputs[0].content, TensorContent::kImage);
  EXPECT_EQ(info.targets[0].classes, 5);
  const auto rows = Read<int32_t>(opened, {1, 0});
  EXPECT_THAT(rows.features, ElementsAre(5, 6, 7, 8, 1, 2, 3, 4));
  EXPECT_THAT(rows.targets, ElementsAre(0, 4));
  EXPECT_THAT(rows.weights, ElementsAre(1.5, 0.5));
  options_["weight_path"] = folder_.Write("w.npy", NpyBytes<double>("<f8", "(2, 2)", {1, 1, 1, 1}));
  ExpectError(StatusCode::kBadData, HasSubstr("w.npy: 2 numbers in a row; a weight is one"));
  options_["weight_path"] = "";
  options_["target"] = "1";
  ExpectError(StatusCode::kConfig, HasSubstr("leave them out"));
  options_["target"] = "";
  options_["shape"] = "4";
  EXPECT_TRUE(Open().dataset->info().inputs[0].shape == Shape{4});
  options_["shape"] = "3";
  ExpectError(StatusCode::kConfig, HasSubstr("the number of features, 4"));
  options_["shape"] = "";
  options_["target_path"] = folder_.Write("y.npy", NpyBytes<int64_t>("<i8", "(3,)", {4, 0, 1}));
  ExpectError(StatusCode::kBadData, HasSubstr("3 rows for the 2"));
  options_["target_path"] = folder_.Write("y.npy", NpyBytes<int64_t>("<i8", "(2,)", {4, -1}));
  options_["target_type"] = "class";
  ExpectError(StatusCode::kBadData, HasSubstr("y.npy: row 1, column 0: this is no class"));
}

TEST_F(Table, OneArrayHasItsTargetAmongItsColumns) {
  options_["path"] =
      folder_.Write("t.npy", NpyBytes<float>("<f4", "(2, 3)", {1, 0.5, 2, 3, 0.25, 4}));
  options_["target"] = "1";
  const auto rows = Read<float>(Open(), {0, 1});
  EXPECT_THAT(rows.features, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(rows.targets, ElementsAre(0.5, 0.25));
  options_["eval_path"] = options_["path"];
  EXPECT_EQ(Open().eval->size(), 2);
  const std::string weights = folder_.Write("w.npy", NpyBytes<float>("<f4", "(2,)", {7, 8}));
  options_["eval_weight_path"] = weights;
  ExpectError(StatusCode::kBadData, HasSubstr("see eval_target_path"));
  options_["weight_path"] = weights;
  options_["target"] = "";
  EXPECT_THAT(Read<float>(Open(), {0, 1}).targets, ElementsAre(2, 4)) << "the last but the weight";
}

}  // namespace
}  // namespace engine
