// SPDX-License-Identifier: Apache-2.0
// The defaults of Accelerator for random numbers: torch's default generators.
#include <ATen/Context.h>

#include <mutex>

#include "octavo/device/accelerator.h"

namespace octavo {

at::Generator Accelerator::default_generator(WhichDevice index) const {
  return at::globalContext().defaultGenerator(require("default_generator", index));
}

at::Tensor Accelerator::get_rng_state(WhichDevice index) const {
  at::Generator generator = default_generator(index);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void Accelerator::set_rng_state(const at::Tensor& state, WhichDevice index) const {
  at::Generator generator = default_generator(index);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

void Accelerator::manual_seed(std::uint64_t seed) const {
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

void Accelerator::manual_seed_all(std::uint64_t seed) const {
  require("manual_seed_all");
  for (std::int64_t index = 0; index < device_count(); ++index) {
    at::Generator generator = default_generator(index);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

std::uint64_t Accelerator::initial_seed() const {
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  return generator.current_seed();  // the seed that was set last: torch calls it initial
}

}  // namespace octavo
