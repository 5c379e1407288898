# Where is torch, and for which CUDA was it built? Sets Torch_DIR and TORCHAMP_TORCH_CUDA_VERSION
# (empty for a CPU-only torch), or TORCHAMP_TORCH_MISSING (what to do). Torch_DIR or CMAKE_PREFIX_PATH
# win; else the Python interpreter is asked (-DPython_EXECUTABLE=… chooses one).

unset(TORCHAMP_TORCH_MISSING)
if(NOT Torch_DIR)
  find_path(
    _torchamp_torch_dir TorchConfig.cmake
    PATHS ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH
    PATH_SUFFIXES share/cmake/Torch Torch
    NO_DEFAULT_PATH NO_CACHE)
  if(NOT _torchamp_torch_dir)
    find_package(Python COMPONENTS Interpreter)
    if(Python_Interpreter_FOUND)
      # Ask for the path only: importing torch takes seconds.
      execute_process(
        COMMAND
          "${Python_EXECUTABLE}" -c
          "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE _torchamp_torch_root
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
    if(_torchamp_torch_root)
      set(_torchamp_torch_dir "${_torchamp_torch_root}/share/cmake/Torch")
    endif()
  endif()
  if(NOT _torchamp_torch_dir)
    set(TORCHAMP_TORCH_MISSING
        "no LibTorch found. Give -DCMAKE_PREFIX_PATH=/path/to/libtorch, or a Python that has torch \
(-DPython_EXECUTABLE=…).")
    return()
  endif()
  set(Torch_DIR "${_torchamp_torch_dir}" CACHE PATH "Folder of TorchConfig.cmake")
endif()

# A wheel says it in version.py, a LibTorch archive in build-version (2.11.0+cu130).
get_filename_component(_torchamp_torch_root "${Torch_DIR}/../../.." ABSOLUTE)
set(TORCHAMP_TORCH_CUDA_VERSION "")
if(EXISTS "${_torchamp_torch_root}/version.py")
  file(STRINGS "${_torchamp_torch_root}/version.py" _torchamp_line REGEX "^cuda")
  if(_torchamp_line MATCHES "'([0-9]+\\.[0-9]+)'")
    set(TORCHAMP_TORCH_CUDA_VERSION "${CMAKE_MATCH_1}")
  endif()
elseif(EXISTS "${_torchamp_torch_root}/build-version")
  file(STRINGS "${_torchamp_torch_root}/build-version" _torchamp_line LIMIT_COUNT 1)
  if(_torchamp_line MATCHES "\\+cu([0-9]+)([0-9])$")
    set(TORCHAMP_TORCH_CUDA_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
  endif()
endif()
