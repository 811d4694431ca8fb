# The CUDA toolkit, for the cuda preset. Only the toolkit is needed to build: the driver's calls are looked up at run
# time (cuda/driver.h), and one shared CUDA runtime, the one that libtorch uses too, is linked.
#
# The toolkit's headers are in a folder of the same name in all presets, which is empty but for cuda: so what is the same code
# in cuda and release is compiled with the same flags, and the compiler cache that has one has the other.
set(SYNCOPATE_CUDA_HEADERS "${CMAKE_BINARY_DIR}/cuda_headers")
include_directories(SYSTEM "$<$<COMPILE_LANGUAGE:CXX>:${SYNCOPATE_CUDA_HEADERS}>")
if(NOT SYNCOPATE_CUDA)
  file(MAKE_DIRECTORY "${SYNCOPATE_CUDA_HEADERS}")  # the cache writes the path of a folder that is missing in another way
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin)
endif()
set(CMAKE_CUDA_ARCHITECTURES 90)  # H100, H200: their machine code, and PTX for what comes after them
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # syncopate_cudart
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # Debian's CMake knows nvcc up to C++17
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
add_compile_options(
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Werror=all-warnings;-Xcompiler=-fPIC,-Wall,-Wno-unused-parameter>")
if(SYNCOPATE_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

file(GLOB SYNCOPATE_CUDART_LIBRARY "${SYNCOPATE_SITE_PACKAGES}/nvidia/cu13/lib/libcudart.so.13")
if(NOT SYNCOPATE_CUDART_LIBRARY)
  message(FATAL_ERROR "libcudart.so.13 is not in ${SYNCOPATE_SITE_PACKAGES}. Run scripts/bootstrap.sh.")
endif()
get_filename_component(SYNCOPATE_CUDART_LIBRARY_DIR "${SYNCOPATE_CUDART_LIBRARY}" DIRECTORY)
list(GET CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES 0 toolkit_headers)
file(CREATE_LINK "${toolkit_headers}" "${SYNCOPATE_CUDA_HEADERS}" SYMBOLIC)
add_library(syncopate_cudart INTERFACE)
target_link_libraries(syncopate_cudart INTERFACE "${SYNCOPATE_CUDART_LIBRARY}")
target_link_options(syncopate_cudart INTERFACE "-Wl,-rpath,${SYNCOPATE_CUDART_LIBRARY_DIR}")

# Matrix products. With the wheels that torch asks for, theirs is linked, else the toolkit's own; on a GPU host that of its
# torch, of the same name, is found first.
find_library(SYNCOPATE_CUBLASLT_LIBRARY NAMES libcublasLt.so.13 NO_DEFAULT_PATH
  PATHS "${SYNCOPATE_CUDART_LIBRARY_DIR}" "${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT}/lib64" /usr/local/cuda/lib64)
if(NOT SYNCOPATE_CUBLASLT_LIBRARY)
  message(FATAL_ERROR "libcublasLt.so.13 is neither in the CUDA toolkit nor in ${SYNCOPATE_CUDART_LIBRARY_DIR}. Install the toolkit's cuBLAS.")
endif()
get_filename_component(SYNCOPATE_CUBLASLT_DIR "${SYNCOPATE_CUBLASLT_LIBRARY}" DIRECTORY)
add_library(syncopate_cublaslt INTERFACE)
target_link_libraries(syncopate_cublaslt INTERFACE "${SYNCOPATE_CUBLASLT_LIBRARY}" syncopate_cudart)
target_link_options(syncopate_cublaslt INTERFACE "-Wl,-rpath,${SYNCOPATE_CUBLASLT_DIR}")

# Attention by cuDNN: the frontend's headers are a wheel, cuDNN itself the wheel that torch asks for or the toolkit's. Linked
# by name, as libtorch's CUDA half is: whoever starts has it, and on a GPU host it is the one of its torch.
find_path(SYNCOPATE_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h PATHS "${SYNCOPATE_SITE_PACKAGES}/include" NO_DEFAULT_PATH)
if(NOT SYNCOPATE_CUDNN_FRONTEND_INCLUDE)
  message(FATAL_ERROR "cudnn_frontend.h is not in ${SYNCOPATE_SITE_PACKAGES}. Run scripts/bootstrap.sh.")
endif()
find_path(SYNCOPATE_CUDNN_INCLUDE cudnn_graph.h
  PATHS "${SYNCOPATE_SITE_PACKAGES}/nvidia/cudnn/include" ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
find_library(SYNCOPATE_CUDNN_LIBRARY NAMES libcudnn.so.9
  PATHS "${SYNCOPATE_SITE_PACKAGES}/nvidia/cudnn/lib" "${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT}/lib64" /usr/local/cuda/lib64)
if(NOT SYNCOPATE_CUDNN_INCLUDE OR NOT SYNCOPATE_CUDNN_LIBRARY)
  message(FATAL_ERROR "cuDNN 9 is neither in the CUDA toolkit nor in ${SYNCOPATE_SITE_PACKAGES}: pip install --no-deps nvidia-cudnn-cu13==9.19.0.56 there.")
endif()
get_filename_component(SYNCOPATE_CUDNN_DIR "${SYNCOPATE_CUDNN_LIBRARY}" DIRECTORY)
add_library(syncopate_cudnn INTERFACE)
target_include_directories(syncopate_cudnn SYSTEM INTERFACE "${SYNCOPATE_CUDNN_FRONTEND_INCLUDE}" "${SYNCOPATE_CUDNN_INCLUDE}")
target_compile_definitions(syncopate_cudnn INTERFACE CUDNN_FRONTEND_SKIP_JSON_LIB)
target_link_libraries(syncopate_cudnn INTERFACE "${SYNCOPATE_CUDNN_LIBRARY}" syncopate_cudart)
target_link_options(syncopate_cudnn INTERFACE "-Wl,-rpath,${SYNCOPATE_CUDNN_DIR}")

add_custom_target(syncopate_gpu_tests)  # all of them
# syncopate_gpu_test(NAME name_gpu_test SRCS ... [DEPS ...] [TORCH] [TIMEOUT seconds])
#   A GoogleTest program with the ctest label `gpu`. It must skip its tests, saying why, where there are not the GPUs
#   that it needs. One that links libtorch has the label `gpu_torch` too: libtorch's CUDA half starts only beside the
#   vendor's libraries that the wheel asks for.
function(syncopate_gpu_test)
  cmake_parse_arguments(ARG "TORCH" "NAME;TIMEOUT" "SRCS;DEPS" ${ARGN})
  if(NOT ARG_NAME MATCHES "_gpu_test$")
    message(FATAL_ERROR "${ARG_NAME}: names of GPU tests end with _gpu_test, by which scripts/gpu_tests.sh finds them")
  endif()
  set(labels gpu)
  set(torch)
  if(ARG_TORCH)
    list(APPEND labels gpu_torch)
    set(torch TORCH)
  endif()
  syncopate_test(NAME ${ARG_NAME} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS} LABELS "${labels}" TIMEOUT "${ARG_TIMEOUT}" ${torch})
  set_tests_properties(${ARG_NAME} PROPERTIES RESOURCE_LOCK gpu)
  add_dependencies(syncopate_gpu_tests ${ARG_NAME})
endfunction()
