# Warnings, sanitizers and optimisation of this repository's own code (an INTERFACE target, never global).

set(ENGINE_SANITIZE "" CACHE STRING "Sanitizers to build with: '', 'address,undefined' or 'thread'")
option(ENGINE_WERROR "Treat warnings as errors" OFF)

add_library(engine_flags INTERFACE)
target_compile_features(engine_flags INTERFACE cxx_std_20)
set(warnings -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers)  # members have defaults
target_compile_options(engine_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
if(ENGINE_WERROR)
  target_compile_options(engine_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>")
endif()
if(ENGINE_SANITIZE)
  set(sanitizers -fsanitize=${ENGINE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(engine_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${sanitizers}>")
  # Instrumented, std::regex of g++ 12 warns of itself; and it warns that tsan does not see fences.
  target_compile_options(engine_flags INTERFACE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized;-Wno-tsan>")
  target_link_options(engine_flags INTERFACE -fsanitize=${ENGINE_SANITIZE})
endif()
