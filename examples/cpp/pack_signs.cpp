// SPDX-License-Identifier: Apache-2.0
// Packs the signs of a tensor, one bit per element, and unpacks them again.
#include <ATen/ATen.h>

#include <iostream>
#include <octavo/packbits.h>

int main() {
  const at::Tensor gradient = at::sin(at::arange(1000, at::kFloat));
  const at::Tensor packed = octavo::packbits(gradient, gradient.numel());
  const at::Tensor signs = octavo::unpackbits(packed, gradient.numel());

  std::cout << gradient.nbytes() << " bytes became " << packed.nbytes() << '\n';
  const bool right = at::equal(signs > 0, gradient >= 0);
  std::cout << (right ? "every sign came back\n" : "a sign was lost\n");
  return right ? 0 : 1;
}
