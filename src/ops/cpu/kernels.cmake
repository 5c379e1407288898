# TORCHAMP_CPU_KERNELS: the sources of the CPU kernels, which need no torch. The same kernel source is
# compiled for newer instruction sets too; unscale.cpp chooses once at run time.
set(TORCHAMP_CPU_KERNELS
    "${CMAKE_CURRENT_LIST_DIR}/clip_norm.cpp" "${CMAKE_CURRENT_LIST_DIR}/unscale.cpp"
    "${CMAKE_CURRENT_LIST_DIR}/unscale_baseline.cpp")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(torchamp_avx2 "${CMAKE_CURRENT_LIST_DIR}/unscale_avx2.cpp")
  set(torchamp_avx512 "${CMAKE_CURRENT_LIST_DIR}/unscale_avx512.cpp")
  list(APPEND TORCHAMP_CPU_KERNELS "${torchamp_avx2}" "${torchamp_avx512}")
  set_source_files_properties("${torchamp_avx2}" PROPERTIES COMPILE_OPTIONS "-mavx2;-mf16c")
  set_source_files_properties(
    "${torchamp_avx512}"
    PROPERTIES COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mf16c")
endif()
