// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "octavo/export.h"
#include "tests/cuda/emulator/abi.h"
#include "tests/cuda/emulator/block.h"
#include "tests/cuda/emulator/device.h"

/// libcuda.so.1 for machines without a GPU: the functions of the driver that Octavo's CUDA back end calls. It refuses
/// what a driver refuses: calls before cuInit or without a current context, streams, events and kernels of another
/// device, ranges that are not inside of an allocation. A kernel that ends badly says so on stderr, and its device is
/// lost.

struct CUmod_st {
  CUcontext context;
  void* library;
};

struct CUfunc_st {
  CUcontext context;
  octavo::cuda_emulator::KernelCall call;
  std::string name;
  std::vector<std::size_t> parameter_bytes;
};

namespace octavo::cuda_emulator {

namespace {

bool is_initialized = false;
thread_local std::vector<CUcontext> current_contexts;

constexpr int kRelaxed = 2;         // CU_STREAM_CAPTURE_MODE_RELAXED
thread_local int capture_mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL, which every thread begins with

/// Returns what is wrong with a call that needs a current context.
CUresult fault_of_caller() {
  if (!is_initialized) return CUDA_ERROR_NOT_INITIALIZED;
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  return current_contexts.back()->has_failed ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

CUcontext current() { return current_contexts.back(); }

/// Returns the stream behind a handle; null stands for the default stream of the current context.
CUstream behind(CUstream stream) { return stream == nullptr ? &current()->default_stream : stream; }

/// Enqueues `body` on a stream of the current context.
template <class Body>
CUresult enqueue(CUstream stream, Body body) {
  if (const CUresult fault = fault_of_caller(); fault != CUDA_SUCCESS) return fault;
  if (behind(stream)->context != current()) return CUDA_ERROR_INVALID_HANDLE;
  behind(stream)->queue.push({.run = std::move(body)});
  return CUDA_SUCCESS;
}

template <class Value>
CUresult enqueue_fill(CUdeviceptr memory, Value value, std::size_t count, CUstream stream) {
  if (Memory::all().holding(memory, count * sizeof value) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream, [=] { std::fill_n(reinterpret_cast<Value*>(memory), count, value); });
}

/// Loads a shared library from memory; null where it is none.
void* loaded(const char* image, std::size_t bytes) {
  const int file = memfd_create("kernels", 0);
  if (file < 0 || write(file, image, bytes) != static_cast<ssize_t>(bytes)) return nullptr;
  void* const library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "CUDA's emulator: %s\n", dlerror());
  return library;  // the file stays open: the loader would take another of the same number for this one
}

}  // namespace

}  // namespace octavo::cuda_emulator

using namespace octavo::cuda_emulator;

// Everything that needs a current context begins with this.
#define REQUIRE_CONTEXT()                                                              \
  do {                                                                                 \
    if (const CUresult fault = fault_of_caller(); fault != CUDA_SUCCESS) return fault; \
  } while (false)
/// What a driver refuses to a thread of another mode while a CUDA graph is captured begins with this. The emulator
/// always refuses it.
#define REQUIRE_RELAXED() REQUIRE(capture_mode == kRelaxed, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
#define REQUIRE(condition, otherwise)   \
  do {                                  \
    if (!(condition)) return otherwise; \
  } while (false)

extern "C" {

// ---- devices and contexts

OCTAVO_API CUresult cuInit(unsigned flags) {
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(!contexts().empty(), CUDA_ERROR_NO_DEVICE);
  is_initialized = true;
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuDeviceGetCount(int* count) {
  REQUIRE(is_initialized, CUDA_ERROR_NOT_INITIALIZED);
  *count = static_cast<int>(contexts().size());
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  REQUIRE(is_initialized, CUDA_ERROR_NOT_INITIALIZED);
  REQUIRE(ordinal >= 0 && ordinal < static_cast<int>(contexts().size()), CUDA_ERROR_INVALID_DEVICE);
  *device = ordinal;
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, static_cast<std::size_t>(length), "Octavo's CUDA emulator");
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
  constexpr std::array<std::pair<int, int>, 7> kKnown = {{
      {1, 1024},  // MAX_THREADS_PER_BLOCK
      {10, 32},   // WARP_SIZE
      {16, 2},    // MULTIPROCESSOR_COUNT
      {75, 9},    // COMPUTE_CAPABILITY_MAJOR
      {76, 0},    // COMPUTE_CAPABILITY_MINOR
      {88, 1},    // PAGEABLE_MEMORY_ACCESS
      {89, 1},    // CONCURRENT_MANAGED_ACCESS
  }};
  const auto* const found =
      std::find_if(kKnown.begin(), kKnown.end(), [&](auto each) { return each.first == attribute; });
  REQUIRE(found != kKnown.end(), CUDA_ERROR_INVALID_VALUE);
  *value = found->second;
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  *bytes = device_bytes();
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  REQUIRE(is_initialized, CUDA_ERROR_NOT_INITIALIZED);
  *context = contexts().at(static_cast<std::size_t>(device));
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  REQUIRE(is_initialized, CUDA_ERROR_NOT_INITIALIZED);
  REQUIRE(context != nullptr, CUDA_ERROR_INVALID_CONTEXT);
  current_contexts.push_back(context);
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  REQUIRE(!current_contexts.empty(), CUDA_ERROR_INVALID_CONTEXT);
  *context = current();
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  REQUIRE(*mode >= 0 && *mode <= kRelaxed, CUDA_ERROR_INVALID_VALUE);
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  REQUIRE_CONTEXT();
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

// ---- memory

OCTAVO_API CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  REQUIRE_CONTEXT();
  *free = Memory::all().free_bytes(current()->device);
  *total = device_bytes();
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuMemAlloc_v2(CUdeviceptr* memory, std::size_t bytes) {
  REQUIRE_CONTEXT();
  REQUIRE_RELAXED();
  REQUIRE(bytes > 0, CUDA_ERROR_INVALID_VALUE);
  *memory = Memory::all().allocate(Allocation::Kind::device, current()->device, bytes);
  return *memory == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

OCTAVO_API CUresult cuMemAllocManaged(CUdeviceptr* memory, std::size_t bytes, unsigned flags) {
  REQUIRE_CONTEXT();
  REQUIRE_RELAXED();
  REQUIRE(bytes > 0 && flags == 1, CUDA_ERROR_INVALID_VALUE);
  *memory = Memory::all().allocate(Allocation::Kind::managed, current()->device, bytes);
  return *memory == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

OCTAVO_API CUresult cuMemFree_v2(CUdeviceptr memory) {
  REQUIRE_CONTEXT();
  REQUIRE_RELAXED();
  return Memory::all().free(memory, /*is_host=*/false) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

OCTAVO_API CUresult cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  REQUIRE_CONTEXT();
  REQUIRE_RELAXED();
  REQUIRE(bytes > 0, CUDA_ERROR_INVALID_VALUE);
  *memory = reinterpret_cast<void*>(Memory::all().allocate(Allocation::Kind::host, current()->device, bytes));
  return *memory == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

OCTAVO_API CUresult cuMemFreeHost(void* memory) {
  REQUIRE_CONTEXT();
  REQUIRE_RELAXED();
  const bool is_known = Memory::all().free(reinterpret_cast<CUdeviceptr>(memory), /*is_host=*/true);
  return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

OCTAVO_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return enqueue(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
}

OCTAVO_API CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, std::size_t count, CUstream stream) {
  return enqueue_fill(memory, value, count, stream);
}

OCTAVO_API CUresult cuMemsetD32Async(CUdeviceptr memory, unsigned value, std::size_t count, CUstream stream) {
  REQUIRE(memory % sizeof value == 0, CUDA_ERROR_INVALID_VALUE);
  return enqueue_fill(memory, value, count, stream);
}

OCTAVO_API CUresult cuMemPrefetchAsync(CUdeviceptr memory, std::size_t bytes, CUdevice to, CUstream stream) {
  const Allocation* const found = Memory::all().holding(memory, bytes);
  REQUIRE(found != nullptr && found->kind == Allocation::Kind::managed, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(to >= -1 && to < static_cast<CUdevice>(contexts().size()), CUDA_ERROR_INVALID_DEVICE);
  return enqueue(stream, [] {});
}

// ---- streams and events

OCTAVO_API CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  REQUIRE_CONTEXT();
  REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);
  *stream = new CUstream_st{current()};
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuStreamQuery(CUstream stream) {
  REQUIRE_CONTEXT();
  REQUIRE_RELAXED();
  return behind(stream)->queue.is_idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

OCTAVO_API CUresult cuStreamSynchronize(CUstream stream) {
  REQUIRE_CONTEXT();
  REQUIRE_RELAXED();
  behind(stream)->queue.wait();
  return behind(stream)->context->has_failed ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

OCTAVO_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  REQUIRE_CONTEXT();
  const std::lock_guard lock(event->mutex);
  if (event->mark) behind(stream)->queue.push({.waits_for = event->mark});
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuEventCreate(CUevent* event, unsigned) {
  REQUIRE_CONTEXT();
  *event = new CUevent_st{.context = current(), .mutex = {}, .mark = {}};
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuEventDestroy_v2(CUevent event) {
  REQUIRE_CONTEXT();
  delete event;
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuEventRecord(CUevent event, CUstream stream) {
  REQUIRE_CONTEXT();
  REQUIRE(event->context == behind(stream)->context, CUDA_ERROR_INVALID_HANDLE);
  const std::lock_guard lock(event->mutex);
  event->mark = std::make_shared<octavo::fake::Mark>();
  behind(stream)->queue.push({.reaches = event->mark});
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuEventQuery(CUevent event) {
  REQUIRE_CONTEXT();
  REQUIRE_RELAXED();
  const std::lock_guard lock(event->mutex);
  return !event->mark || event->mark->is_reached() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

OCTAVO_API CUresult cuEventSynchronize(CUevent event) {
  REQUIRE_CONTEXT();
  REQUIRE_RELAXED();
  const auto mark = [&] {
    const std::lock_guard lock(event->mutex);
    return event->mark;
  }();
  if (mark) mark->wait();
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  REQUIRE_CONTEXT();
  const std::scoped_lock lock(start->mutex, end->mutex);
  REQUIRE(start->mark && end->mark && start->context == end->context, CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(start->mark->is_reached() && end->mark->is_reached(), CUDA_ERROR_NOT_READY);
  *milliseconds = std::chrono::duration<float, std::milli>(end->mark->time() - start->mark->time()).count();
  return CUDA_SUCCESS;
}

// ---- kernels

/// The image is what nvrtc.cpp made: the number of bytes of a shared library, and the library.
OCTAVO_API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  REQUIRE_CONTEXT();
  REQUIRE_RELAXED();
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, image, sizeof bytes);
  void* const library = loaded(static_cast<const char*>(image) + sizeof bytes, bytes);
  REQUIRE(library != nullptr, CUDA_ERROR_INVALID_IMAGE);
  *static_cast<const Lanes**>(dlsym(library, "octavo_emulated_lanes")) = &lanes();
  *module = new CUmod_st{current(), library};
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  REQUIRE_CONTEXT();
  REQUIRE_RELAXED();
  const auto symbol = [&](const char* suffix) { return dlsym(module->library, (std::string(name) + suffix).c_str()); };
  REQUIRE(symbol("_call") != nullptr, CUDA_ERROR_NOT_FOUND);
  const std::size_t* const bytes = reinterpret_cast<const std::size_t* (*)()>(symbol("_parameter_bytes"))();
  const std::size_t count = reinterpret_cast<std::size_t (*)()>(symbol("_parameter_count"))();
  *function =
      new CUfunc_st{module->context, reinterpret_cast<KernelCall>(symbol("_call")), name, {bytes, bytes + count}};
  return CUDA_SUCCESS;
}

/// As the driver does, it copies the parameters before it returns.
OCTAVO_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned, CUstream stream,
                                   void** parameters, void**) {
  REQUIRE_CONTEXT();
  REQUIRE(function->context == current(), CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(grid_x > 0 && grid_y == 1 && grid_z == 1, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(block_x > 0 && block_x <= 1024 && block_y == 1 && block_z == 1, CUDA_ERROR_INVALID_VALUE);
  std::vector<std::vector<std::byte>> values;
  for (std::size_t i = 0; i < function->parameter_bytes.size(); ++i) {
    const auto* const value = static_cast<const std::byte*>(parameters[i]);
    values.emplace_back(value, value + function->parameter_bytes[i]);
  }
  return enqueue(stream, [=, context = current()]() mutable {
    if (context->has_failed) return;
    std::vector<void*> addresses;
    for (auto& value : values) addresses.push_back(value.data());
    const std::string fault = run({function->call, {grid_x, 1, 1}, {block_x, 1, 1}, addresses.data()});
    if (fault.empty()) return;
    std::fprintf(stderr, "CUDA's emulator: %s in %s\n", fault.c_str(), function->name.c_str());
    context->has_failed = true;
  });
}

// ---- words

OCTAVO_API CUresult cuGetErrorName(CUresult result, const char** name) {
  switch (result) {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case CUDA_ERROR_NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case CUDA_ERROR_INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case CUDA_ERROR_INVALID_IMAGE: *name = "CUDA_ERROR_INVALID_IMAGE"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case CUDA_ERROR_INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case CUDA_ERROR_NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case CUDA_ERROR_NOT_READY: *name = "CUDA_ERROR_NOT_READY"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

OCTAVO_API CUresult cuGetErrorString(CUresult, const char** words) {
  *words = "said by the emulator";
  return CUDA_SUCCESS;
}

}  // extern "C"
