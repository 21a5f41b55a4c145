// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/accelerator.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <thread>

#include "octavo/device/accelerator/cuda.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

TEST(Accelerator, TheHostHasOneDevice) {
  const auto cpu = make_accelerator("cpu");
  EXPECT_TRUE(cpu->is_available() && cpu->is_synchronized_device() && cpu->use_host_timers());
  EXPECT_EQ(cpu->device(3), c10::Device("cpu"));
  EXPECT_EQ(cpu->device_name(3), "cpu");
  EXPECT_EQ(cpu->current_device(), 0);
  EXPECT_EQ(cpu->why_absent(), "");
  EXPECT_THROW(cpu->set_device(-1), Error);
  EXPECT_THROW(cpu->device_name(-1), Error);
  EXPECT_THROW(cpu->memory_allocated(-1), Error);
  EXPECT_LE(cpu->available_memory(), cpu->total_memory());
  EXPECT_GE(cpu->max_memory_allocated(), cpu->memory_allocated());
  EXPECT_GT(cpu->memory_cached(), 0);
  EXPECT_TRUE(cpu->on_accelerator(at::rand({1})));
  EXPECT_FALSE(make_accelerator("cuda")->on_accelerator(at::rand({1})));
}

TEST(Accelerator, StreamsOfTheHostAreCurrentByThread) {
  const auto cpu = make_accelerator("cpu");
  const c10::Stream stream = cpu->new_stream();
  const c10::Stream before = cpu->exchange_stream(stream);
  EXPECT_EQ(before, cpu->default_stream());
  EXPECT_EQ(cpu->current_stream(), stream);
  std::thread([&] { EXPECT_EQ(cpu->current_stream(), before); }).join();
  cpu->exchange_stream(before);
  EXPECT_EQ(cpu->current_stream(), before);
  EXPECT_NE(cpu->new_stream(), stream);
  EXPECT_THROW(cpu->exchange_stream(c10::Stream(c10::Stream::DEFAULT, c10::Device("cuda:0"))), Error);
}

TEST(Accelerator, AGeneratorsStateComesBack) {
  const auto cpu = make_accelerator("cpu");
  cpu->manual_seed(17);
  EXPECT_EQ(cpu->initial_seed(), 17U);
  const at::Tensor state = cpu->get_rng_state();
  const at::Tensor first = at::rand({8});
  EXPECT_FALSE(at::equal(at::rand({8}), first));
  cpu->set_rng_state(state, 0);
  EXPECT_TRUE(at::equal(at::rand({8}), first));
}

TEST(Accelerator, ConstantsNeedNoDevice) {
  EXPECT_EQ(make_accelerator("xpu")->visible_devices_envs(), std::vector<std::string>{"ZE_AFFINITY_MASK"});
  EXPECT_EQ(make_accelerator("xpu")->communication_backend_name(), "xccl");
  EXPECT_EQ(make_accelerator("cuda")->communication_backend_name(), "nccl");
  EXPECT_EQ(make_accelerator("sycl")->device_name(2), "sycl:2");
  EXPECT_FALSE(make_accelerator("xpu")->is_triton_supported());
}

TEST(Accelerator, AnAbsentDeviceIsASentence) {
  const auto accelerator = make_accelerator("mtia");  // never there: the defaults alone
  EXPECT_EQ(accelerator->device_count(), 0);
  try {
    accelerator->memory_allocated();
    ADD_FAILURE() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_STREQ(
        error.what(),
        "[device.memory_allocated] expected a device of type mtia, got none: this torch is built without mtia");
  }
  EXPECT_THROW(accelerator->manual_seed_all(1), Error);
  EXPECT_THROW(make_accelerator("abacus"), Error);
}

/// A third party's, which overrides one method: the rest follows.
class Quiet : public CudaAccelerator {
 public:
  bool is_synchronized_device() const override { return true; }
  bool is_bf16_supported() const override { return false; }
};

TEST(Accelerator, DefaultsFollowWhatASubclassOverrides) {
  const Quiet quiet;
  EXPECT_TRUE(quiet.use_host_timers() && quiet.resolves_data_dependency() && quiet.handles_memory_backpressure());
  EXPECT_EQ(quiet.supported_dtypes(), (std::vector<at::ScalarType>{at::kFloat, at::kHalf}));
}

}  // namespace

}  // namespace octavo
