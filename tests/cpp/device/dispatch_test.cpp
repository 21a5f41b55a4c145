// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/dispatch.h"

#include <string>

#include "octavo/device/host_alias.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/fake_cuda.h"

namespace octavo {

namespace {

constexpr auto kType = FakeCudaGuard::kType;

/// The handle of a default stream is null, as with CUDA.
class NullStreamGuard final : public FakeCudaGuard {
 public:
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
};

class DispatchTest : public FakeCudaTest<NullStreamGuard> {};

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
  const c10::Device device(c10::DeviceType::PrivateUse1, 0);  // no library has registered this type in this process
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
