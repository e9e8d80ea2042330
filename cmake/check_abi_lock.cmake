# cmake -P check_abi_lock.cmake: fails when the contract headers are not those of interfaces/abi.lock.
#
#   lock = { comment | line }        comment starts with '#'
#   line = major "." minor " " fingerprint [" draft"]
#
# The last line is the ABI of the headers as they are. A line without `draft` has been released and stays.

include("${CMAKE_CURRENT_LIST_DIR}/abi_fingerprint.cmake")
get_filename_component(interfaces "${CMAKE_CURRENT_LIST_DIR}/../interfaces" ABSOLUTE)
engine_abi_fingerprint("${interfaces}/engine" fingerprint)

file(READ "${interfaces}/engine/plugin.h" header)
string(REGEX MATCH "#define ENGINE_ABI_MAJOR ([0-9]+)" unused "${header}")
set(version "${CMAKE_MATCH_1}")
file(READ "${interfaces}/engine/abi_minor.h" header)
string(REGEX MATCH "kAbiMinor = ([0-9]+);" unused "${header}")
string(APPEND version ".${CMAKE_MATCH_1}")

file(STRINGS "${interfaces}/abi.lock" lines REGEX "^[^#]")
list(GET lines -1 last)
if(NOT last MATCHES "^([0-9]+\\.[0-9]+) (0x[0-9a-f]+)( draft)?$")
  message(FATAL_ERROR "interfaces/abi.lock: '${last}' is not 'MAJOR.MINOR 0xFINGERPRINT [draft]'")
endif()
set(locked_version "${CMAKE_MATCH_1}")
set(locked_fingerprint "${CMAKE_MATCH_2}")
set(draft "${CMAKE_MATCH_3}")

if(locked_version STREQUAL version AND locked_fingerprint STREQUAL fingerprint)
  return()
endif()
if(draft AND locked_version STREQUAL version)
  message(FATAL_ERROR
    "The contract headers changed: every plugin has to be rebuilt. ABI ${version} is still a draft, so if the "
    "change is meant, make this the last line of interfaces/abi.lock:\n${version} ${fingerprint} draft")
endif()
if(NOT locked_version STREQUAL version)
  message(FATAL_ERROR
    "interfaces/abi.lock ends with ABI ${locked_version}, but plugin.h says ${version}: append the line\n"
    "${version} ${fingerprint} draft")
endif()
message(FATAL_ERROR
  "The contract headers changed, but ABI ${version} is released and plugins rely on it. Undo the change, or raise "
  "ENGINE_ABI_MAJOR and ENGINE_PLUGIN_SYMBOL in plugin.h and append the line of the new ABI to interfaces/abi.lock.")
