# `cpack` makes the Debian packages engine (the program, plugins, configurations, documentation) and engine-dev (the
# component sdk). The component cuda is in neither: what its plugins load is not in Debian.

install(DIRECTORY configs DESTINATION "${CMAKE_INSTALL_DATADIR}/engine")
install(DIRECTORY docs/ DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The developers of engine <root@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL engine sdk)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_ENGINE_PACKAGE_NAME engine)
set(CPACK_DEBIAN_ENGINE_PACKAGE_SECTION science)
set(CPACK_COMPONENT_ENGINE_DESCRIPTION "data-parallel training in which everything is a plugin")
set(CPACK_DEBIAN_SDK_PACKAGE_NAME engine-dev)
set(CPACK_DEBIAN_SDK_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_SDK_PACKAGE_DEPENDS "engine (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_SDK_PACKAGE_RECOMMENDS "cmake, g++")
set(CPACK_COMPONENT_SDK_DESCRIPTION "headers, CMake package and conformance kit for plugins of engine")
include(CPack)
