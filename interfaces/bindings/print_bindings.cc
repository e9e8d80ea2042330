// print_bindings c|rust|lock: the plugin boundary for other languages, out of the C++ headers.
//
// c      a C11 header: every struct, enum and table of functions, with assertions that the author's
//        compiler lays them out as the engine does
// rust   the same as a Rust module
// lock   one line per interface, id and layout: interfaces/abi.lock
#include <array>
#include <cctype>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

#include "engine/ext/accelerator.h"
#include "engine/ext/class_names.h"
#include "engine/ext/grouped_transfers.h"
#include "engine/ext/initial_values.h"
#include "engine/ext/inner_plugins.h"
#include "engine/ext/link_cost.h"
#include "engine/ext/parameter_server.h"
#include "engine/ext/recorded_transfers.h"
#include "engine/ext/row_table.h"
#include "engine/ext/saved_state.h"
#include "engine/ext/shared_memory.h"
#include "engine/ext/sub_groups.h"
#include "engine/ext/wire_format.h"
#include "engine/ext/wire_progress.h"
#include "engine/plugin.h"

namespace engine {
namespace {

enum class Language { kC, kRust };

template <typename... T>
struct Types {};

using Enums =
    Types<StatusCode, DType, TensorContent, Split, OptionType, PluginKind, LogLevel, TransferKind,
          Reduction, WorkState, Lane, TaskKind, BucketStages, EventKind, ActionKind, TransferOrder,
          UpdateGate, HookStage, HookScope, Initializer, WireKind, UpdateMode>;
// Each after those that it holds.
using Structs =
    Types<TextView, StatusMessage, StatusValue, TableHead, ObjectHead, Shape, TensorView,
          TensorSpec, OptionSpec, OptionValue, LayerSpec, RankInfo, StepScalars, Transfer,
          CommunicatorTraits, TaskInfo, ParameterInfo, ModelInfo, BucketSpan, SchedulerEvent,
          Action, SchedulerTraits, OptimizerTraits, UpdateCall, ParameterSpec, OpSignature, OpCall,
          HookTraits, GradientView, SampleTensor, DatasetInfo, FillCall, ModelData, FlatSpan,
          FlatCall, LinkCost, ParameterTraits, ServedSpan, ServedBucket, ServedStep, WireTraits,
          WireCall, InnerPlugin, LayoutList, PluginHeader>;
using Interfaces =
    Types<Event, Stream, Device, Host, Work, Communicator, PlanSink, Scheduler, SpanUpdates,
          Optimizer, Replicas, Op, OpLibrary, GradientHook, Dataset, ModelBuilder, Model,
          FlatKernel, FlatMath, Recording, Accelerator, ClassNames, GroupedTransfers, InitialValues,
          InnerPlugins, LinkModel, ParameterClient, ParameterServer, RecordedTransfers, RowTable,
          SavedState, SharedMemory, SubGroups, WireFormat, WireProgress>;

template <typename... T, typename Do>
void ForEach(Types<T...>, Do act) {
  (act.template operator()<T>(), ...);
}

// "Transfer", out of what the compiler calls a function of it.
template <typename T>
std::string NameOf() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const size_t begin = text.find("T = ") + 4;
  const std::string_view name = text.substr(begin, text.find_first_of(";]", begin) - begin);
  return std::string(name.substr(name.rfind(':') + 1));
}
template <auto kValue>
std::string NameOfValue() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const size_t begin = text.find("kValue = "), end = text.find_first_of(";]", begin);
  const size_t colon = text.rfind("::k", end);
  return colon == text.npos || colon < begin ? ""
                                             : std::string(text.substr(colon + 3, end - colon - 3));
}

// "TransferKind" -> "TRANSFER_KIND", "BFloat16" -> "BFLOAT16"
std::string Capitals(const std::string& name) {
  std::string capitals;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool begins = i > 0 && std::isupper(name[i]) && std::islower(name[i - 1]);
    capitals.append(begins ? "_" : "").push_back(static_cast<char>(std::toupper(name[i])));
  }
  return capitals;
}

// A type as a declaration of `name` in the language.
template <typename T>
struct Declare {
  static std::string Type(Language language) {
    const bool c = language == Language::kC;
    if constexpr (std::is_void_v<T>)
      return c ? "void" : "c_void";
    else if constexpr (std::is_same_v<T, char>)
      return c ? "char" : "c_char";
    else if constexpr (std::is_same_v<T, float>)
      return c ? "float" : "f32";
    else if constexpr (std::is_same_v<T, double>)
      return c ? "double" : "f64";
    else if constexpr (std::is_integral_v<T>) {
      const std::string bits = std::to_string(sizeof(T) * 8);
      if (!c) return (std::is_signed_v<T> ? "i" : "u") + bits;
      return (std::is_signed_v<T> ? "int" : "uint") + bits + "_t";
    } else if constexpr (std::is_same_v<T, Options>) {
      return c ? "EngineArray" : "Array<OptionValue>";
    } else if constexpr (std::is_same_v<T, Status>) {
      return c ? "EngineStatusValue" : "StatusValue";
    } else {
      return (c ? "Engine" : "") + NameOf<T>();
    }
  }
  static std::string Field(Language language, const std::string& name) {
    return language == Language::kC ? Type(language) + " " + name : name + ": " + Type(language);
  }
};
template <typename T>
struct Declare<const T> : Declare<T> {};
template <typename T>
struct Declare<T*> {
  static std::string Type(Language language) {
    const std::string to = Declare<T>::Type(language);
    if (language == Language::kC) return (std::is_const_v<T> ? "const " : "") + to + "*";
    return (std::is_const_v<T> ? "*const " : "*mut ") + to;
  }
  static std::string Field(Language language, const std::string& name) {
    return language == Language::kC ? Type(language) + " " + name : name + ": " + Type(language);
  }
};
template <typename T>
struct Declare<T&> : Declare<T*> {};
template <typename T>
struct DeclareList {
  static std::string Of(Language language, const char* list) {
    if (language == Language::kC) return std::string("Engine") + list;
    return list + ("<" + Declare<std::remove_const_t<T>>::Type(language) + ">");
  }
};
template <typename T>
struct Declare<Span<T>> : Declare<void*> {
  static std::string Type(Language language) { return DeclareList<T>::Of(language, "Span"); }
  static std::string Field(Language language, const std::string& name) {
    if (language == Language::kRust) return name + ": " + Type(language);
    return Type(language) + " " + name + " /* " + Declare<T>::Type(language) + " */";
  }
};
template <typename T>
struct Declare<Array<T>> {
  static std::string Type(Language language) { return DeclareList<T>::Of(language, "Array"); }
  static std::string Field(Language language, const std::string& name) {
    if (language == Language::kRust) return name + ": " + Type(language);
    return Type(language) + " " + name + " /* " + Declare<T>::Type(language) + " */";
  }
};
template <typename T, size_t kSize>
struct Declare<T[kSize]> {
  static std::string Field(Language language, const std::string& name) {
    const std::string size = std::to_string(kSize);
    if (language == Language::kC) return Declare<T>::Field(language, name + "[" + size + "]");
    const std::string one = Declare<T>::Field(language, "");
    return name + ": [" + one.substr(2) + "; " + size + "]";
  }
};
template <size_t kSize>
struct Declare<FixedString<kSize>> : Declare<char[kSize]> {};
template <typename R, typename... P>
struct Declare<R (*)(P...) noexcept> {
  static std::string Field(Language language, const std::string& name) {
    std::string list;
    ((list += (list.empty() ? "" : ", ") + Declare<P>::Type(language)), ...);
    const std::string result = Declare<R>::Type(language);
    if (language == Language::kC) return result + " (*" + name + ")(" + list + ")";
    return name + ": Option<unsafe extern \"C\" fn(" + list + ")" +
           (std::is_void_v<R> ? "" : " -> " + result) + ">";
  }
  static std::string Type(Language language) {
    const std::string field = Field(language, "");
    return language == Language::kC ? field : field.substr(2);
  }
};
template <typename R, typename... P>
struct Declare<R (*)(P...)> : Declare<R (*)(P...) noexcept> {};

struct PrintFields {
  Language language;
  std::string type, fields, checks;
  template <typename F>
  void Field(const char* name, size_t offset) {
    // `type` is a word of Rust.
    const std::string called =
        language == Language::kRust && std::string(name) == "type" ? "r#type" : name;
    const std::string field = Declare<F>::Field(language, called);
    if (language == Language::kC) {
      fields += "  " + field + ";\n";
      checks +=
          "\n               && offsetof(" + type + ", " + name + ") == " + std::to_string(offset);
    } else {
      fields += "    pub " + field + ",\n";
    }
  }
};

void PrintStruct(Language language, const std::string& name, size_t size, auto&& visit) {
  PrintFields print{language, language == Language::kC ? "Engine" + name : name, {}, {}};
  visit(print);
  const char* const type = print.type.c_str();
  if (language == Language::kC) {
    std::printf(
        "struct %s {\n%s};\n_Static_assert(sizeof(%s) == %zu%s,\n               \"layout\");\n\n",
        type, print.fields.c_str(), type, size, print.checks.c_str());
  } else {
    std::printf(
        "#[repr(C)]\n#[derive(Clone, Copy)]\npub struct %s {\n%s}\n"
        "const _: () = assert!(size_of::<%s>() == %zu);\n\n",
        type, print.fields.c_str(), type, size);
  }
}

template <typename E, size_t... kValues>
void PrintEnum(Language language, std::index_sequence<kValues...>) {
  const bool c = language == Language::kC;
  const std::string type = Declare<std::underlying_type_t<E>>::Type(language), name = NameOf<E>();
  std::string text = c ? "typedef " + type + " Engine" + name + ";\nenum {\n"
                       : "pub type " + name + " = " + type + ";\n";
  const auto one = [&](const std::string& value, size_t number) {
    if (value.empty()) return;
    const std::string word = Capitals(name) + "_" + Capitals(value);
    text += c ? "  ENGINE_" + word : "pub const " + word + ": " + name;
    text += " = " + std::to_string(number) + (c ? ",\n" : ";\n");
  };
  (one(NameOfValue<static_cast<E>(kValues)>(), kValues), ...);
  std::puts((text + (c ? "};\n" : "")).c_str());
}

void PrintC() {
  std::puts(
      "// The plugin boundary of engine for C11, printed out of its C++ headers, which have the "
      "contracts:\n"
      "// the function Submit of Communicator is documented in engine/communicator.h, class\n"
      "// CommunicatorBase.\n#pragma once\n\n#include <stddef.h>\n#include <stdint.h>\n\n"
      "typedef struct EngineSpan { void* values; uint64_t count; } EngineSpan;\n"
      "typedef struct EngineArray { void* elements; uint32_t count, stride; } EngineArray;\n");
  const auto declare = []<typename T>() {
    std::printf("typedef struct Engine%s Engine%s;\n", NameOf<T>().c_str(), NameOf<T>().c_str());
  };
  std::puts("typedef struct EngineObject EngineObject;");
  ForEach(Structs(), declare);
  ForEach(Interfaces(), declare);
  std::puts("");
}

void PrintRust() {
  std::puts(
      "// The plugin boundary of engine, printed out of its C++ headers, which have the "
      "contracts.\n"
      "#![allow(non_snake_case, dead_code)]\nuse std::ffi::c_void;\n"
      "use std::mem::size_of;\nuse std::os::raw::c_char;\n\n"
      "#[repr(C)]\n#[derive(Clone, Copy)]\npub struct Span<T> {\n    pub values: *mut T,\n"
      "    pub count: u64,\n}\n\n#[repr(C)]\n#[derive(Clone, Copy)]\npub struct Array<T> {\n"
      "    pub elements: *mut T,\n    pub count: u32,\n    pub stride: u32,\n}\n");
}

template <typename X>
void PrintInterface(Language language) {
  const std::string name = NameOf<X>(), capitals = Capitals(name);
  const bool c = language == Language::kC;
  using Functions = crossing::FunctionsOf<X>;
  if (c) {
    std::printf("#define ENGINE_%s_ID \"%s\"\n#define ENGINE_%s_LAYOUT UINT64_C(0x%016" PRIx64
                ")\n"
                "typedef struct Engine%sFunctions Engine%sFunctions;\n"
                "struct Engine%s { const Engine%sFunctions* functions; };\n",
                capitals.c_str(), std::string(X::kId).c_str(), capitals.c_str(), kLayoutOf<X>,
                name.c_str(), name.c_str(), name.c_str(), name.c_str());
  } else {
    std::printf("pub const %s_ID: &str = \"%s\";\npub const %s_LAYOUT: u64 = 0x%016" PRIx64
                ";\n"
                "#[repr(C)]\npub struct %s {\n    pub functions: *const %sFunctions,\n}\n",
                capitals.c_str(), std::string(X::kId).c_str(), capitals.c_str(), kLayoutOf<X>,
                name.c_str(), name.c_str());
  }
  PrintStruct(language, name + "Functions", sizeof(Functions),
              [](PrintFields& print) { Functions::Visit(print); });
}

void PrintBindings(Language language) {
  const bool c = language == Language::kC;
  c ? PrintC() : PrintRust();
  ForEach(Enums(), [&]<typename E>() { PrintEnum<E>(language, std::make_index_sequence<24>()); });
  ForEach(Structs(), [&]<typename T>() {
    PrintStruct(language, NameOf<T>(), sizeof(T),
                [](PrintFields& print) { Fields<T>::Visit(print); });
  });
  std::puts(c ? "struct EngineObject { const EngineObjectHead* functions; };\n"
              : "#[repr(C)]\npub struct Object {\n    pub functions: *const ObjectHead,\n}\n");
  ForEach(Interfaces(), [&]<typename X>() { PrintInterface<X>(language); });
  std::printf(
      c ? "#define ENGINE_PLUGIN_MAGIC UINT64_C(%#" PRIx64
          ")\n#define ENGINE_ABI_MAJOR %d\n"
          "#define ENGINE_ABI_MINOR %d\n#define ENGINE_OPTIONS_LAYOUT UINT64_C(0x%016" PRIx64
          ")\n"
          "#define ENGINE_PLUGIN_SYMBOL engine_plugin_v%d\n"
        : "pub const PLUGIN_MAGIC: u64 = %#" PRIx64
          ";\npub const ABI_MAJOR: u16 = %d;\n"
          "pub const ABI_MINOR: u16 = %d;\npub const OPTIONS_LAYOUT: u64 = 0x%016" PRIx64 ";\n",
      kPluginMagic, ENGINE_ABI_MAJOR, kAbiMinor, kLayoutOf<Options>, ENGINE_ABI_MAJOR);
}

void PrintLock() {
  ForEach(Interfaces(), []<typename X>() {
    std::printf("%d.%d %s 0x%016" PRIx64 "\n", ENGINE_ABI_MAJOR, kAbiMinor,
                std::string(X::kId).c_str(), kLayoutOf<X>);
  });
  std::printf("%d.%d options 0x%016" PRIx64 "\n", ENGINE_ABI_MAJOR, kAbiMinor, kLayoutOf<Options>);
}

}  // namespace
}  // namespace engine

int main(int count, char** words) {
  const std::string_view what = count == 2 ? words[1] : "";
  if (what == "c")
    engine::PrintBindings(engine::Language::kC);
  else if (what == "rust")
    engine::PrintBindings(engine::Language::kRust);
  else if (what == "lock")
    engine::PrintLock();
  else
    return std::fputs("usage: print_bindings c|rust|lock\n", stderr), 2;
  return 0;
}
