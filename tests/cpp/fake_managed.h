// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <vector>

#include "tests/cpp/fake_cuda.h"
#include "tests/fake_device/managed.h"

namespace octavo {

/// A test of managed memory on the fake device, as torch's `cuda`. The device's journal says which pages were moved.
class FakeManagedTest : public FakeCudaTest<> {
 protected:
  void SetUp() override {
    FakeCudaTest<>::SetUp();
    plugin_ = dlopen(FAKE_PLUGIN, RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(plugin_, nullptr);
    reset();
  }

  void reset() const { of_plugin<void(int)>("octavo_fake_managed_reset")(0); }
  fake::ManagedFigures figures() const {
    guard_.synchronizeDevice(0);
    fake::ManagedFigures all;
    of_plugin<void(int, fake::ManagedFigures*)>("octavo_fake_managed_figures")(0, &all);
    return all;
  }
  std::vector<fake::MovementRecord> records() const {
    guard_.synchronizeDevice(0);
    const auto copy =
        of_plugin<std::uint64_t(int, fake::MovementRecord*, std::uint64_t)>("octavo_fake_managed_records");
    std::vector<fake::MovementRecord> all(copy(0, nullptr, 0));
    copy(0, all.data(), all.size());
    return all;
  }
  /// Returns the movements of the memory that begins at `address`.
  std::vector<fake::Movement> movements_of(const void* address) const {
    std::vector<fake::Movement> all;
    for (const auto& record : records()) {
      if (record.address == address) all.push_back(record.movement);
    }
    return all;
  }

  const c10::Device device_{FakeCudaGuard::kType, 0};

 private:
  template <class Function>
  Function* of_plugin(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(plugin_, name));
  }

  void* plugin_ = nullptr;
};

}  // namespace octavo
