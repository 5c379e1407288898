# Where installed binaries find the libraries: beside themselves, beside them in a Python environment,
# and where torch is now. A wheel may be installed elsewhere. Written out, because
# INSTALL_RPATH_USE_LINK_PATH leaves out what lies below the checkout, as .venv does.
set(TORCHAMP_INSTALL_RPATH "$ORIGIN" "$ORIGIN/../torch/lib")
if(NOT SKBUILD)
  list(APPEND TORCHAMP_INSTALL_RPATH "${TORCH_INSTALL_PREFIX}/lib")
endif()
if(TORCHAMP_TORCH_CUDA_VERSION)
  # The folder of CUDA's runtime in NVIDIA's Python packages.
  string(REGEX MATCH "^[0-9]+" torchamp_major "${TORCHAMP_TORCH_CUDA_VERSION}")
  set(torchamp_cudart "nvidia/cu${torchamp_major}/lib")
  if(torchamp_major LESS 13)
    set(torchamp_cudart nvidia/cuda_runtime/lib)
  endif()
  list(APPEND TORCHAMP_INSTALL_RPATH "$ORIGIN/../${torchamp_cudart}")
  if(NOT SKBUILD)
    cmake_path(GET TORCH_INSTALL_PREFIX PARENT_PATH torchamp_site_packages)
    list(APPEND TORCHAMP_INSTALL_RPATH "${torchamp_site_packages}/${torchamp_cudart}")
  endif()
endif()

# Language level, warnings and sanitizers of every target of this project.
function(torchamp_target_defaults target)
  target_compile_features(${target} PUBLIC cxx_std_20) # torch's headers ask for C++20 from 2.15 on
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden)
  # No fused multiply-add behind our back: results must not depend on the processor.
  target_compile_options(
    ${target}
    PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall
            -Wextra
            -Wpedantic
            -Wconversion
            -ffp-contract=off>
            $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${TORCHAMP_WERROR}>>:-Werror>
            $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TORCHAMP_WERROR}>>:-Werror=all-warnings>)
  if(TORCHAMP_SANITIZE)
    set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${sanitizers}>)
    target_link_options(${target} PRIVATE ${sanitizers})
  endif()
endfunction()
