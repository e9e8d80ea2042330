# cmake -DPRINT=<print_bindings> -P check_abi_lock.cmake: fails when the layouts of the headers are not those that
# interfaces/abi.lock has for their ABI.
#
#   line = major "." minor " " interface " " layout       one for each interface; "#" begins a comment
#
# While the ABI is a draft (major 0) lines of its minor may change; those of an older minor never do.
execute_process(COMMAND "${PRINT}" lock OUTPUT_VARIABLE computed COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "^[0-9]+[.][0-9]+" version "${computed}")
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../interfaces/abi.lock" locked REGEX "^${version} ")
list(JOIN locked "\n" locked)
string(STRIP "${computed}" computed)
if(NOT locked STREQUAL computed)
  message(FATAL_ERROR "the layouts of ABI ${version} are not those of interfaces/abi.lock: if the change is meant, and "
    "no release has this minor, its lines are now:\n${computed}")
endif()
