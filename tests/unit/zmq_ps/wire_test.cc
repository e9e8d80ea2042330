#include "wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "engine/host.h"

namespace engine::zmq_ps {
namespace {

Header SomePush() {
  return {.kind = MessageKind::kPush,
          .worker = 2,
          .world_size = 3,
          .slice = 1,
          .request = 17,
          .key = ~uint64_t{0},
          .round = 4,
          .sequence = 99,
          .timeout_ms = 30000,
          .priority = -5,
          .spec = {.operation = Operation::kReduceScatter,
                   .dtype = DType::kBFloat16,
                   .reduction = Reduction::kMax,
                   .owner = 1,
                   .slices = 6,
                   .offset = 1000,
                   .count = 500,
                   .total = 1000},
          .served = {.step = 12, .weight = 17, .rows = 5}};
}

const char* Objection(const Header& header) {
  Header read;
  return Decode(Encode(header), &read);
}

TEST(Wire, AHeaderComesBackAsItWas) {
  const Header push = SomePush();
  Header read;
  ASSERT_EQ(Decode(Encode(push), &read), nullptr);
  EXPECT_EQ(std::memcmp(&read, &push, sizeof(push)), 0);
}

TEST(Wire, AStatusComesBackAsItWas) {
  const Status status =
      Status::Error(StatusCode::kPeerLost, "rank 2: %s", "gone").WithRank(ServerId(1));
  for (const MessageKind kind : {MessageKind::kRefusal, MessageKind::kLeave}) {
    const Message message = Compose({.kind = kind}, status);
    Header read;
    ASSERT_EQ(Decode(message.header, &read), nullptr);
    const Status copy = StatusOf(read, message.body);
    EXPECT_EQ(copy.code(), status.code());
    EXPECT_EQ(copy.rank(), status.rank());
    EXPECT_STREQ(copy.message(), status.message());
  }
}

TEST(Wire, NumbersOutOfBoundsAreRefused) {
  ASSERT_EQ(Objection(SomePush()), nullptr);
  const std::function<void(Header&)> changes[] = {
      [](Header& h) { h.version = kWireVersion + 1; },
      [](Header& h) { h.kind = static_cast<MessageKind>(0); },
      [](Header& h) { h.kind = static_cast<MessageKind>(9); },
      [](Header& h) { h.worker = 3; },
      [](Header& h) { h.world_size = 0; },
      [](Header& h) { h.world_size = kMaxWorkers + 1; },
      [](Header& h) { h.incarnation = ~0u; },
      [](Header& h) { h.request = 0; },
      [](Header& h) { h.round = 0; },
      [](Header& h) { h.slice = 6; },
      [](Header& h) { h.spec.slices = 0; },
      [](Header& h) { h.spec.slices = kMaxSlices + 1; },
      [](Header& h) { h.spec.operation = static_cast<Operation>(11); },
      [](Header& h) { h.spec.dtype = static_cast<DType>(5); },
      [](Header& h) { h.spec.dtype = static_cast<DType>(-1); },
      [](Header& h) { h.spec.reduction = static_cast<Reduction>(3); },
      [](Header& h) { h.spec.root = 3; },
      [](Header& h) { h.spec.owner = 3; },
      [](Header& h) { h.spec.total = kMaxElements + 1; },
      [](Header& h) { h.spec.total = ~uint64_t{0} / 3 + 1; },
      [](Header& h) { h.spec.count = 1001; },
      [](Header& h) { h.spec.offset = 2501; },
      [](Header& h) { h.spec.offset = ~uint64_t{0} - 400; },
      [](Header& h) { h.spec.operation = Operation::kAllReduce; },  // has no second part
      [](Header& h) { h.spec.operation = Operation::kPush; },       // of another dtype
      [](Header& h) { h.timeout_ms = int64_t{1} << 60; },
      [](Header& h) { h.timeout_ms = -1; },
      [](Header& h) { h.kind = MessageKind::kLeave; },  // without a reason
      [](Header& h) { h = {.kind = MessageKind::kLeave, .code = static_cast<StatusCode>(99)}; },
      [](Header& h) {
        h = {.kind = MessageKind::kLeave, .code = StatusCode::kAborted, .blamed = 1 << 20};
      },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    Header header = SomePush();
    changes[i](header);
    EXPECT_NE(Objection(header), nullptr) << "change " << i;
  }
  Header read;
  EXPECT_NE(Decode(::zmq::message_t(std::string(sizeof(Header) + 1, '\0')), &read), nullptr);
  EXPECT_NE(Decode(::zmq::message_t(), &read), nullptr);
}

}  // namespace
}  // namespace engine::zmq_ps
