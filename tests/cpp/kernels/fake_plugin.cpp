// SPDX-License-Identifier: Apache-2.0
// The back ends that a loader may find, one per FAKE_<kind>: working; absent (no device); old (an old table); foreign
// (another library altogether); broken (it cannot be loaded).
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "octavo/kernels/backend.h"

#if defined(FAKE_foreign)
extern "C" OCTAVO_API int something_else() { return 0; }
#else

#if defined(FAKE_broken)
extern "C" std::uint32_t nobody_has_this();
extern "C" OCTAVO_API std::uint32_t octavo_backend_abi() { return nobody_has_this(); }
#elif defined(FAKE_old)
extern "C" OCTAVO_API std::uint32_t octavo_backend_abi() { return octavo::kPluginAbi - 1; }
#else
extern "C" OCTAVO_API std::uint32_t octavo_backend_abi() { return octavo::kPluginAbi; }
#endif

extern "C" OCTAVO_API const octavo::KernelTable* octavo_backend_create([[maybe_unused]] char* reason,
                                                                       [[maybe_unused]] std::size_t capacity) {
#if defined(FAKE_working)
  static octavo::KernelTable table{};
  table.name = "working";
  return &table;
#else
  std::strncpy(reason, "there is no such device", capacity - 1);
  return nullptr;
#endif
}
#endif
