// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/symmetric.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "octavo/comm/shared/host_ranks.h"
#include "octavo/comm/shared/shared_backend.h"
#include "octavo/comm/shared/symmetric_memory.h"
#include "octavo/comm/wire.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

constexpr const char* kWorkspaceWhere = "deepcompile.getSymmMemWorkspace";

/// Makes torch's own symmetric memory, on a device for which torch has an allocator: CUDA, in a torch that is built for
/// it.
SymmetricMemoryPtr workspace_of_torch(const std::string& group_name, c10::Device device, std::int64_t size) {
  namespace torchs = c10d::symmetric_memory;
  if (!torchs::has_allocator(device.type())) {
    fail(ErrorCode::unsupported, kWorkspaceWhere, "this build of torch has no symmetric memory on ", device.str(),
         ": leave symmetric_memory out, or install a torch for that device");
  }
  return torchs::rendezvous(torchs::empty_strided_p2p({size}, {1}, at::kByte, device, group_name, std::nullopt));
}

/// Returns the ranks that share the host's memory. One rank alone shares it with itself.
HostRanks::Connection connection_of(const c10::intrusive_ptr<c10d::Backend>& backend,
                                    std::chrono::milliseconds timeout) {
  if (auto* const shared = dynamic_cast<SharedBackend*>(backend.get())) return {shared->ranks(), ""};
  if (backend->getSize() > 1) return {nullptr, "they are on several hosts, or symmetric_memory=False was set"};
  Wire wire(backend, timeout);
  return HostRanks::connect(wire, timeout);
}

}  // namespace

bool has_symmetric_memory(c10::Device device) {
  return device.is_cpu() || c10d::symmetric_memory::has_allocator(device.type());
}

SymmetricMemoryPtr make_symmetric_memory(const c10::intrusive_ptr<c10d::Backend>& backend,
                                         const std::string& group_name, c10::Device device, std::int64_t size,
                                         std::chrono::milliseconds timeout) {
  if (size < 1) fail(ErrorCode::invalid_argument, kWorkspaceWhere, "expected at least 1 byte, got ", size);
  if (!device.is_cpu()) return workspace_of_torch(group_name, device, size);
  const HostRanks::Connection connection = connection_of(backend, timeout);
  if (!connection.ranks)
    fail(ErrorCode::unsupported, kWorkspaceWhere, "the ranks share no memory: ", connection.why_not);
  return c10::make_intrusive<SharedSymmetricMemory>(connection.ranks, static_cast<std::uint64_t>(size), timeout);
}

}  // namespace octavo::dc
