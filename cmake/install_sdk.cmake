# The component `sdk` of the installation: the contract headers, the CMake package `engine`, and what
# plugins begin with.
#
#   cmake --install <build> --component sdk --prefix <prefix>

include(CMakePackageConfigHelpers)

set(sdk_headers "${PROJECT_SOURCE_DIR}/interfaces/engine" "${PROJECT_SOURCE_DIR}/interfaces/kit")
set(sdk_include_dir "${CMAKE_INSTALL_INCLUDEDIR}/engine-sdk")
set(sdk_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/engine")

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/engineConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/engineConfig.cmake"
  INSTALL_DESTINATION "${sdk_package_dir}" PATH_VARS CMAKE_INSTALL_PREFIX)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/engineConfigVersion.cmake" COMPATIBILITY SameMajorVersion)

install(TARGETS engine_interfaces engine_kit EXPORT engineTargets COMPONENT sdk)
install(EXPORT engineTargets NAMESPACE engine:: DESTINATION "${sdk_package_dir}" COMPONENT sdk)
install(DIRECTORY ${sdk_headers} DESTINATION "${sdk_include_dir}" COMPONENT sdk FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_BINARY_DIR}/interfaces/bindings/engine/engine.h"
  DESTINATION "${sdk_include_dir}/engine" COMPONENT sdk)
install(FILES "${PROJECT_BINARY_DIR}/interfaces/bindings/engine.rs"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/engine/rust" COMPONENT sdk)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/app/author/templates" "${PROJECT_BINARY_DIR}/app/author/templates"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/engine" COMPONENT sdk)
install(FILES
  "${PROJECT_BINARY_DIR}/engineConfig.cmake"
  "${PROJECT_BINARY_DIR}/engineConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/engine_add_plugin.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/plugin.map.in"
  DESTINATION "${sdk_package_dir}" COMPONENT sdk)
