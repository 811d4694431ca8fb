# Language level, warnings, hardening, sanitizers, and the faster linker and compiler cache when present.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
# Of tests: what they test is optimised, and what optimising the tests themselves takes is not won back.
set(SYNCOPATE_TEST_OPTIONS -O0 -U_FORTIFY_SOURCE)

# -fPIC and -pthread everywhere, programs too: one precompiled header then serves libraries and programs alike.
# Flags of g++ alone: nvcc reads some of them in its own way (cmake/cuda.cmake).
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fPIC;-pthread;-Wall;-Wextra;-Werror;-Wno-unused-parameter>"
                    $<$<COMPILE_LANGUAGE:CXX>:-fno-delete-null-pointer-checks>)
# Log lines and failed checks name files from the tree's root, so that a compiler cache serves clones in other folders too.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>")
# g++ 12 sees accesses out of bounds within std::string that are none, and says so where that comes precompiled.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-stringop-overread;-Wno-stringop-overflow;-Wno-restrict>")
endif()
# Every ABSL_GUARDED_BY is held against every access; g++ does not look at them.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wthread-safety -Werror=thread-safety)
endif()
# What clang is asked for is whether the code is right: making objects of it would be half of the time. Files that say "done"
# stand in for objects, libraries and programs, so that what has changed, headers too, is looked at again, and no more.
# Before the flags, so that those of precompiled headers, which are needed, go over it.
if(SYNCOPATE_SYNTAX_ONLY)
  set(CMAKE_CXX_COMPILE_OBJECT
      "<CMAKE_CXX_COMPILER> <DEFINES> <INCLUDES> -Xclang -fsyntax-only <FLAGS> -o <OBJECT> -c <SOURCE>"
      "${CMAKE_COMMAND} -E touch <OBJECT>")
  set(CMAKE_CXX_CREATE_STATIC_LIBRARY "${CMAKE_COMMAND} -E touch <TARGET>")
  set(CMAKE_CXX_LINK_EXECUTABLE "${CMAKE_COMMAND} -E touch <TARGET>")
endif()
if(NOT SYNCOPATE_SANITIZER)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>)
  add_compile_definitions($<$<CONFIG:Release>:_FORTIFY_SOURCE=2>)
  add_link_options(-pie -Wl,-z,relro,-z,now)
elseif(SYNCOPATE_SANITIZER STREQUAL "address")
  # What makes this build's compile affordable: -O0, whose tests take longer by less; UBSan traps in place of calls that say
  # what was wrong (ASAN_OPTIONS=handle_sigill=1, which the tests have, makes a trace of a trap: it names functions); and no
  # debug information, which is as large as the code. Somebody who wants lines and words configures with
  # -DSYNCOPATE_SANITIZER_LINES=ON. vptr cannot trap.
  add_compile_options(-O0 -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(NOT SYNCOPATE_SANITIZER_LINES)
    add_compile_options(-g0 -fsanitize-undefined-trap-on-error)
  endif()
  # Tests and generated code are not what is looked at.
  list(APPEND SYNCOPATE_TEST_OPTIONS -fno-sanitize=undefined)
  add_link_options(-fsanitize=address,undefined)
elseif(SYNCOPATE_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_compile_definitions(SYNCOPATE_TSAN=1)
  add_link_options(-fsanitize=thread)
elseif(SYNCOPATE_SANITIZER STREQUAL "fuzzer")
  add_compile_options(-O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
else()
  message(FATAL_ERROR "SYNCOPATE_SANITIZER must be empty, address, thread or fuzzer, not '${SYNCOPATE_SANITIZER}'")
endif()

find_program(SYNCOPATE_CCACHE ccache)
if(SYNCOPATE_CCACHE AND NOT SYNCOPATE_SYNTAX_ONLY)  # it would look for objects
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${SYNCOPATE_CCACHE})
endif()
find_program(SYNCOPATE_MOLD mold)
if(SYNCOPATE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
