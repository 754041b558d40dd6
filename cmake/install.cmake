# What `cmake --install` puts where: library, headers, find_package(flashmask) and pkg-config files. All of it may be moved.
set(FM_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/flashmask)

set(CMAKE_INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR}) # the command line finds the library beside it

install(TARGETS flashmask EXPORT flashmaskTargets)
install(DIRECTORY include/flashmask TYPE INCLUDE)

install(EXPORT flashmaskTargets NAMESPACE flashmask:: DESTINATION ${FM_CMAKE_DIR})
configure_package_config_file(cmake/flashmaskConfig.cmake.in ${PROJECT_BINARY_DIR}/flashmaskConfig.cmake
                              INSTALL_DESTINATION ${FM_CMAKE_DIR})
# Before 1.0 a minor version may break callers.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/flashmaskConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/flashmaskConfig.cmake ${PROJECT_BINARY_DIR}/flashmaskConfigVersion.cmake
        DESTINATION ${FM_CMAKE_DIR})

file(RELATIVE_PATH FM_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/flashmask.pc.in ${PROJECT_BINARY_DIR}/flashmask.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/flashmask.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The Python package finds the library beside itself. A wheel has no links, so the file takes the plain name.
if(SKBUILD)
  install(FILES $<TARGET_FILE:flashmask> DESTINATION flashmask RENAME libflashmask${CMAKE_SHARED_LIBRARY_SUFFIX} COMPONENT python)
endif()
