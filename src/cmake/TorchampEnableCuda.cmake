# Decides whether the CUDA kernels are built, and sets TORCHAMP_WITH_CUDA. AUTO builds them if it can
# and says in one line why not; ON fails if it cannot.

set(TORCHAMP_WITH_CUDA OFF)
if(NOT TORCHAMP_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "torchamp: TORCHAMP_CUDA must be AUTO, ON or OFF, not '${TORCHAMP_CUDA}'")
endif()

function(torchamp_no_cuda reason)
  if(TORCHAMP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "torchamp: TORCHAMP_CUDA is ON, but ${reason}")
  endif()
  message(STATUS "torchamp: built without CUDA kernels: ${reason}")
endfunction()

if(TORCHAMP_CUDA STREQUAL "OFF")
  message(STATUS "torchamp: built without CUDA kernels: TORCHAMP_CUDA is OFF")
elseif(NOT TORCHAMP_TORCH_CUDA_VERSION)
  torchamp_no_cuda("the torch in ${Torch_DIR} is a CPU-only build")
else()
  # NVIDIA's installer leaves nvcc off the PATH; FindCUDAToolkit knows where it puts it.
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_NVCC_EXECUTABLE AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  string(REGEX MATCH "^[0-9]+" torchamp_torch_major "${TORCHAMP_TORCH_CUDA_VERSION}")
  if(NOT CMAKE_CUDA_COMPILER)
    torchamp_no_cuda("no CUDA compiler (nvcc) was found")
  elseif(NOT CUDAToolkit_VERSION_MAJOR EQUAL torchamp_torch_major)
    torchamp_no_cuda(
      "the toolkit is CUDA ${CUDAToolkit_VERSION} and torch was built for CUDA ${TORCHAMP_TORCH_CUDA_VERSION}"
    )
  else()
    # Explicit, because CMake's own lists lag behind nvcc and `native` needs a GPU in the build machine.
    # Set before the language is enabled, else CMake fills in a default. The last comes with PTX.
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90)
      if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
        set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90-real 100-real 120)
      endif()
    endif()
    # CMake's default is the static runtime; torch brings the shared one.
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(TORCHAMP_WITH_CUDA ON)
  endif()
endif()
