#include "wire.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

#include "engine/host.h"

namespace engine::zmq_ps {
namespace {

Header SomePush() {
  return {.kind = MessageKind::kPush,
          .worker = 2,
          .world_size = 3,
          .request = 17,
          .key = ~uint64_t{0},
          .round = 4,
          .slice = 1,
          .spec = {.operation = Operation::kReduceScatter,
                   .dtype = DType::kBFloat16,
                   .reduction = Reduction::kMax,
                   .root = 0,
                   .owner = 1,
                   .slices = 6,
                   .offset = 1000,
                   .count = 500,
                   .total = 1000},
          .priority = -5,
          .timeout_ms = 30000,
          .sequence = 99};
}

const char* Read(const std::string& bytes, Header* out) {
  return Decode({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, out);
}

const char* Objection(const Header& header) {
  std::string bytes;
  Encode(header, &bytes);
  Header read;
  return Read(bytes, &read);
}

TEST(Wire, APushComesBackAsItWas) {
  const Header push = SomePush();
  std::string bytes;
  Encode(push, &bytes);
  EXPECT_LE(bytes.size(), 80u) << "a header is small";
  Header read;
  ASSERT_EQ(Read(bytes, &read), nullptr);
  EXPECT_EQ(read.kind, push.kind);
  EXPECT_EQ(read.worker, push.worker);
  EXPECT_EQ(read.world_size, push.world_size);
  EXPECT_EQ(read.request, push.request);
  EXPECT_EQ(read.key, push.key);
  EXPECT_EQ(read.round, push.round);
  EXPECT_EQ(read.slice, push.slice);
  EXPECT_EQ(read.spec, push.spec);
  EXPECT_EQ(read.priority, push.priority);
  EXPECT_EQ(read.timeout_ms, push.timeout_ms);
  EXPECT_EQ(read.sequence, push.sequence);
}

TEST(Wire, ARefusalCarriesAStatus) {
  const Status status = Status::Error(StatusCode::kPeerLost, "rank 3 is gone").WithRank(3);
  std::string bytes;
  Encode({.kind = MessageKind::kRefusal, .request = 8, .status = status}, &bytes);
  Header read;
  ASSERT_EQ(Read(bytes, &read), nullptr);
  EXPECT_EQ(read.request, 8u);
  EXPECT_EQ(read.status.code(), StatusCode::kPeerLost);
  EXPECT_EQ(read.status.rank(), 3);
  EXPECT_STREQ(read.status.message(), "rank 3 is gone");
}

TEST(Wire, ListsOfRequestsComeBack) {
  for (const MessageKind kind : {MessageKind::kAck, MessageKind::kProbe, MessageKind::kMissing}) {
    const std::vector<uint64_t> requests = {1, 2, uint64_t{1} << 40};
    std::string bytes;
    Encode({.kind = kind, .requests = requests}, &bytes);
    Header read;
    ASSERT_EQ(Read(bytes, &read), nullptr);
    EXPECT_EQ(read.kind, kind);
    EXPECT_EQ(read.requests, requests);
  }
}

TEST(Wire, NumbersOutOfBoundsAreRefused) {
  ASSERT_EQ(Objection(SomePush()), nullptr);
  const std::function<void(Header&)> changes[] = {
      [](Header& h) { h.kind = static_cast<MessageKind>(0); },
      [](Header& h) { h.kind = static_cast<MessageKind>(10); },
      [](Header& h) { h.worker = 3; },
      [](Header& h) { h.world_size = 0; },
      [](Header& h) { h.world_size = kMaxWorkers + 1; },
      [](Header& h) { h.request = 0; },
      [](Header& h) { h.round = 0; },
      [](Header& h) { h.slice = 6; },
      [](Header& h) { h.spec.slices = 0; },
      [](Header& h) { h.spec.slices = kMaxSlices + 1; },
      [](Header& h) { h.spec.operation = static_cast<Operation>(11); },
      [](Header& h) { h.spec.dtype = static_cast<DType>(5); },
      [](Header& h) { h.spec.reduction = static_cast<Reduction>(3); },
      [](Header& h) { h.spec.root = 3; },
      [](Header& h) { h.spec.owner = 3; },
      [](Header& h) { h.spec.total = kMaxElements + 1; },
      [](Header& h) { h.spec.count = 1001; },
      [](Header& h) { h.spec.offset = 2501; },
      [](Header& h) { h.spec.offset = ~uint64_t{0} - 400; },
      [](Header& h) { h.spec.operation = Operation::kAllReduce; },  // has no second part
      [](Header& h) { h.timeout_ms = int64_t{1} << 60; },
      [](Header& h) { h.requests.assign(kMaxRequestsPerHeader + 1, 1); },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    Header header = SomePush();
    changes[i](header);
    EXPECT_NE(Objection(header), nullptr) << "change " << i;
  }
  EXPECT_NE(Objection({.kind = MessageKind::kLeave}), nullptr) << "a refusal needs a reason";
  const Status strange = Status::Error(static_cast<StatusCode>(99), "?");
  EXPECT_NE(Objection({.kind = MessageKind::kLeave, .status = strange}), nullptr);
}

Header SomeServedPush() {
  Header push = SomePush();
  push.incarnation = 3;
  push.spec.operation = Operation::kPush;
  push.spec.dtype = DType::kFloat32;
  push.spec.offset = 400;
  push.served = {.step = 12,
                 .learning_rate = 0.5f,
                 .weight = 17,
                 .state = 2,
                 .row = 100,
                 .sparse = true,
                 .rows = 5};
  return push;
}

TEST(Wire, WhatIsAboutParametersComesBackAsItWas) {
  for (const uint32_t rows : {0u, 5u}) {
    Header push = SomeServedPush();
    push.served.rows = rows;
    std::string bytes;
    Encode(push, &bytes);
    EXPECT_LE(bytes.size(), 100u) << "a header is small";
    Header read;
    ASSERT_EQ(Read(bytes, &read), nullptr);
    EXPECT_EQ(read.served, push.served);
    EXPECT_EQ(read.spec, push.spec);
    EXPECT_EQ(read.incarnation, 3u);
  }
  const Status lost = Status::Error(StatusCode::kPeerLost, "gone").WithRank(BlameServer(7));
  std::string bytes;
  Encode({.kind = MessageKind::kRefusal, .status = lost}, &bytes);
  Header read;
  ASSERT_EQ(Read(bytes, &read), nullptr);
  EXPECT_EQ(BlamedServer(read.status.rank()), 7);
}

TEST(Wire, NumbersAboutParametersOutOfBoundsAreRefused) {
  ASSERT_EQ(Objection(SomeServedPush()), nullptr);
  const std::function<void(Header&)> changes[] = {
      [](Header& h) { h.incarnation = kMaxIncarnation + 1; },
      [](Header& h) { h.key = 0; },
      [](Header& h) { h.spec.dtype = DType::kBFloat16; },
      [](Header& h) { h.served.step = kMaxStep + 1; },
      [](Header& h) { h.served.learning_rate = std::numeric_limits<float>::quiet_NaN(); },
      [](Header& h) { h.served.weight = std::numeric_limits<float>::infinity(); },
      [](Header& h) { h.served.weight = -1; },
      [](Header& h) { h.served.state = kMaxOptimizerStates; },
      [](Header& h) { h.served.row = 1001; },
      [](Header& h) { h.served.rows = 501; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    Header header = SomeServedPush();
    changes[i](header);
    EXPECT_NE(Objection(header), nullptr) << "change " << i;
  }
  const Status nobody =
      Status::Error(StatusCode::kPeerLost, "gone").WithRank(BlameServer(kMaxWorkers) - 1);
  EXPECT_NE(Objection({.kind = MessageKind::kLeave, .status = nobody}), nullptr);
}

TEST(Wire, LongHeadersAreRefusedUnread) {
  Header header;
  EXPECT_NE(Read(std::string(kMaxHeaderBytes + 1, '\0'), &header), nullptr);
}

// Whatever is accepted keeps the bounds that servers rely on.
TEST(Wire, ChangedBytesAreRefusedOrWithinBounds) {
  const unsigned seed = 7;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::string bytes;
  Encode(SomePush(), &bytes);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string changed = bytes;
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) changed.resize(random() % changed.size());
    Header header;
    if (Read(changed, &header)) {
      ++refused;
      continue;
    }
    ++accepted;
    EXPECT_LT(header.worker, header.world_size);
    if (header.kind != MessageKind::kPush && header.kind != MessageKind::kAnswer) continue;
    EXPECT_LT(header.slice, header.spec.slices);
    EXPECT_LE(header.spec.count, header.spec.total);
    EXPECT_LE(header.spec.offset + header.spec.count, header.spec.total * header.world_size);
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace engine::zmq_ps
