# The identity of the plugin ABI: a hash of the contract headers without comments and white space.
#
#   include(abi_fingerprint) ; engine_abi_fingerprint(<folder of the headers> OUT_VAR)
#   cmake -DHEADERS=<folder> -P abi_fingerprint.cmake      prints it

set(ENGINE_ABI_HEADERS
    object status tensor options host device communicator op optimizer parameter_server gradient_hook scheduler
    plugin)

function(engine_abi_fingerprint folder out)
  set(all "")
  foreach(name IN LISTS ENGINE_ABI_HEADERS)
    file(READ "${folder}/${name}.h" text)
    string(REGEX REPLACE "//[^\n]*" "" text "${text}")
    string(REGEX REPLACE "[ \t\r\n]+" "" text "${text}")
    string(APPEND all "${name}:${text}")
  endforeach()
  string(SHA256 hash "${all}")
  string(SUBSTRING "${hash}" 0 16 hash)
  set(${out} "0x${hash}" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  engine_abi_fingerprint("${HEADERS}" fingerprint)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "${fingerprint}")
endif()
