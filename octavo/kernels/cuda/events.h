// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/runtime.h"

/// The functions of DeviceRuntime for events; kernels/runtime.h describes them.
namespace octavo::cuda_backend {

Event create_event();
void destroy_event(Event);
void record(Event, Queue);
bool is_done(Event);
void wait_for(Event);
void block(Queue, Event);
double elapsed_ms(Event start, Event end);

}  // namespace octavo::cuda_backend
