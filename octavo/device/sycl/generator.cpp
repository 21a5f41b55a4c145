// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <deque>
#include <mutex>

#include "octavo/device/sycl/streams.h"
#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

namespace {

class Generator final : public c10::GeneratorImpl {
 public:
  Generator(c10::DeviceIndex device, at::Generator cpu)
      : GeneratorImpl({kType, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), cpu_(std::move(cpu)) {}

  const at::Generator& cpu() const { return cpu_; }

 private:
  /// Calls `body` under the mutex that the CPU's kernels hold while they draw. Torch holds this generator's own mutex,
  /// which those kernels do not know.
  template <class Body>
  auto locked(Body body) const {
    c10::GeneratorImpl& cpu = *cpu_.unsafeGetGeneratorImpl();
    const std::lock_guard in_use(cpu.mutex_);
    return body(cpu);
  }

 public:
  void set_current_seed(std::uint64_t seed) override {
    locked([&](auto& cpu) { cpu.set_current_seed(seed); });
  }
  std::uint64_t current_seed() const override {
    return locked([](auto& cpu) { return cpu.current_seed(); });
  }
  std::uint64_t seed() override {
    return locked([](auto& cpu) { return cpu.seed(); });
  }
  /// The state says everything. torch copies and pickles the generators of devices with their offset, too.
  void set_offset(std::uint64_t offset) override {
    TORCH_CHECK(offset == 0, "[device.sycl] expected an offset of 0, got ", offset,
                ": set the state, which get_state() returns");
  }
  std::uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override {
    locked([&](auto& cpu) { cpu.set_state(state); });
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return locked([](auto& cpu) { return cpu.get_state(); });
  }

 private:
  Generator* clone_impl() const override {
    return locked([&](auto& cpu) { return new Generator(device_.index(), at::Generator(cpu.clone())); });
  }

  at::Generator cpu_;
};

class DefaultGenerators {
 public:
  static DefaultGenerators& instance() {
    static auto* only = new DefaultGenerators;
    return *only;
  }

  const at::Generator& at(c10::DeviceIndex device) {
    const std::lock_guard lock(mutex_);
    for (auto next = static_cast<c10::DeviceIndex>(all_.size()); next <= device; ++next) {
      all_.push_back(make_generator(next));
      all_.back().set_current_seed(seed_);
    }
    return all_[static_cast<std::size_t>(device)];
  }

  void seed(std::uint64_t seed) {
    const std::lock_guard lock(mutex_);
    seed_ = seed;
    for (at::Generator& generator : all_) generator.set_current_seed(seed);
  }

 private:
  std::mutex mutex_;
  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::deque<at::Generator> all_;  // grows without moving
};

}  // namespace

at::Generator make_generator(c10::DeviceIndex device) {
  return at::make_generator<Generator>(device, at::detail::createCPUGenerator(c10::default_rng_seed_val));
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  if (device < 0) device = current_device();
  require_device(device);
  return DefaultGenerators::instance().at(device);
}

void seed_default_generators(std::uint64_t seed) { DefaultGenerators::instance().seed(seed); }

at::Generator cpu_generator_of(const at::Generator& generator, c10::DeviceIndex device) {
  if (generator.device() == c10::Device(kType, device)) return generator.get<Generator>()->cpu();
  fail(ErrorCode::invalid_argument, "device.fallback", "expected a generator of sycl:", static_cast<int>(device),
       ", got one of ", generator.device().str());
}

}  // namespace octavo::sycl_device
