// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <deque>

#include "octavo/device/sycl/streams.h"
#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

namespace {

class Generator final : public c10::GeneratorImpl {
 public:
  Generator(c10::DeviceIndex device, at::Generator cpu)
      : GeneratorImpl({kType, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), cpu_(std::move(cpu)) {}

  const at::Generator& cpu() const { return cpu_; }

  void set_current_seed(std::uint64_t seed) override { cpu_.set_current_seed(seed); }
  std::uint64_t current_seed() const override { return cpu_.current_seed(); }
  std::uint64_t seed() override { return cpu_.seed(); }
  void set_offset(std::uint64_t offset) override { cpu_.set_offset(offset); }
  std::uint64_t get_offset() const override { return cpu_.get_offset(); }
  void set_state(const c10::TensorImpl& state) override { cpu_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu_.unsafeGetGeneratorImpl()->get_state(); }

 private:
  Generator* clone_impl() const override { return new Generator(device_.index(), cpu_.clone()); }

  at::Generator cpu_;
};

}  // namespace

at::Generator make_generator(c10::DeviceIndex device) {
  return at::make_generator<Generator>(device, at::detail::createCPUGenerator(c10::default_rng_seed_val));
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  if (device < 0) device = current_device();
  require_device(device);
  static const auto* all = [] {
    auto* made = new std::deque<at::Generator>;
    for (c10::DeviceIndex i = 0; i < device_count(); ++i) made->push_back(make_generator(i));
    return made;
  }();
  return (*all)[static_cast<std::size_t>(device)];
}

at::Generator cpu_generator_of(const at::Generator& generator, c10::DeviceIndex device) {
  if (generator.device() == c10::Device(kType, device)) return generator.get<Generator>()->cpu();
  fail(ErrorCode::invalid_argument, "device.fallback", "expected a generator of sycl:", static_cast<int>(device),
       ", got one of ", generator.device().str());
}

}  // namespace octavo::sycl_device
