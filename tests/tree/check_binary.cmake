# cmake -DCOMMAND="nm;-C" -DPATTERN=regex -DBINARY=path -DCONTROL=path -P check_binary.cmake
# Fails if what COMMAND prints about BINARY matches PATTERN, or if what it prints about CONTROL does not: the second
# shows that the pattern can be seen at all.
foreach(file BINARY CONTROL)
  execute_process(COMMAND ${COMMAND} "${${file}}" OUTPUT_VARIABLE text RESULT_VARIABLE result ERROR_VARIABLE error)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${COMMAND} ${${file}}: ${error}")
  endif()
  string(REGEX MATCH "[^\n]*${PATTERN}[^\n]*" ${file}_match "${text}")
endforeach()
if(BINARY_match)
  message(FATAL_ERROR "${BINARY} must not hold this: ${BINARY_match}")
endif()
if(NOT CONTROL_match)
  message(FATAL_ERROR "${CONTROL} holds nothing like ${PATTERN}: this test sees nothing")
endif()
