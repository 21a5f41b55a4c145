// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

constinit const KernelTable table = {
    .name = "reference",
    .managed = &host_managed,
#include "octavo/kernels/entries.inc"
};

}  // namespace octavo::reference
