# The identity of the plugin ABI: a hash of the contract headers without comments and white space.
#
#   include(abi_fingerprint) ; engine_abi_fingerprint(<folder of the headers> OUT_VAR)
#   cmake -DHEADERS=<folder> -P abi_fingerprint.cmake      prints it

# The contract headers below `folder`, relative to it, sorted.
function(engine_abi_headers folder out)
  get_filename_component(folder "${folder}" ABSOLUTE)
  file(GLOB headers RELATIVE "${folder}" "${folder}/*.h" "${folder}/ext/*.h")
  list(REMOVE_ITEM headers abi_minor.h)
  list(SORT headers)
  set(${out} "${headers}" PARENT_SCOPE)
endfunction()

function(engine_abi_fingerprint folder out)
  set(all "")
  engine_abi_headers("${folder}" headers)
  foreach(name IN LISTS headers)
    file(READ "${folder}/${name}" text)
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
