// What crosses the plugin boundary: between equal sides, and between one that was built before the
// other. The older side has its own classes in namespace `before`.
#include <gtest/gtest.h>

#include <memory>

#include "engine/abi/interface.h"
#include "engine/ext/wire_progress.h"
#include "engine/optimizer.h"
#include "engine/plugin.h"

namespace engine {

struct Order {
  uint64_t struct_size = sizeof(Order);
  int32_t number = 0;
  float weight = 1;
  int64_t added = 42;  // by the newer side
};
ENGINE_LAYOUT(Order, struct_size, number, weight, added);

ENGINE_INTERFACE(Kitchen, Object, "test.kitchen/1", Cook, Last, Name, Add, Later, Count);
class KitchenBase : public Implements<Kitchen> {
 public:
  virtual Status Cook(const Order& order, Span<float> out) noexcept = 0;
  virtual Order Last() const noexcept = 0;
  virtual std::string_view Name(std::string_view title) noexcept = 0;
  virtual Status Add(Order* order) noexcept = 0;
  // Of the newer side:
  virtual Status Later(int32_t number) noexcept = 0;
  virtual int64_t Count() const noexcept = 0;
};

namespace before {

struct Order {
  uint64_t struct_size = sizeof(Order);
  int32_t number = 0;
  float weight = 1;
};

ENGINE_INTERFACE(Kitchen, Object, "test.kitchen/1", Cook, Last, Name, Add);
class KitchenBase : public Implements<Kitchen> {
 public:
  virtual Status Cook(const Order& order, Span<float> out) noexcept = 0;
  virtual Order Last() const noexcept = 0;
  virtual std::string_view Name(std::string_view title) noexcept = 0;
  virtual Status Add(Order* order) noexcept = 0;
};

}  // namespace before

ENGINE_LAYOUT(before::Order, struct_size, number, weight);
constexpr uint64_t kBefore[] = {kLayoutOf<before::Kitchen>};
template <>
constexpr std::span<const uint64_t> kOlderLayouts<Kitchen> = kBefore;

namespace {

int ended = 0;

// Either side: `Base` and `Order` are those of a namespace.
template <typename Base, typename Order>
class Cooks : public Base {
 public:
  ~Cooks() override { ++ended; }
  Status Cook(const Order& order, Span<float> out) noexcept override {
    last_ = order;
    if (out.empty())
      return Status::Error(StatusCode::kBadData, "no plate for %d", order.number).WithRank(3);
    for (float& plate : out) plate += order.weight;
    return {};
  }
  Order Last() const noexcept override { return last_; }
  std::string_view Name(std::string_view title) noexcept override { return title.substr(1); }
  Status Add(Order* order) noexcept override {
    order->number += 5;
    return {};
  }

 protected:
  Order last_;
};

class NewCook final : public Cooks<KitchenBase, Order>, public WireProgressBase {
 public:
  void* Query(std::string_view id) noexcept override { return Offer<WireProgress>(id, this); }
  uint64_t bytes_moved() const noexcept override { return 7; }
  Status Later(int32_t number) noexcept override {
    last_.number = number;
    return {};
  }
  int64_t Count() const noexcept override { return last_.added; }
};
using OldCook = Cooks<before::KitchenBase, before::Order>;

TEST(Boundary, CallsCrossWithTheirArguments) {
  const std::unique_ptr<Kitchen> kitchen(new NewCook);
  float plates[] = {1, 2};
  EXPECT_TRUE(kitchen->Cook({.number = 1, .weight = 0.5f, .added = 9}, plates).ok());
  EXPECT_EQ(plates[0] + plates[1], 4);
  EXPECT_EQ(kitchen->Last().added, 9);
  EXPECT_EQ(kitchen->Name("Chef"), "hef");
  const Status status = kitchen->Cook({.number = 2}, {});
  EXPECT_EQ(status.code(), StatusCode::kBadData);
  EXPECT_EQ(status.rank(), 3);
  EXPECT_STREQ(status.message(), "no plate for 2");
  EXPECT_TRUE(kitchen->Later(8).ok());
  EXPECT_EQ(kitchen->Last().number, 8);
}

TEST(Boundary, DeletedWhereItWasMade) {
  const int before = ended;
  std::unique_ptr<Object> object(new NewCook);
  object.reset();
  std::unique_ptr<KitchenBase> derived(new NewCook);
  derived.reset();
  EXPECT_EQ(ended - before, 2);
}

TEST(Boundary, AnObjectKnowsItsRoleAndItsExtensions) {
  const std::unique_ptr<Object> object(new NewCook);
  EXPECT_NE(Query<Kitchen>(*object), nullptr);
  ASSERT_NE(Query<WireProgress>(*object), nullptr);
  EXPECT_EQ(Query<WireProgress>(*object)->bytes_moved(), 7u);
  EXPECT_EQ(Query<Optimizer>(*object), nullptr);
  EXPECT_EQ(object->Query(WireProgress::kId, 1234), nullptr);  // of nobody's layout
  EXPECT_NE(object->Query(WireProgress::kId, 0), nullptr);
}

// An engine of today with a plugin of before.
TEST(Boundary, WhatAnOlderSideDoesNotHaveIsAbsent) {
  const std::unique_ptr<Object> object(new OldCook);
  Kitchen* const kitchen = Query<Kitchen>(*object);
  ASSERT_NE(kitchen, nullptr);
  float plate[] = {0};
  EXPECT_TRUE(kitchen->Cook({.number = 4, .weight = 2}, plate).ok());
  EXPECT_EQ(plate[0], 2);
  const Order last = kitchen->Last();
  EXPECT_EQ(last.number, 4);
  EXPECT_EQ(last.struct_size, sizeof(before::Order));
  EXPECT_EQ(last.added, 42);
  EXPECT_EQ(kitchen->Later(1).code(), StatusCode::kUnsupported);
  EXPECT_EQ(kitchen->Count(), 0);
  // One whole table for all objects of the older one.
  const std::unique_ptr<Object> other(new OldCook);
  EXPECT_EQ(&Query<Kitchen>(*other)->table(), &kitchen->table());
}

// An engine of before with a plugin of today: it asks with its own layout and gives smaller structs.
TEST(Boundary, ANewerSideGetsDefaultsForWhatIsMissing) {
  const std::unique_ptr<Object> object(new NewCook);
  auto* const kitchen = Query<before::Kitchen>(*object);
  ASSERT_NE(kitchen, nullptr);
  EXPECT_EQ(kitchen->Cook({.number = 6}, {}).code(), StatusCode::kBadData);
  EXPECT_EQ(kitchen->Last().number, 6);
  EXPECT_EQ(Query<Kitchen>(*object)->Count(), 42);
  // What is behind the smaller struct stays untouched.
  struct {
    before::Order order;
    int64_t behind = -1;
  } place;
  EXPECT_TRUE(kitchen->Add(&place.order).ok());
  EXPECT_EQ(place.order.number, 5);
  EXPECT_EQ(place.order.struct_size, sizeof(before::Order));
  EXPECT_EQ(place.behind, -1);
}

TEST(Boundary, ElementsOfAnArrayMayBeLarger) {
  const Order orders[] = {{.number = 1}, {.number = 2}, {.number = 3}};
  Array<const before::Order> seen;
  seen.elements = reinterpret_cast<const before::Order*>(orders);
  seen.count = 3;
  seen.stride = sizeof(Order);
  int32_t sum = 0;
  for (const before::Order& order : seen.subspan(1)) sum += order.number;
  EXPECT_EQ(sum, 5);
}

TEST(Boundary, AnErrorIsNeverOk) {
  EXPECT_EQ(Status::Error(StatusCode::kOk, "x").code(), StatusCode::kInternal);
}

// Static messages of C are not freed.
TEST(Boundary, AMessageIsReleasedByItsMaker) {
  static int released = 0;
  StatusMessage message{.text = "text", .release = [](StatusMessage*) noexcept { ++released; }};
  {
    const Status status(StatusValue{5, -1, &message});
    const Status copy = status;
    EXPECT_STREQ(copy.message(), "text");
  }
  EXPECT_EQ(released, 1);
  StatusMessage forever{.text = "static"};
  EXPECT_STREQ(Status(StatusValue{5, -1, &forever}).message(), "static");
}

namespace one {
struct S {
  float a;
  int32_t b;
};
}  // namespace one
namespace two {
struct S {
  double a;
  int32_t b;
};
}  // namespace two
namespace three {
struct S {
  int32_t b;
  float a;
};
}  // namespace three

}  // namespace

ENGINE_LAYOUT(one::S, a, b);
ENGINE_LAYOUT(two::S, a, b);
ENGINE_LAYOUT(three::S, b, a);

namespace {

ENGINE_INTERFACE(Forth, Interface, "test/1", F, G);
class ForthBase : public Implements<Forth> {
 public:
  virtual void F() noexcept = 0;
  virtual void G() noexcept = 0;

 protected:
  ~ForthBase() = default;
};
namespace swapped {
ENGINE_INTERFACE(Forth, Interface, "test/1", G, F);
class ForthBase : public Implements<Forth> {
 public:
  virtual void F() noexcept = 0;
  virtual void G() noexcept = 0;

 protected:
  ~ForthBase() = default;
};
}  // namespace swapped

TEST(Layout, SeesTypesAndOrder) {
  EXPECT_NE(kLayoutOf<one::S>, kLayoutOf<two::S>);
  EXPECT_NE(kLayoutOf<one::S>, kLayoutOf<three::S>);
  EXPECT_NE(kLayoutOf<Forth>, kLayoutOf<swapped::Forth>);
}

}  // namespace
}  // namespace engine
