# engine_add_library(<name> [COLD] SOURCES ... LINK ... PRIVATE_LINK ...): one static library per folder, so that the
# layering of docs/architecture.md is also the layering of the linker. COLD: no step of training passes through it, so
# that a release build spends half the time on it (-O1).

set(library_headers <algorithm> <atomic> <chrono> <condition_variable> <cstdint> <cstdio> <cstring> <filesystem>
  <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <string_view> <thread> <unordered_map> <utility>
  <vector>)
set(cold_options "$<$<CONFIG:Release>:-O1>")
engine_precompile(library "" ${library_headers})
engine_precompile(cold "${cold_options}" ${library_headers})

function(engine_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "COLD" "" "SOURCES;LINK;PRIVATE_LINK")
  add_library(engine_${name} STATIC ${arg_SOURCES})
  target_include_directories(engine_${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(engine_${name} PUBLIC engine::interfaces ${arg_LINK} PRIVATE engine_flags ${arg_PRIVATE_LINK})
  if(arg_COLD)
    target_compile_options(engine_${name} PRIVATE ${cold_options})
    engine_use_precompiled(engine_${name} cold)
  else()
    engine_use_precompiled(engine_${name} library)
  endif()
endfunction()

# engine_add_proto(<name> <file from the root of the project>): target engine_<name>. The generated code is compiled
# without our warnings, and its header is a system header to others.
function(engine_add_proto name file)
  find_package(Protobuf 3.21 REQUIRED)
  set(out "${PROJECT_BINARY_DIR}/generated")
  string(REGEX REPLACE "\\.proto$" ".pb" stem "${out}/${file}")
  file(MAKE_DIRECTORY "${out}")
  add_custom_command(
    OUTPUT "${stem}.cc" "${stem}.h"
    COMMAND protobuf::protoc "--cpp_out=${out}" "-I${PROJECT_SOURCE_DIR}" ${file}
    DEPENDS "${PROJECT_SOURCE_DIR}/${file}" WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" VERBATIM)
  add_library(engine_${name} STATIC "${stem}.cc" "${stem}.h")
  set_target_properties(engine_${name} PROPERTIES UNITY_BUILD OFF)
  target_compile_features(engine_${name} PUBLIC cxx_std_20)
  target_include_directories(engine_${name} SYSTEM PUBLIC "${out}")
  target_link_libraries(engine_${name} PUBLIC protobuf::libprotobuf)
endfunction()
