# SPDX-License-Identifier: Apache-2.0
# octavo_add_torch(): the target octavo::torch, libtorch as an installed torch package has it. For Octavo's own build and
# for its installed package.
#
# Not find_package(Torch): for a torch that was built with CUDA that wants the whole CUDA toolkit, and Octavo links only
# what is the same for every device. Who needs more of torch finds and links Torch as well.

# Sets octavo_torch_ROOT, the folder of the torch package, or "". Torch_DIR (ROOT/share/cmake/Torch) decides where it is
# given; else the folder `beside` where that is a torch package; else what the first of the Pythons imports that has one.
function(octavo_find_torch beside pythons)
  set(root "${beside}")
  if(Torch_DIR)
    cmake_path(SET root NORMALIZE "${Torch_DIR}/../../..")
    set(pythons "")
  endif()
  foreach(python IN LISTS pythons)
    if(EXISTS "${root}/include/ATen/ATen.h")
      break()
    endif()
    execute_process(
      COMMAND "${python}" -c "import importlib.util as i; print(i.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endforeach()
  if(NOT EXISTS "${root}/include/ATen/ATen.h")
    set(root "")
  endif()
  set(octavo_torch_ROOT "${root}" PARENT_SCOPE)
endfunction()

# Sets octavo_torch_RELEASE, such as 2.13.0, of the torch package in octavo_torch_ROOT, or "".
function(octavo_read_torch_release)
  set(header "${octavo_torch_ROOT}/include/torch/headeronly/version.h")
  set(numbers "")
  if(EXISTS "${header}")
    file(STRINGS "${header}" numbers REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
    list(TRANSFORM numbers REPLACE ".* " "")
  endif()
  list(JOIN numbers "." release)
  set(octavo_torch_RELEASE "${release}" PARENT_SCOPE)
endfunction()

# Adds octavo::torch, once; its folder is octavo_torch_ROOT then, and octavo_torch_RELEASE says which one it is. Adds
# nothing where no torch is found.
macro(octavo_add_torch beside pythons)
  octavo_find_torch("${beside}" "${pythons}")
  octavo_read_torch_release()
  if(octavo_torch_ROOT AND NOT TARGET octavo::torch)
    add_library(octavo::torch INTERFACE IMPORTED)
    target_include_directories(octavo::torch INTERFACE
      ${octavo_torch_ROOT}/include ${octavo_torch_ROOT}/include/torch/csrc/api/include)
    target_link_libraries(octavo::torch INTERFACE
      ${octavo_torch_ROOT}/lib/libtorch_cpu.so ${octavo_torch_ROOT}/lib/libc10.so)
  endif()
endmacro()
