# Everything the tree takes from outside. Debian packages, except libtorch and google.rpc, which are wheels.
find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(CURL REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(SYNCOPATE_PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(SYNCOPATE_MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd)
find_package(GTest REQUIRED)
find_package(benchmark CONFIG REQUIRED)

file(GLOB SYNCOPATE_SITE_PACKAGES "${SYNCOPATE_VENV}/lib/python3*/site-packages")
if(NOT SYNCOPATE_SITE_PACKAGES)
  message(FATAL_ERROR "No wheels under ${SYNCOPATE_VENV}. Run scripts/bootstrap.sh, or set SYNCOPATE_VENV.")
endif()
list(GET SYNCOPATE_SITE_PACKAGES 0 SYNCOPATE_SITE_PACKAGES)

# The wheel's own CMake package asks for a CUDA toolkit even for CPU use, so its libraries are imported here.
if(SYNCOPATE_TORCH)
  set(SYNCOPATE_TORCH_DIR "${SYNCOPATE_SITE_PACKAGES}/torch")
  file(GLOB SYNCOPATE_CUDART_DIR "${SYNCOPATE_SITE_PACKAGES}/nvidia/cu13/lib")
  if(NOT EXISTS "${SYNCOPATE_TORCH_DIR}/lib/libtorch_cpu.so" OR NOT SYNCOPATE_CUDART_DIR)
    message(FATAL_ERROR "libtorch is not in ${SYNCOPATE_SITE_PACKAGES}. Run scripts/bootstrap.sh.")
  endif()
  add_library(syncopate_libtorch INTERFACE)
  target_include_directories(syncopate_libtorch SYSTEM INTERFACE "${SYNCOPATE_TORCH_DIR}/include")
  target_link_directories(syncopate_libtorch INTERFACE "${SYNCOPATE_TORCH_DIR}/lib" "${SYNCOPATE_CUDART_DIR}")
  target_link_libraries(syncopate_libtorch INTERFACE torch_cpu c10)
  target_link_options(syncopate_libtorch INTERFACE
    "-Wl,-rpath,${SYNCOPATE_TORCH_DIR}/lib" "-Wl,-rpath,${SYNCOPATE_CUDART_DIR}"
    "-Wl,-rpath-link,${SYNCOPATE_TORCH_DIR}/lib" "-Wl,-rpath-link,${SYNCOPATE_CUDART_DIR}")
  if(SYNCOPATE_CUDA)
    # libtorch's CUDA half registers itself when it is loaded, so it is linked though nothing names its symbols. What it
    # needs in turn (cuBLAS, cuDNN, ...) comes with the wheel where there is a GPU and need not be here.
    target_link_libraries(syncopate_libtorch INTERFACE
      "-Wl,--push-state,--no-as-needed,-lc10_cuda,-ltorch_cuda,--pop-state" $<LINK_ONLY:syncopate_cudart>)
    target_link_options(syncopate_libtorch INTERFACE "-Wl,--allow-shlib-undefined")
  endif()
endif()
