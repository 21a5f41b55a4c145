// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace octavo {

/// Whether the memory of a strided tensor has its values. Torch can also leave it to the reader to negate or conjugate
/// them, as in at::imag(z.conj()), and keeps some zeros without memory.
inline bool has_own_values(const at::Tensor& tensor) {
  return !tensor.is_neg() && !tensor.is_conj() && !tensor._is_zerotensor();
}

/// Returns a tensor whose memory has the values: `tensor` itself, or a copy.
inline at::Tensor with_own_values(const at::Tensor& tensor) {
  if (has_own_values(tensor)) return tensor;
  return tensor._is_zerotensor() ? tensor.clone() : tensor.resolve_conj().resolve_neg();
}

}  // namespace octavo
