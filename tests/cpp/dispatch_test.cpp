// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/dispatch.h"

#include <c10/core/DeviceType.h>
#include <gtest/gtest.h>

#include "octavo/device/host_alias.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

TEST(Dispatch, AnotherLibrarysDeviceIsNotTakenForSycl) {
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
