// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/types.h>

#include "octavo/kernels/error.h"

/// The functions of CUDA's driver and of its run-time compiler NVRTC that this back end calls, under their own names.
/// Both libraries are opened when they are first used, and CUDA's types are declared here: a build needs neither CUDA's
/// headers nor its libraries, and one build serves machines with and without CUDA.
namespace octavo::cuda_backend {

using CUdevice = int;
using CUdeviceptr = std::uint64_t;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using nvrtcProgram = struct _nvrtcProgram*;

// Results that are no failures, or that are handled.
inline constexpr int kSuccess = 0;
inline constexpr int kOutOfMemory = 2;    // CUDA_ERROR_OUT_OF_MEMORY
inline constexpr int kNotReady = 600;     // CUDA_ERROR_NOT_READY
inline constexpr int kInvalidOption = 5;  // NVRTC_ERROR_INVALID_OPTION
inline constexpr int kCompilation = 6;    // NVRTC_ERROR_COMPILATION

template <class Signature>
struct Function;

/// A function of one of the libraries.
template <class... Parameters>
struct Function<int(Parameters...)> {
  const char* name;
  std::string (*words_of)(int result);
  int (*address)(Parameters...) = nullptr;

  /// Calls it. Throws Error internal, with the library's words, unless it succeeds.
  void operator()(Parameters... parameters) const { require(result(parameters...)); }
  /// Calls it and returns its result.
  int result(Parameters... parameters) const { return address(parameters...); }
  /// Calls it, and returns false where what it asks about is not ready yet.
  bool is_ready(Parameters... parameters) const {
    const int answer = result(parameters...);
    if (answer != kNotReady) require(answer);
    return answer == kSuccess;
  }
  void require(int result) const {
    if (result != kSuccess) fail(ErrorCode::internal, "kernels.cuda", name, " failed: ", words_of(result));
  }
};

// The driver's names carry versions, where cuda.h defines the plain name as one of them.
// clang-format off
#define OCTAVO_CUDA_DRIVER(entry) \
  entry(cuInit, unsigned flags) \
  entry(cuDriverGetVersion, int* version) \
  entry(cuDeviceGetCount, int* count) \
  entry(cuDeviceGet, CUdevice* device, int ordinal) \
  entry(cuDeviceGetName, char* name, int length, CUdevice device) \
  entry(cuDeviceGetAttribute, int* value, int attribute, CUdevice device) \
  entry(cuDeviceTotalMem_v2, std::size_t* bytes, CUdevice device) \
  entry(cuDevicePrimaryCtxRetain, CUcontext* context, CUdevice device) \
  entry(cuCtxPushCurrent_v2, CUcontext context) \
  entry(cuCtxPopCurrent_v2, CUcontext* context) \
  entry(cuThreadExchangeStreamCaptureMode, int* mode) \
  entry(cuCtxGetStreamPriorityRange, int* least, int* greatest) \
  entry(cuMemGetInfo_v2, std::size_t* free, std::size_t* total) \
  entry(cuMemAlloc_v2, CUdeviceptr* memory, std::size_t bytes) \
  entry(cuMemAllocManaged, CUdeviceptr* memory, std::size_t bytes, unsigned flags) \
  entry(cuMemFree_v2, CUdeviceptr memory) \
  entry(cuMemHostAlloc, void** memory, std::size_t bytes, unsigned flags) \
  entry(cuMemFreeHost, void* memory) \
  entry(cuMemcpyAsync, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) \
  entry(cuMemsetD8Async, CUdeviceptr memory, unsigned char value, std::size_t count, CUstream stream) \
  entry(cuMemsetD32Async, CUdeviceptr memory, unsigned value, std::size_t count, CUstream stream) \
  entry(cuMemPrefetchAsync, CUdeviceptr memory, std::size_t bytes, CUdevice to, CUstream stream) \
  entry(cuStreamCreateWithPriority, CUstream* stream, unsigned flags, int priority) \
  entry(cuStreamQuery, CUstream stream) \
  entry(cuStreamSynchronize, CUstream stream) \
  entry(cuStreamWaitEvent, CUstream stream, CUevent event, unsigned flags) \
  entry(cuEventCreate, CUevent* event, unsigned flags) \
  entry(cuEventDestroy_v2, CUevent event) \
  entry(cuEventRecord, CUevent event, CUstream stream) \
  entry(cuEventQuery, CUevent event) \
  entry(cuEventSynchronize, CUevent event) \
  entry(cuEventElapsedTime, float* milliseconds, CUevent start, CUevent end) \
  entry(cuModuleLoadData, CUmodule* module, const void* image) \
  entry(cuModuleGetFunction, CUfunction* function, CUmodule module, const char* name) \
  entry(cuLaunchKernel, CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters, void** extra)

#define OCTAVO_NVRTC(entry) \
  entry(nvrtcVersion, int* major, int* minor) \
  entry(nvrtcGetNumSupportedArchs, int* count) \
  entry(nvrtcGetSupportedArchs, int* architectures) \
  entry(nvrtcCreateProgram, nvrtcProgram* program, const char* source, const char* name, int header_count, const char* const* headers, const char* const* include_names) \
  entry(nvrtcDestroyProgram, nvrtcProgram* program) \
  entry(nvrtcCompileProgram, nvrtcProgram program, int option_count, const char* const* options) \
  entry(nvrtcGetProgramLogSize, nvrtcProgram program, std::size_t* bytes) \
  entry(nvrtcGetProgramLog, nvrtcProgram program, char* log) \
  entry(nvrtcGetCUBINSize, nvrtcProgram program, std::size_t* bytes) \
  entry(nvrtcGetCUBIN, nvrtcProgram program, char* cubin) \
  entry(nvrtcGetPTXSize, nvrtcProgram program, std::size_t* bytes) \
  entry(nvrtcGetPTX, nvrtcProgram program, char* ptx)
// clang-format on

std::string words_of_driver(int result);
std::string words_of_nvrtc(int result);

#define OCTAVO_MEMBER(name, ...) Function<int(__VA_ARGS__)> name{#name, OCTAVO_WORDS};
#define OCTAVO_WORDS words_of_driver
struct Driver {
  OCTAVO_CUDA_DRIVER(OCTAVO_MEMBER)
  pid_t process = 0;  // that called cuInit: what is forked from it later cannot use the driver
};
#undef OCTAVO_WORDS
#define OCTAVO_WORDS words_of_nvrtc
struct Nvrtc {
  OCTAVO_NVRTC(OCTAVO_MEMBER)
  std::string file;  // its path, size and time: nvrtcVersion() does not tell the patches of a version apart
};
#undef OCTAVO_WORDS
#undef OCTAVO_MEMBER

/// Returns the driver, initialized (cuInit). Thread-safe. Throws Error unsupported where it is missing, or where it
/// finds no device.
const Driver& driver();
/// Returns the newest compiler that is installed, from CUDA 12 to the driver's CUDA, or to 13 without a driver.
/// Thread-safe. Throws Error unsupported where it is missing.
const Nvrtc& nvrtc();

}  // namespace octavo::cuda_backend
