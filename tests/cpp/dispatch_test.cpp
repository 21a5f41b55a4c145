// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/dispatch.h"

#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "octavo/device/host_alias.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

using c10::impl::device_guard_impl_registry;

constexpr auto kType = c10::DeviceType::CUDA;

/// What torch does with the devices of CUDA: one is the thread's current one, and the handle of every default stream is
/// null.
class CudaLikeGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  c10::Device getDevice() const override { return {kType, current_}; }
  void setDevice(c10::Device device) const override { current_ = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_ = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }

 private:
  mutable c10::DeviceIndex current_ = 0;
};

class DispatchTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("OCTAVO_CUDA_PLUGIN", FAKE_PLUGIN, /*overwrite=*/1);  // any kernels: none is launched
    before_ = device_guard_impl_registry[static_cast<std::size_t>(kType)].exchange(&guard_);
  }
  void TearDown() override {
    device_guard_impl_registry[static_cast<std::size_t>(kType)] = before_;
    unsetenv("OCTAVO_CUDA_PLUGIN");
  }

  CudaLikeGuard guard_;
  const c10::impl::DeviceGuardImplInterface* before_ = nullptr;
};

TEST_F(DispatchTest, ALaunchGoesToTheTensorsDeviceAndItsDefaultStreamIsNotTheHost) {
  for (const c10::DeviceIndex device : {0, 1}) {
    const LaunchScope scope({kType, device});
    EXPECT_EQ(guard_.getDevice().index(), device);
    EXPECT_EQ(scope.queue().handle, nullptr);
    EXPECT_EQ(scope.queue().device, device);
    EXPECT_FALSE(scope.queue().is_calling_thread());
    EXPECT_STREQ(scope.kernels().name, "fake");
  }
  EXPECT_EQ(guard_.getDevice().index(), 0);
}

TEST_F(DispatchTest, OnCpuTheCallingThreadRunsTheKernels) {
  const LaunchScope scope(c10::kCPU);
  EXPECT_TRUE(scope.queue().is_calling_thread());
  EXPECT_EQ(&scope.kernels(), &kernels_for(c10::kCPU));
  EXPECT_EQ(guard_.getDevice().index(), 0);
}

TEST_F(DispatchTest, AnotherLibrarysDeviceIsNotTakenForSycl) {
  const c10::Device device(c10::DeviceType::PrivateUse1, 0);  // which nobody has registered in this process
  ASSERT_NE(c10::get_privateuse1_backend(), "sycl");
  EXPECT_FALSE(is_sycl(device));
  EXPECT_FALSE(has_host_alias(device));
  for (const auto& use : {+[](c10::Device d) { (void)kernels_for(d); }, +[](c10::Device d) { (void)sycl_queue(d); }}) {
    try {
      use(device);
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("privateuseone:0"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("[device."), std::string::npos) << error.what();
    }
  }
}

}  // namespace

}  // namespace octavo
