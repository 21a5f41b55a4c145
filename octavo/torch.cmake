# SPDX-License-Identifier: Apache-2.0
# octavo: the C++ library on libtorch. _C: the Python module.
find_package(Python REQUIRED COMPONENTS Interpreter)
if(OCTAVO_PYTHON)
  find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
endif()
include(${PROJECT_SOURCE_DIR}/cmake/octavoTorch.cmake)
octavo_add_torch("" "${Python_EXECUTABLE}")
if(NOT TARGET octavo::torch OR octavo_torch_RELEASE VERSION_LESS 2.11)
  message(FATAL_ERROR "Octavo needs torch >= 2.11 in ${Python_EXECUTABLE}: "
                      "install torch first, then build with --no-build-isolation")
endif()

add_library(octavo SHARED
  device/arena.cpp
  device/dispatch.cpp
  device/finite.cpp
  device/stream_event.cpp
  device/side_streams.cpp
  device/tensor_bytes.cpp
  device/host_alias.cpp
  device/huge_pages.cpp
  device/locked_pages.cpp
  device/pinned.cpp
  device/pinned_regions.cpp
  device/scratch.cpp
  device/sycl_kernel.cpp
  device/sycl/allocators.cpp
  device/sycl/devices.cpp
  device/sycl/memory_blocks.cpp
  device/sycl/memory_pool.cpp
  device/sycl/streams.cpp
  device/sycl/twins.cpp
  codec/sign_bits.cpp
  codec/codec.cpp
  codec/codec_text.cpp
  codec/registry.cpp
  codec/bits_coding.cpp
  codec/block_coding.cpp
  codec/lossless.cpp
  codec/lsh.cpp
  codec/top_k.cpp
  codec/threshold.cpp
  codec/orthonormal.cpp
  codec/power_sgd.cpp
  codec/random_k.cpp
  codec/count_sketch.cpp
  optim/adamw.cpp
  optim/flat.cpp
  optim/lamb.cpp
  optim/lion.cpp
  optim/pager.cpp
  optim/state_coding.cpp
  optim/step.cpp
  optim/step_memory.cpp
  optim/step_tensors.cpp
  optim/zero_one_adam.cpp
  comm/parameter_plan.cpp
  comm/plan.cpp
  comm/auto_choice.cpp
  comm/auto_plan.cpp
  comm/message_layout.cpp
  comm/ownership.cpp
  comm/feedback_memory.cpp
  comm/feedback/feedback.cpp
  comm/feedback/ef14.cpp
  comm/feedback/dgc.cpp
  comm/feedback/ef21.cpp
  comm/feedback/econtrol.cpp
  comm/feedback/fetchsgd.cpp
  comm/feedback/loco.cpp
  comm/feedback/packed_owed.cpp
  comm/state/packed.cpp
  comm/state/redistribute.cpp
  comm/state/state_memory.cpp
  comm/state/state_store.cpp
  comm/state/versioned.cpp
  comm/gloo_exchange.cpp
  comm/small_collectives.cpp
  comm/wire.cpp
  comm/shared/copy_bytes.cpp
  comm/shared/host_ranks.cpp
  comm/shared/memory_file.cpp
  comm/shared/peer_process.cpp
  comm/shared/shared_backend.cpp
  comm/shared/shared_blocks.cpp
  comm/shared/shared_word.cpp
  comm/shared/symmetric_memory.cpp
  comm/schedule/float_part.cpp
  comm/schedule/gradient_power.cpp
  comm/schedule/dense_sum.cpp
  comm/schedule/gather_codes.cpp
  comm/schedule/gather_shards.cpp
  comm/schedule/messages.cpp
  comm/schedule/packed_transfer.cpp
  comm/schedule/one_phase.cpp
  comm/schedule/parts.cpp
  comm/schedule/scatter_sum.cpp
  comm/schedule/sparse_sum.cpp
  comm/schedule/two_phase.cpp
  comm/schedule/linear_sum.cpp
  comm/schedule/hierarchical.cpp
  comm/schedule/schedule_pool.cpp
  comm/verdict.cpp
  comm/measured_loss.cpp
  comm/compressor.cpp
  comm/compressor_bucket.cpp
  comm/compressor_checks.cpp
  comm/compressor_contributions.cpp
  comm/compressor_momenta.cpp
  comm/compressor_plan.cpp
  comm/compressor_state.cpp
  comm/compressor_step.cpp
  comm/compressor_stats.cpp
  comm/sent_momenta.cpp
  comm/all_reduce.cpp
  comm/forked_children.cpp
  comm/serial_queue.cpp
  comm/ddp_hook.cpp
  comm/fsdp_hook.cpp
  comm/host_backend.cpp
  comm/host_work.cpp
  outer/fragment.cpp
  outer/outer.cpp
  outer/outer_checks.cpp
  outer/outer_state.cpp
  deepcompile/default_engine.cpp
  deepcompile/engine.cpp
  deepcompile/engine_step.cpp
  deepcompile/engine_values.cpp
  deepcompile/executor.cpp
  deepcompile/fresh_gather.cpp
  deepcompile/gradient_order.cpp
  deepcompile/gradient_sum.cpp
  deepcompile/graph_ids.cpp
  deepcompile/hosted_states.cpp
  deepcompile/hosted_tensor.cpp
  deepcompile/meta.cpp
  deepcompile/param_gather.cpp
  deepcompile/parameter.cpp
  deepcompile/reduce_bucket.cpp
  deepcompile/param_registry.cpp
  deepcompile/memory_access.cpp
  deepcompile/symmetric.cpp
  deepcompile/tensor_offload.cpp
  deepcompile/text.cpp
  deepcompile/zero_executors.cpp)
# What registers the device `sycl` with torch, and its operators. No test in C++ runs it, so the thread sanitizer's tree
# does without.
if(OCTAVO_PYTHON OR NOT OCTAVO_SANITIZE MATCHES thread)
  set(sycl_operators call copy fallback generator memory nn_operators registration same_device)
  list(TRANSFORM sycl_operators REPLACE "(.+)" "device/sycl/\\1.cpp")
  target_sources(octavo PRIVATE ${sycl_operators})
endif()
octavo_target(octavo)
set_target_properties(octavo PROPERTIES DEFINE_SYMBOL "")  # its tests share its precompiled header
target_link_libraries(octavo PUBLIC octavo_core octavo::torch)
# the sources' own part of torch's flags: c10d, Gloo, and the order of floating-point operations
target_compile_definitions(octavo PRIVATE USE_DISTRIBUTED USE_C10D_GLOO)
target_compile_options(octavo PRIVATE -ffp-contract=off)
# at::parallel_for is a header: without OpenMP here it would run on one thread. The runtime is the one that torch loads.
# The thread sanitizer does not know its barriers: there one thread has to do.
if(NOT OCTAVO_SANITIZE MATCHES thread)
  target_compile_options(octavo PRIVATE -fopenmp)
  target_link_options(octavo PRIVATE -fopenmp)
endif()
target_precompile_headers(octavo PRIVATE <ATen/ATen.h>)
set_target_properties(octavo PROPERTIES UNITY_BUILD ${OCTAVO_UNITY} UNITY_BUILD_BATCH_SIZE 8)

if(OCTAVO_PYTHON)
  Python_add_library(_C MODULE bindings/module.cpp bindings/ops.cpp bindings/dc_ops.cpp bindings/arena.cpp bindings/autograd.cpp
    bindings/codecs.cpp bindings/comm.cpp bindings/compressor.cpp bindings/deepcompile.cpp bindings/host.cpp bindings/optim.cpp
    bindings/outer.cpp bindings/sycl.cpp)
  octavo_target(_C)
  target_link_libraries(_C PRIVATE octavo ${octavo_torch_ROOT}/lib/libtorch_python.so)
  target_compile_definitions(_C PRIVATE USE_DISTRIBUTED USE_C10D_GLOO TORCH_EXTENSION_NAME=_C)
  # Few files with large headers, which are read once; beside the library's precompiled header, and so by its options.
  set_target_properties(_C PROPERTIES UNITY_BUILD ${OCTAVO_UNITY} UNITY_BUILD_BATCH_SIZE 0)
  target_precompile_headers(_C REUSE_FROM octavo)
  target_compile_options(_C PRIVATE $<TARGET_PROPERTY:octavo,COMPILE_OPTIONS>)
  set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN/${CMAKE_INSTALL_LIBDIR};$ORIGIN/../torch/lib")
  install(TARGETS _C LIBRARY DESTINATION .)
  # octavo.built_with: for which torch this is, where Python can read it before it loads _C
  file(STRINGS ${octavo_torch_ROOT}/version.py octavo_torch_version REGEX "^__version__ = ")
  string(REGEX REPLACE ".*'(.+)'.*" "\\1" octavo_torch_version "${octavo_torch_version}")
  if(NOT octavo_torch_version MATCHES "^[0-9]+[.][0-9]+")
    message(FATAL_ERROR "Octavo cannot read the version of torch in ${octavo_torch_ROOT}/version.py")
  endif()
  file(CONFIGURE OUTPUT built_with.py CONTENT "# SPDX-License-Identifier: Apache-2.0\n\
\"\"\"Written by the build.\"\"\"\n\nTORCH = \"@octavo_torch_version@\"\n" @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/built_with.py DESTINATION .)
endif()
set_target_properties(octavo PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../../torch/lib")
set_target_properties(octavo_core PROPERTIES INSTALL_RPATH "$ORIGIN")
