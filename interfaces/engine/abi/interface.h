// From C++ classes to the C that crosses the plugin boundary, and back.
//
//   caller                            crosses                            implementer
//   class Optimizer: its functions -> table of C functions, whose     -> class OptimizerBase: virtual
//   call the table                    address is the object's            functions with the contract
//                                     first word
//
//   ENGINE_INTERFACE(Optimizer, Object, "engine.optimizer.draft/1", traits, Update);
//
// makes the class on the left, which everybody calls, and the table, whose functions are those of
// class OptimizerBase, by name, in the order of the list. That class follows and is the one to read.
//
// Rules of the boundary (docs/plugin_abi.md has the reasons):
//  * functions take and return numbers, pointers, and structs of ours with an ENGINE_LAYOUT;
//  * every function is noexcept; no exception, std::string, std::vector, std::function, shared_ptr
//    or allocator crosses; Status (status.h) is the only error path;
//  * an object is deleted in the library that made it: `delete` of an Object does so.
//
// Thread tags used on the functions of interfaces/:
//   [setup]         one thread, before the first step or after the last
//   [compute-lane]  the one thread that runs a rank's ops
//   [io-lane]       any thread, but never two at once for one object; the executor serialises calls
//   [any-thread]    any thread at any time
//
// In C the function Update of
//
//   virtual Status Update(const UpdateCall& call) noexcept = 0;
//   virtual OptimizerTraits traits() const noexcept = 0;
//
// is StatusValue (*Update)(void* self, const UpdateCall* call): `self` is a pointer to the first
// word, a reference a pointer, std::string_view a TextView, std::span a Span. A struct that is
// returned is written through a last argument: void (*traits)(void* self, OptimizerTraits* out).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "engine/abi/layout.h"
#include "engine/abi/view.h"
#include "engine/status.h"

namespace engine {

// What each table begins with.
struct TableHead {
  uint64_t struct_size;  // of the whole table
  uint64_t layout;       // kLayoutOf its interface, from whoever made the table
  // Layouts before it that are its beginning: who knows one of them may use this one.
  const uint64_t* older;
  uint64_t older_count;  // 0 until the interface grows
};
ENGINE_LAYOUT(TableHead, struct_size, layout, older, older_count);

// Specialise it when an interface grows at its end: the layouts that were released before.
template <typename X>
constexpr std::span<const uint64_t> kOlderLayouts = {};

// Whether who knows `layout` may use the table.
constexpr bool Speaks(const TableHead& head, uint64_t layout) noexcept {
  if (layout == head.layout) return true;
  for (uint64_t i = 0; i < head.older_count; ++i) {
    if (layout == head.older[i]) return true;
  }
  return false;
}

// What crosses: a pointer to a table. Everything else of an object is its maker's.
class Interface {
 public:
  using Head = TableHead;
  const TableHead& table() const noexcept { return *table_; }
  void set_table(const TableHead* table) noexcept { table_ = table; }

 protected:
  explicit Interface(const TableHead* table) noexcept : table_(table) {}
  Interface(const Interface&) = delete;
  Interface& operator=(const Interface&) = delete;

 private:
  const TableHead* table_;
};

ENGINE_LAYOUT(StatusMessage, struct_size, text, release);
ENGINE_LAYOUT(StatusValue, code, rank, message);
template <>
struct layout::Kind<Status> : Kind<StatusValue*> {};  // crosses by pointer as an argument

namespace crossing {

// How an argument or a result of C++ type T crosses (Type), and comes out on the other side. By
// value only what fits into two registers.
template <typename T>
struct Of {
  using Type = T;  // in the type of the C function
  static_assert(std::is_void_v<T> || (std::is_trivially_copyable_v<T> && sizeof(T) <= 16));
  T value;                                         // as it came over
  static T Pack(T from) noexcept { return from; }  // on the side that it comes from
  T get() const noexcept { return value; }         // on the side that gets it
};
template <>
struct Of<void> {
  using Type = void;
};
template <>
struct Of<Status> {
  using Type = StatusValue;
  StatusValue value;
  static StatusValue Pack(Status from) noexcept { return from.Release(); }
  Status get() const noexcept { return Status(value); }  // owns the message: to be called once
};
template <typename Std, typename Ours>
struct OfView {  // the two convert into each other; what they show stays where it is
  using Type = Ours;
  Ours value;
  static Ours Pack(Std from) noexcept { return from; }
  Std get() const noexcept { return value; }
};
template <>
struct Of<std::string_view> : OfView<std::string_view, TextView> {};
template <typename T>
struct Of<std::span<T>> : OfView<std::span<T>, Span<T>> {};

template <typename T>
struct Of<T&> {
  using Type = T*;  // never null
  T* value;
  static T* Pack(T& from) noexcept { return &from; }
  T& get() const noexcept { return *value; }
};
// A struct from a side that knows less of it gets what is missing from here; one from a side that
// knows more is cut, so that a copy of it says its own size.
template <typename T>
requires Sized<T>
struct Of<const T&> {
  using Type = const T*;
  const T* value;
  alignas(T) unsigned char own[sizeof(T)];  // for the copy: it lives as long as the call
  explicit Of(const T* from) noexcept : value(from) {
    if (from->struct_size == sizeof(T)) [[likely]]  // built with the same headers
      return;
    T* const copy = new (own) T();  // the defaults of the fields that did not come
    std::memcpy(static_cast<void*>(copy), from,
                from->struct_size < sizeof(T) ? from->struct_size : sizeof(T));
    copy->struct_size = sizeof(T);
    value = copy;
  }
  static const T* Pack(const T& from) noexcept { return &from; }
  const T& get() const noexcept { return *value; }
};
// One that is filled in for such a side.
template <typename T>
requires(Sized<T> && !std::is_const_v<T>) struct Of<T*> {
  using Type = T*;
  T* const value;   // what the function fills in
  T* const target;  // what the caller has
  alignas(T) unsigned char whole[sizeof(T)];
  explicit Of(T* to) noexcept
      : value(to->struct_size >= sizeof(T) ? to : new (whole) T()), target(to) {
    if (value != to) std::memcpy(static_cast<void*>(value), to, to->struct_size);
  }
  ~Of() {  // after the function: as much as the caller knows of
    if (value == target) return;
    value->struct_size = target->struct_size;
    std::memcpy(static_cast<void*>(target), value, target->struct_size);
  }
  static T* Pack(T* from) noexcept { return from; }
  T* get() const noexcept { return value; }
};

// Structs are returned through a last argument, but for small ones that do not grow.
template <typename R>
concept ByOut = HasFields<R> &&(Sized<R> || sizeof(R) > 16);

template <typename R>
void CopyOut(R from, R* to) noexcept {
  if constexpr (Sized<R>) {
    from.struct_size = sizeof(R);  // whatever the function wrote there
    if (to->struct_size < sizeof(R)) [[unlikely]] {
      from.struct_size = to->struct_size;  // the caller is older: no byte beyond its struct
      std::memcpy(static_cast<void*>(to), &from, from.struct_size);
      return;
    }
  }
  *to = from;
}

template <typename R, typename... P>
struct FunctionOf {
  using Type = typename Of<R>::Type (*)(void* self, typename Of<P>::Type...) noexcept;
};
template <typename R, typename... P>
requires ByOut<R>
struct FunctionOf<R, P...> {
  using Type = void (*)(void* self, typename Of<P>::Type..., R* out) noexcept;
};

// For a function that the table of an older library does not have.
template <typename R>
R Missing() noexcept {
  if constexpr (std::is_same_v<R, Status>) {
    return Status::Error(StatusCode::kUnsupported, "the plugin was built before this function was");
  } else {
    return R();
  }
}

template <typename X>
requires std::is_base_of_v<Interface, X>
void CompleteTable(X& object) noexcept;

template <typename T>
void Adopt(const T&) noexcept {}  // what is no object
// An object that comes from a library: its table is made whole if it is an older one's.
template <typename X>
requires std::is_base_of_v<Interface, X>
void Adopt(X* const& object) noexcept {
  if (object && object->table().struct_size <
                    sizeof(typename X::template FunctionTable<typename X::Base>)) [[unlikely]] {
    CompleteTable(*object);
  }
}
template <typename X>
requires std::is_base_of_v<Interface, X>
void Adopt(X** const& out) noexcept {  // one that a function made: Create(..., X** out)
  Adopt(*out);
}

template <auto kMethod, typename Type = decltype(kMethod)>
struct Method;
template <auto kMethod, typename R, typename B, typename... P>
struct Method<kMethod, R (B::*)(P...) noexcept> {
  using Result = R;
  using Parameters = std::tuple<P...>;
  using Function = typename FunctionOf<R, P...>::Type;

  static R Call(Function function, const Interface* object, P... arguments) noexcept {
    void* const self = const_cast<Interface*>(object);  // in C there is no const object
    if constexpr (std::is_void_v<R>) {
      function(self, Of<P>::Pack(arguments)...);
    } else if constexpr (ByOut<R>) {
      R result;  // has its defaults, and its size, before the call
      function(self, Of<P>::Pack(arguments)..., &result);
      return result;
    } else {
      Of<R> result{function(self, Of<P>::Pack(arguments)...)};
      if constexpr (std::is_same_v<R, Status>) {
        if (result.value.code == 0) (Adopt(arguments), ...);  // *out is written on success alone
      } else {
        Adopt(result.value);
      }
      return result.get();
    }
  }

  template <typename X>
  static constexpr Function Thunk() noexcept {  // the implementer: the C function of the table
    if constexpr (std::is_void_v<R>) {
      return [](void* self, typename Of<P>::Type... arguments) noexcept {
        (Self<X>(self).*kMethod)(Of<P>{arguments}.get()...);
      };
    } else if constexpr (ByOut<R>) {
      return [](void* self, typename Of<P>::Type... arguments, R* out) noexcept {
        CopyOut((Self<X>(self).*kMethod)(Of<P>{arguments}.get()...), out);
      };
    } else {
      return [](void* self, typename Of<P>::Type... arguments) noexcept {
        return Of<R>::Pack((Self<X>(self).*kMethod)(Of<P>{arguments}.get()...));
      };
    }
  }

  static constexpr Function Absent() noexcept {  // in place of one that an older table lacks
    if constexpr (std::is_void_v<R>) {
      return [](void*, typename Of<P>::Type...) noexcept {};
    } else if constexpr (ByOut<R>) {
      return [](void*, typename Of<P>::Type..., R* out) noexcept { CopyOut(R(), out); };
    } else if constexpr (std::is_reference_v<R>) {
      return nullptr;  // a function that is added later may not return one
    } else {
      return [](void*, typename Of<P>::Type...) noexcept { return Of<R>::Pack(Missing<R>()); };
    }
  }

 private:
  template <typename X>
  static B& Self(void* self) noexcept {  // the Interface in a B need not be its first word
    return static_cast<B&>(*static_cast<X*>(static_cast<Interface*>(self)));
  }
};
template <auto kMethod, typename R, typename B, typename... P>
struct Method<kMethod, R (B::*)(P...) const noexcept> : Method<kMethod, R (B::*)(P...) noexcept> {};

template <auto kMethod>
using Function = typename Method<kMethod>::Function;
template <auto kMethod, size_t kIndex>
using Parameter = std::tuple_element_t<kIndex, typename Method<kMethod>::Parameters>;
template <auto kMethod, size_t kCount>
requires(std::tuple_size_v<typename Method<kMethod>::Parameters> ==
         kCount) using Result = typename Method<kMethod>::Result;

}  // namespace crossing

// What every object of a plugin has: it can be asked for more, and deleted.
struct ObjectHead {
  TableHead head;
  void (*destroy)(void* self) noexcept;  // deletes it: nothing may be called on it afterwards
  // A pointer to the first word of the interface `id`, with a table that speaks `layout` (0: any),
  // or null. An object knows the id of its own interface.
  void* (*query)(void* self, TextView id, uint64_t layout) noexcept;
};
ENGINE_LAYOUT(ObjectHead, head, destroy, query);

class Object : public Interface {
 public:
  using Head = ObjectHead;

  // Any pointer to X is one to what it is the first word of.
  void* Query(std::string_view id, uint64_t layout) const noexcept {
    return functions().query(const_cast<Object*>(this), id, layout);
  }
  // delete: in the library that made it.
  static void operator delete(Object* object, std::destroying_delete_t) noexcept {
    object->functions().destroy(object);
  }

 protected:
  using Interface::Interface;

 private:
  const ObjectHead& functions() const noexcept {
    return reinterpret_cast<const ObjectHead&>(table());
  }
};

#define ENGINE_INTERFACE(Name, Parent, id, ...)                                           \
  class Name##Base;                                                                       \
  class Name : public Parent {                                                            \
   public:                                                                                \
    using Base = Name##Base;                                                              \
    static constexpr std::string_view kId = id;                                           \
    template <typename B>                                                                 \
    struct FunctionTable {                                                                \
      static constexpr std::string_view kId = id;                                         \
      using Self = FunctionTable;                                                         \
      typename Parent::Head head;                                                         \
      ENGINE_EACH(ENGINE_FUNCTION, __VA_ARGS__)                                           \
      template <typename Visitor>                                                         \
      static constexpr void Visit(Visitor& visitor) {                                     \
        ENGINE_EACH(ENGINE_VISIT_FIELD, head __VA_OPT__(, ) __VA_ARGS__)                  \
      }                                                                                   \
      template <typename X>                                                               \
      static constexpr FunctionTable Thunks(const typename Parent::Head& head) noexcept { \
        return {head __VA_OPT__(, ) ENGINE_EACH(ENGINE_THUNK, __VA_ARGS__)};              \
      }                                                                                   \
      static constexpr FunctionTable Absent() noexcept {                                  \
        return {{} __VA_OPT__(, ) ENGINE_EACH(ENGINE_ABSENT, __VA_ARGS__)};               \
      }                                                                                   \
    };                                                                                    \
    ENGINE_EACH(ENGINE_FORWARD, __VA_ARGS__)                                              \
   protected:                                                                             \
    using Parent::Parent;                                                                 \
  }
#define ENGINE_FUNCTION(function) ::engine::crossing::Function<&B::function> function;
#define ENGINE_THUNK(function) ::engine::crossing::Method<&B::function>::template Thunk<X>(),
#define ENGINE_ABSENT(function) ::engine::crossing::Method<&B::function>::Absent(),
// Overloads, of which the one fits that has as many parameters as the function.
#define ENGINE_FORWARD(f)                                                                          \
  ENGINE_CALL(f, , 0, this)                                                                        \
  ENGINE_CALL(f, ENGINE_P(f, 0) a, 1, this, a)                                                     \
  ENGINE_CALL(f, ENGINE_P(f, 0) a ENGINE_P2(f, 1) b, 2, this, a, b)                                \
  ENGINE_CALL(f, ENGINE_P(f, 0) a ENGINE_P2(f, 1) b ENGINE_P2(f, 2) c, 3, this, a, b, c)           \
  ENGINE_CALL(f, ENGINE_P(f, 0) a ENGINE_P2(f, 1) b ENGINE_P2(f, 2) c ENGINE_P2(f, 3) d, 4, this,  \
              a, b, c, d)                                                                          \
  ENGINE_CALL(                                                                                     \
      f, ENGINE_P(f, 0) a ENGINE_P2(f, 1) b ENGINE_P2(f, 2) c ENGINE_P2(f, 3) d ENGINE_P2(f, 4) e, \
      5, this, a, b, c, d, e)                                                                      \
  ENGINE_CALL(f,                                                                                   \
              ENGINE_P(f, 0) a ENGINE_P2(f, 1) b ENGINE_P2(f, 2) c ENGINE_P2(f, 3)                 \
                  d ENGINE_P2(f, 4) e ENGINE_P2(f, 5) g,                                           \
              6, this, a, b, c, d, e, g)
#define ENGINE_P(f, i) ::engine::crossing::Parameter<&B::f, i>
#define ENGINE_P2(f, i) , ENGINE_P(f, i)
#define ENGINE_CALL(f, parameters, count, ...)                                    \
  template <typename B = Base>                                                    \
  ::engine::crossing::Result<&B::f, count> f(parameters) const noexcept {         \
    return ::engine::crossing::Method<&B::f>::Call(                               \
        reinterpret_cast<const FunctionTable<B>&>(this->table()).f, __VA_ARGS__); \
  }

namespace crossing {

template <typename X>
using FunctionsOf = typename X::template FunctionTable<typename X::Base>;

template <typename X>
void Destroy(void* self) noexcept {  // runs in the library that made the object: its allocator
  delete static_cast<typename X::Base*>(static_cast<X*>(static_cast<Interface*>(self)));
}
template <typename X>
void* QueryFor(void* self, TextView id, uint64_t layout) noexcept {
  auto* const object = static_cast<X*>(static_cast<Interface*>(self));
  void* const found = id == X::kId ? object : static_cast<typename X::Base*>(object)->Query(id);
  if (!found || layout == 0) return found;  // 0: is there any? (its layout may be another)
  return Speaks(static_cast<Interface*>(found)->table(), layout) ? found : nullptr;
}

template <typename X>
constexpr FunctionsOf<X> MakeTable() noexcept {
  const TableHead head{sizeof(FunctionsOf<X>), kLayoutOf<X>, kOlderLayouts<X>.data(),
                       kOlderLayouts<X>.size()};
  if constexpr (std::is_base_of_v<Object, X>) {
    return FunctionsOf<X>::template Thunks<X>({head, Destroy<X>, QueryFor<X>});
  } else {
    return FunctionsOf<X>::template Thunks<X>(head);
  }
}
template <typename X>
constexpr FunctionsOf<X> kTable = MakeTable<X>();  // constant data of the library

// The table of an older library made whole: one for each such table, as long as the process lives.
template <typename X>
requires std::is_base_of_v<Interface, X>
void CompleteTable(X& object) noexcept {
  struct Whole {
    FunctionsOf<X> functions;  // the old ones, and Absent() for those that came later
    const TableHead* old;      // what it stands for
    Whole* next;
  };
  static std::atomic<Whole*> all = nullptr;  // a list that only grows, at its head
  const TableHead* const old = &object.table();
  Whole* whole = all.load();
  while (whole && whole->old != old) whole = whole->next;  // one that was made before
  if (!whole) {
    whole = new (std::nothrow) Whole{FunctionsOf<X>::Absent(), old, all.load()};
    if (!whole) return;  // out of memory
    std::memcpy(static_cast<void*>(&whole->functions), old, old->struct_size);
    reinterpret_cast<TableHead&>(whole->functions).struct_size = sizeof whole->functions;
    while (!all.compare_exchange_weak(whole->next, whole)) continue;  // two of one table do no harm
  }
  object.set_table(reinterpret_cast<const TableHead*>(&whole->functions));  // idempotent
}

}  // namespace crossing

// What a class XBase derives from: it is an X with the table of its virtual functions.
template <typename X>
class Implements : public X {
 protected:
  Implements() noexcept : X(reinterpret_cast<const TableHead*>(&crossing::kTable<X>)) {}
  ~Implements() = default;
};
template <typename X>
requires std::is_base_of_v<Object, X>
class Implements<X> : public X {
 public:
  virtual ~Implements() = default;
  // An extension of this object by its id: a pointer to its interface, or nullptr. Interfaces grow
  // by extensions. [any-thread]
  virtual void* Query(std::string_view id) noexcept {
    (void)id;
    return nullptr;
  }
  static void operator delete(void* memory) noexcept { ::operator delete(memory); }
  static void operator delete(void* memory, std::align_val_t alignment) noexcept {
    ::operator delete(memory, alignment);
  }

 protected:
  Implements() noexcept : X(reinterpret_cast<const TableHead*>(&crossing::kTable<X>)) {}
};

// For Query of an object that is its own extensions: the one of X... that has the id.
template <typename... X, typename Self>
void* Offer(std::string_view id, Self* self) noexcept {
  void* found = nullptr;
  ((id == X::kId ? void(found = static_cast<X*>(self)) : void()), ...);
  return found;
}

// The extension X of an object, or null. [any-thread]
template <typename X>
X* Query(const Object& object) noexcept {
  void* found = object.Query(X::kId, kLayoutOf<X>);
  for (size_t i = kOlderLayouts<X>.size(); !found && i-- > 0;) {
    found = object.Query(X::kId, kOlderLayouts<X>[i]);  // of an older library
  }
  auto* const extension = static_cast<X*>(static_cast<Interface*>(found));
  crossing::Adopt(extension);
  return extension;
}

}  // namespace engine
