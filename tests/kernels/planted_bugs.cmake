# Bugs planted into the kernels' headers: proof that the tests and the stand-in runtime notice such a
# thing. Each is one replacement in a copy of one header, which is found before the real one. A text
# that is no longer there stops the configuration.

# add_planted_bug(<name> FILE <header below src> FROM <text> TO <text> TEST <test source>
#                 EXPECT <regular expression for the failing program's output>
#                 [SANITIZER thread|address])
function(add_planted_bug name)
  cmake_parse_arguments(PARSE_ARGV 1 BUG "" "FILE;FROM;TO;TEST;EXPECT;SANITIZER" "")
  file(READ "${TORCHAMP_SRC}/${BUG_FILE}" text)
  string(REPLACE "${BUG_FROM}" "${BUG_TO}" planted "${text}")
  if(planted STREQUAL text)
    message(FATAL_ERROR "planted bug ${name}: ${BUG_FILE} has no '${BUG_FROM}'")
  endif()
  set(overlay "${CMAKE_CURRENT_BINARY_DIR}/planted/${name}")
  file(CONFIGURE OUTPUT "${overlay}/${BUG_FILE}" CONTENT "${planted}" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${TORCHAMP_SRC}/${BUG_FILE}")

  add_kernel_tests(planted_${name} "${BUG_SANITIZER}" ${BUG_TEST} ${KERNEL_SOURCES})
  target_compile_options(planted_${name} PRIVATE -O0) # soon built, and run only up to the bug
  target_include_directories(planted_${name} BEFORE PRIVATE "${overlay}")
  add_test(NAME kernels.planted.${name}
           COMMAND ${CMAKE_COMMAND} "-DPROGRAM=$<TARGET_FILE:planted_${name}>"
                   "-DEXPECT=${BUG_EXPECT}" -P "${CMAKE_CURRENT_SOURCE_DIR}/expect_failure.cmake")
endfunction()

# --- barriers and atomics ----------------------------------------------------------------------------
add_planted_bug(
  no_barrier_after_write
  FILE ops/cuda/block.cuh
  FROM "  __syncthreads();\n  double total"
  TO "  double total"
  TEST test_runtime.cpp
  SANITIZER thread
  EXPECT "ThreadSanitizer: data race")
add_planted_bug(
  no_barrier_before_reuse
  FILE ops/cuda/block.cuh
  FROM "  __syncthreads();  // an earlier"
  TO "  // an earlier"
  TEST test_runtime.cpp
  SANITIZER thread
  EXPECT "ThreadSanitizer: data race")
add_planted_bug(
  barrier_not_for_all
  FILE ops/cuda/block.cuh
  FROM "if (__syncthreads_or(found)"
  TO "if (found && __syncthreads_or(found)"
  TEST test_unscale.cpp
  EXPECT "barrier was not reached by all threads")
add_planted_bug(
  plain_store_to_the_flag
  FILE ops/cuda/block.cuh
  FROM "atomicExch(found_inf, 1.0f)"
  TO "*found_inf = 1.0f"
  TEST test_unscale.cpp
  SANITIZER thread
  EXPECT "ThreadSanitizer: data race")
add_planted_bug(
  read_from_another_block
  FILE ops/cuda/clip_norm.cuh
  FROM "sums[chunk] = total;"
  TO "sums[chunk] = total; if (chunk > 0) { sums[chunk].small += 0.0 * sums[chunk - 1].small; }"
  TEST test_clip_norm.cpp
  SANITIZER thread
  EXPECT "ThreadSanitizer: data race")
add_planted_bug(
  half_a_warp_not_added
  FILE ops/cuda/block.cuh
  FROM "offset = kWarpSize / 2"
  TO "offset = kWarpSize / 4"
  TEST test_runtime.cpp
  EXPECT "FAILED:")

# --- which elements ----------------------------------------------------------------------------------
add_planted_bug(
  tail_too_short
  FILE ops/cuda/chunk.cuh
  FROM "thread < count - in_packs"
  TO "thread < count - in_packs - 1"
  TEST test_unscale.cpp
  EXPECT "FAILED:")
add_planted_bug(
  tail_too_long
  FILE ops/cuda/chunk.cuh
  FROM "thread < count - in_packs"
  TO "thread <= count - in_packs"
  TEST test_unscale.cpp
  SANITIZER address
  EXPECT "AddressSanitizer: heap-buffer-overflow")
add_planted_bug(
  start_taken_for_aligned
  FILE ops/cuda/chunk.cuh
  FROM "beyond == 0 ?"
  TO "beyond < 16 ?"
  TEST test_unscale.cpp
  SANITIZER address
  EXPECT "misaligned address")
add_planted_bug(
  last_tensor_skipped
  FILE ops/cuda/kernel_table.h
  FROM ": table.num_chunks()"
  TO ": entries.back().first_chunk"
  TEST test_unscale.cpp
  EXPECT "FAILED:")
add_planted_bug(
  first_chunk_goes_to_the_tensor_before
  FILE ops/common/chunk_table.h
  FROM "first_chunk <= chunk"
  TO "first_chunk < chunk"
  TEST test_chunk_table.cpp
  EXPECT "FAILED:")
add_planted_bug(
  large_tensors_in_32_bits
  FILE ops/cuda/chunk.cuh
  FROM "static_cast<int64_t>(chunk - entry.first_chunk) * common::kChunkSize"
  TO "(chunk - entry.first_chunk) * static_cast<uint32_t>(common::kChunkSize)"
  TEST test_chunk_table.cpp
  EXPECT "FAILED:")
add_planted_bug(
  no_large_squares
  FILE ops/common/square_sum.h
  FROM "!(magnitude <= kLargest)"
  TO "false"
  TEST test_clip_norm.cpp
  EXPECT "FAILED:")
