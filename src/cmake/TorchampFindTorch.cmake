# find_package(Torch) without the CUDA set-up that a CUDA build of torch brings along: that one needs a
# toolkit even for a program without CUDA code, takes architectures that new compilers refuse, and
# overrides CMAKE_CUDA_ARCHITECTURES. It returns at once when the target torch::cudart exists already
# (an internal of torch, seen in 2.11 to 2.15), so that target is made here, linked to CUDA's runtime
# where a toolkit of torch's major version is found. -DTORCHAMP_PLAIN_FIND_TORCH=ON leaves torch to do
# it its own way.

option(TORCHAMP_PLAIN_FIND_TORCH "Use find_package(Torch) as it is" OFF)
mark_as_advanced(TORCHAMP_PLAIN_FIND_TORCH)

if(NOT TORCHAMP_PLAIN_FIND_TORCH AND NOT TARGET torch::cudart)
  find_package(CUDAToolkit QUIET)
  add_library(torch::cudart INTERFACE IMPORTED GLOBAL)
  if(TARGET CUDA::cudart AND TORCHAMP_TORCH_CUDA_VERSION MATCHES "^${CUDAToolkit_VERSION_MAJOR}\\.")
    set_property(TARGET torch::cudart PROPERTY INTERFACE_LINK_LIBRARIES CUDA::cudart)
  endif()
  # Torch's libraries find their own dependencies at run time. The linker would look for them too, in
  # the toolkit's folder first, and stumble over a libnccl there that is older than torch's.
  set_property(TARGET torch::cudart PROPERTY INTERFACE_LINK_OPTIONS LINKER:--allow-shlib-undefined)
endif()

# Torch's imported targets are visible in one folder only; a parent project needs them too.
set(torchamp_were_global "${CMAKE_FIND_PACKAGE_TARGETS_GLOBAL}")
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
if(CMAKE_FIND_PACKAGE_NAME STREQUAL "torchamp") # which decides whether it is required
  find_package(Torch 2.11 QUIET)
else()
  find_package(Torch 2.11 REQUIRED)
endif()
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL "${torchamp_were_global}")
