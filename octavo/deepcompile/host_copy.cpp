// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/host_copy.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace octavo::dc {

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

std::shared_ptr<StreamEvent> copy_on_stream(const at::Tensor& to, const at::Tensor& from, const at::Tensor& of_device) {
  const c10::Device device = of_device.device();
  const c10::Stream stream = current_stream_of(device);
  to.copy_(from, /*non_blocking=*/true);
  c10::impl::VirtualGuardImpl(device.type()).recordDataPtrOnStream(of_device.storage().data_ptr(), stream);
  std::shared_ptr<StreamEvent> done = make_event(device.type(), /*timing=*/false);
  done->record(stream);
  return done;
}

}  // namespace octavo::dc
