// The base of everything that crosses the plugin boundary.
//
// Rules of the boundary (docs/plugin_abi.md has the reasons):
//  * signatures hold plain structs of ours, fixed-width integers, std::span and std::string_view;
//  * every function is noexcept; no exception, std::string, std::vector, std::function, shared_ptr
//    or allocator crosses; Status (status.h) is the only error path;
//  * an object is deleted through its virtual destructor, which runs in the library that made it.
//
// Thread tags used on the functions of interfaces/:
//   [setup]         one thread, before the first step or after the last
//   [compute-lane]  the one thread that runs a rank's ops
//   [io-lane]       any thread, but never two at once for one object; the executor serialises calls
//   [any-thread]    any thread at any time
#pragma once

#include <string_view>

namespace engine {

class Object {
 public:
  virtual ~Object() = default;

  // An optional extension of this object by its identifier ("engine.wire_progress/1"), or nullptr.
  // Interfaces grow by extensions, never by new virtual functions. [any-thread]
  virtual void* Query(std::string_view id) noexcept {
    (void)id;
    return nullptr;
  }

 protected:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
};

}  // namespace engine
