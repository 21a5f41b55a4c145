# SPDX-License-Identifier: Apache-2.0
# find_package(octavo): octavo::core, octavo::octavo. In a wheel the prefix is the Python package's own folder.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/octavo)

# Two exports: who wants octavo_core alone needs no torch.
install(TARGETS octavo_core EXPORT octavoCore LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT octavoCore NAMESPACE octavo:: FILE octavoCoreTargets.cmake DESTINATION ${package_dir})
if(TARGET octavo)
  install(TARGETS octavo EXPORT octavo LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT octavo NAMESPACE octavo:: FILE octavoTargets.cmake DESTINATION ${package_dir})
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/octavoTorch.cmake DESTINATION ${package_dir})
endif()

# The headers of every module, without the internal ones of the back ends, the torch device `sycl` and the Python module.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/octavo DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h"
  REGEX "/octavo/(kernels/[a-z]+|bindings|device/sycl)$" EXCLUDE)
set(device_headers devices memory registration)
list(TRANSFORM device_headers REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/octavo/device/sycl/\\1.h")
install(FILES ${device_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/octavo/device/sycl)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/octavoConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/octavoConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/octavoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/octavoConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/octavoConfigVersion.cmake
  DESTINATION ${package_dir})
