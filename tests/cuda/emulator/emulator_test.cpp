// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <dlfcn.h>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "octavo/kernels/cuda/driver.h"
#include "octavo/kernels/cuda/standard_headers.h"
#include "tests/cuda/emulator/abi.h"

/// What the emulator must show of a driver, so that tests of the CUDA back end can fail.
namespace octavo::cuda_backend {
namespace {

template <class Signature>
void find(Function<Signature>& function, void* library) {
  function.address = reinterpret_cast<decltype(function.address)>(dlsym(library, function.name));
  ASSERT_NE(function.address, nullptr) << function.name;
}

void* opened(const char* file) { return dlopen(file, RTLD_NOW | RTLD_LOCAL); }

class EmulatorTest : public testing::Test {
 protected:
  void SetUp() override {
#define FIND(name, ...) find(cuda_.name, opened(DRIVER));
    OCTAVO_CUDA_DRIVER(FIND)
#undef FIND
#define FIND(name, ...) find(nvrtc_.name, opened(NVRTC));
    OCTAVO_NVRTC(FIND)
#undef FIND
    ASSERT_EQ(cuda_.cuInit.result(0), CUDA_SUCCESS);
    ASSERT_EQ(cuda_.cuDevicePrimaryCtxRetain.result(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuda_.cuDevicePrimaryCtxRetain.result(&other_, 1), CUDA_SUCCESS);
    ASSERT_EQ(cuda_.cuCtxPushCurrent_v2.result(context_), CUDA_SUCCESS);
    ASSERT_EQ(cuda_.cuThreadExchangeStreamCaptureMode.result(&capture_mode_), CUDA_SUCCESS);
    ASSERT_EQ(cuda_.cuStreamCreateWithPriority.result(&stream_, 1, 0), CUDA_SUCCESS);
  }
  void TearDown() override {
    cuda_.cuThreadExchangeStreamCaptureMode.result(&capture_mode_);
    CUcontext popped = nullptr;
    while (cuda_.cuCtxPopCurrent_v2.result(&popped) == CUDA_SUCCESS) continue;
  }

  /// Compiles a source for the current context's device and returns its kernel `f`.
  CUfunction kernel(const std::string& source) {
    nvrtcProgram program = created(source);
    const char* option = "--gpu-architecture=sm_90";
    if (nvrtc_.nvrtcCompileProgram.result(program, 1, &option) != 0) throw std::runtime_error(log_of(program));
    std::size_t bytes = 0;
    nvrtc_.nvrtcGetCUBINSize.result(program, &bytes);
    std::string image(bytes, '\0');
    nvrtc_.nvrtcGetCUBIN.result(program, image.data());
    nvrtc_.nvrtcDestroyProgram.result(&program);
    CUmodule module = nullptr;
    EXPECT_EQ(cuda_.cuModuleLoadData.result(&module, image.data()), CUDA_SUCCESS);
    CUfunction found = nullptr;
    EXPECT_EQ(cuda_.cuModuleGetFunction.result(&found, module, "f"), CUDA_SUCCESS);
    EXPECT_EQ(cuda_.cuModuleGetFunction.result(&found, module, "g"), CUDA_ERROR_NOT_FOUND);
    return found;
  }

  nvrtcProgram created(const std::string& source) {
    std::vector<const char*> names, texts;
    for (const lanes::SourceFile& file : kStandardHeaders) {
      names.push_back(file.name);
      texts.push_back(file.text);
    }
    nvrtcProgram program = nullptr;
    nvrtc_.nvrtcCreateProgram.result(&program, source.c_str(), "test.cu", static_cast<int>(names.size()), texts.data(),
                                     names.data());
    return program;
  }

  std::string log_of(nvrtcProgram program) {
    std::size_t bytes = 0;
    nvrtc_.nvrtcGetProgramLogSize.result(program, &bytes);
    std::string log(bytes, '\0');
    nvrtc_.nvrtcGetProgramLog.result(program, log.data());
    return log;
  }

  template <class... Arguments>
  CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, Arguments... arguments) {
    std::array<void*, sizeof...(arguments)> addresses = {&arguments...};
    return cuda_.cuLaunchKernel.result(function, blocks, 1, 1, threads, 1, 1, 0, stream, addresses.data(), nullptr);
  }
  CUresult synchronize() { return cuda_.cuStreamSynchronize.result(stream_); }

  Driver cuda_;
  Nvrtc nvrtc_;
  CUcontext context_ = nullptr, other_ = nullptr;
  int capture_mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then that of the thread
  CUstream stream_ = nullptr;
};

TEST_F(EmulatorTest, EveryThreadOfAGridRuns) {
  const CUfunction add = kernel(
      "extern \"C\" __global__ void f(const float* x, float by, bool twice, unsigned count, float* out) {\n"
      "  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
      "  if (i < count) out[i] = x[i] + (twice ? 2 * by : by);\n}\n");
  for (const unsigned count : {1U, 31U, 33U, 257U, 1000U}) {
    std::vector<float> x(count), out(count + 1, -1.0F);
    std::iota(x.begin(), x.end(), 0.0F);
    ASSERT_EQ(launch(add, (count + 255) / 256, 256, stream_, x.data(), 0.5F, true, count, out.data()), CUDA_SUCCESS);
    ASSERT_EQ(synchronize(), CUDA_SUCCESS);
    for (unsigned i = 0; i < count; ++i) ASSERT_EQ(out[i], static_cast<float>(i) + 1) << i;
    EXPECT_EQ(out[count], -1.0F);
  }
}

TEST_F(EmulatorTest, LanesOfAWarpExchangeValues) {
  const CUfunction exchange = kernel(
      "extern \"C\" __global__ void f(const unsigned* x, unsigned* out) {\n"
      "  const unsigned lane = threadIdx.x, all = 0xFFFFFFFFU, own = x[lane];\n"
      "  out[lane] = __ballot_sync(all, own % 2 != 0);\n"
      "  out[32 + lane] = __shfl_down_sync(all, own, 3);\n"
      "  out[64 + lane] = __shfl_xor_sync(all, own, 1);\n"
      "  out[96 + lane] = __shfl_sync(all, own, 5);\n"
      "  out[128 + lane] = __reduce_or_sync(all, own);\n"
      "  out[160 + lane] = __reduce_max_sync(all, own);\n"
      "  out[192 + lane] = __any_sync(all, own == 7);\n}\n");
  std::vector<unsigned> x(32), out(224);
  unsigned ballot = 0, together = 0, largest = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    x[lane] = lane * lane + 3;
    ballot |= x[lane] % 2 << lane;
    together |= x[lane];
    largest = std::max(largest, x[lane]);
  }
  ASSERT_EQ(launch(exchange, 1, 32, stream_, x.data(), out.data()), CUDA_SUCCESS);
  ASSERT_EQ(synchronize(), CUDA_SUCCESS);
  for (unsigned lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(out[lane], ballot);
    EXPECT_EQ(out[32 + lane], lane + 3 < 32 ? x[lane + 3] : x[lane]);
    EXPECT_EQ(out[64 + lane], x[lane ^ 1]);
    EXPECT_EQ(out[96 + lane], x[5]);
    EXPECT_EQ(out[128 + lane], together);
    EXPECT_EQ(out[160 + lane], largest);
    EXPECT_EQ(out[192 + lane], x[2] == 7 ? 1U : 0U);
  }
}

/// The other device's stream, where a kernel may end badly without harm to other tests.
class LostDeviceTest : public EmulatorTest {
 protected:
  void SetUp() override {
    EmulatorTest::SetUp();
    cuda_.cuCtxPushCurrent_v2.result(other_);
    cuda_.cuStreamCreateWithPriority.result(&stream_, 1, 0);
  }
};

TEST_F(LostDeviceTest, LanesThatDoNotAllReachAPrimitiveEndTheDevice) {
  const CUfunction diverging =
      kernel("extern \"C\" __global__ void f() { if (threadIdx.x < 16) __ballot_sync(0xFFFFFFFFU, true); }\n");
  testing::internal::CaptureStderr();
  ASSERT_EQ(launch(diverging, 1, 32, stream_), CUDA_SUCCESS);
  EXPECT_EQ(synchronize(), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "CUDA's emulator: 16 of 32 lanes wait in a primitive of all lanes in f\n");
  EXPECT_EQ(launch(diverging, 1, 32, stream_), CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(EmulatorTest, LaunchesThatADriverRefusesAreRefused) {
  const CUfunction nothing = kernel("extern \"C\" __global__ void f() {}\n");
  EXPECT_EQ(launch(nothing, 0, 32, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(nothing, 1, 2048, stream_), CUDA_ERROR_INVALID_VALUE);
  cuda_.cuCtxPushCurrent_v2.result(other_);
  EXPECT_EQ(launch(nothing, 1, 32, stream_), CUDA_ERROR_INVALID_HANDLE);
  CUcontext popped = nullptr;
  cuda_.cuCtxPopCurrent_v2.result(&popped);
  cuda_.cuCtxPopCurrent_v2.result(&popped);
  EXPECT_EQ(launch(nothing, 1, 32, stream_), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(EmulatorTest, AnEventIsOfItsDevice) {
  CUevent event = nullptr;
  ASSERT_EQ(cuda_.cuEventCreate.result(&event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuEventQuery.result(event), CUDA_SUCCESS);  // never recorded
  cuda_.cuCtxPushCurrent_v2.result(other_);
  EXPECT_EQ(cuda_.cuEventRecord.result(event, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(EmulatorTest, AThreadThatIsNotRelaxedMayDisturbNoCapture) {
  int mode = 0;
  ASSERT_EQ(cuda_.cuThreadExchangeStreamCaptureMode.result(&mode), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuda_.cuMemAlloc_v2.result(&memory, 100), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuda_.cuStreamQuery.result(stream_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  cuda_.cuThreadExchangeStreamCaptureMode.result(&mode);
  EXPECT_EQ(cuda_.cuStreamQuery.result(stream_), CUDA_SUCCESS);
}

TEST_F(EmulatorTest, RangesOutsideOfAnAllocationAreRefused) {
  CUdeviceptr memory = 0, managed = 0;
  ASSERT_EQ(cuda_.cuMemAlloc_v2.result(&memory, 100), CUDA_SUCCESS);
  ASSERT_EQ(cuda_.cuMemAllocManaged.result(&managed, 100, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemsetD8Async.result(memory, 0, 101, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemsetD32Async.result(memory + 2, 0, 1, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemPrefetchAsync.result(memory, 100, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemPrefetchAsync.result(managed, 101, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemPrefetchAsync.result(managed, 100, 2, stream_), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuda_.cuMemPrefetchAsync.result(managed, 100, -1, stream_), CUDA_SUCCESS);
  ASSERT_EQ(synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemFree_v2.result(memory + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemFreeHost.result(reinterpret_cast<void*>(memory)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemFree_v2.result(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemFree_v2.result(memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_.cuMemFree_v2.result(managed), CUDA_SUCCESS);
}

TEST_F(EmulatorTest, ADeviceHasSoMuchMemory) {
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cuda_.cuMemGetInfo_v2.result(&free, &total), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuda_.cuMemAlloc_v2.result(&memory, free + 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuda_.cuMemAllocManaged.result(&memory, free + 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.cuMemFree_v2.result(memory), CUDA_SUCCESS);
}

TEST_F(EmulatorTest, WhatTheCompilerRefusesIsInTheLog) {
  nvrtcProgram program = created("nonsense");
  const char* option = "--gpu-architecture=sm_90";
  EXPECT_EQ(nvrtc_.nvrtcCompileProgram.result(program, 1, &option), kCompilation);
  EXPECT_NE(log_of(program).find("error: "), std::string::npos) << log_of(program);
  for (const char* unknown : {"--gpu-architecture=sm_35", "--default-device"}) {
    EXPECT_EQ(nvrtc_.nvrtcCompileProgram.result(program, 1, &unknown), 5) << unknown;
  }
  nvrtc_.nvrtcDestroyProgram.result(&program);
}

}  // namespace

std::string words_of_driver(int result) { return std::to_string(result); }
std::string words_of_nvrtc(int result) { return std::to_string(result); }

}  // namespace octavo::cuda_backend
