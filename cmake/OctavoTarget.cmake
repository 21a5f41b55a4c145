# SPDX-License-Identifier: Apache-2.0
# What every target of Octavo is built with.
function(octavo_target target)
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${OCTAVO_WERROR}>:-Werror>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  if(OCTAVO_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${OCTAVO_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer)
    # Each check of an access is code: those that say less than the address sanitizer, which sees the access itself.
    if(OCTAVO_SANITIZE MATCHES address)
      target_compile_options(${target} PRIVATE -fno-sanitize=null,object-size)
    endif()
    target_link_options(${target} PRIVATE -fsanitize=${OCTAVO_SANITIZE})
  endif()
endfunction()
