// A second order of transfers: what a communicator may offer whose ranks must submit in one order
// (CommunicatorTraits::ordered).
#pragma once

#include <string_view>

namespace engine {

// Communicator::Query(kSecondOrderId) gives a Communicator or null, the same on all ranks of a run.
// It is of the same ranks, and its transfers are in an order of their own: none waits for one of
// the first order. It shares connections and fate with the first one, an Abort of either is one of
// both, and it lives as long.
constexpr std::string_view kSecondOrderId = "engine.second_order/1";

}  // namespace engine
