# Runs PROGRAM, which was built with a planted bug, and fails unless its tests fail in the way that
# EXPECT (a regular expression for the output) describes.
set(ENV{TSAN_OPTIONS} "halt_on_error=1")
execute_process(
  COMMAND "${PROGRAM}" --abort
  TIMEOUT 100
  RESULT_VARIABLE result
  OUTPUT_VARIABLE output
  ERROR_VARIABLE errors)
if(result EQUAL 0)
  message(FATAL_ERROR "the planted bug was not noticed:\n${output}")
endif()
if(NOT "${output}${errors}" MATCHES "${EXPECT}")
  message(FATAL_ERROR "failed otherwise than by '${EXPECT}' (${result}):\n${output}${errors}")
endif()
string(REGEX MATCH "[^\n]*${EXPECT}[^\n]*" line "${output}${errors}")
message(STATUS "caught: ${line}")
