// SPDX-License-Identifier: Apache-2.0
// Encodes floats to 4 bits each with a kernel of the table and decodes them: with octavo::core alone, on raw memory.
#include <cmath>
#include <cstdint>
#include <iostream>
#include <octavo/kernels/backend.h>
#include <octavo/kernels/error.h>
#include <vector>

int main() {
  constexpr std::uint64_t kCount = 1000, kBlock = 256;
  std::vector<float> values(kCount), decoded(kCount);
  std::vector<octavo::rules::Residual> residual(kCount);  // bfloat16
  for (std::uint64_t i = 0; i < kCount; ++i) values[i] = std::sin(static_cast<float>(i));

  // one scale per block, half a byte per value; what the codes lose is left in `residual`
  std::vector<float> scales((kCount + kBlock - 1) / kBlock);
  std::vector<std::uint8_t> codes((kCount + 1) / 2);
  const octavo::Payload payload{scales.data(), codes.data()};
  try {
    const octavo::CodecKernels& int4 = octavo::host_backend().of(octavo::BlockCodec::int4);
    int4.encode({}, {values.data()}, kCount, kBlock, payload, residual.data());
    int4.decode({}, payload, kCount, kBlock, octavo::Store::assign, decoded.data(), nullptr);
    std::cout << octavo::host_backend().name << ": " << 4 * kCount << " bytes became "
              << 4 * scales.size() + codes.size() << '\n';
  } catch (const octavo::Error& error) {  // OCTAVO_ISA or OCTAVO_BACKEND may name what is not here
    std::cerr << error.what() << '\n';
    return 1;
  }

  float largest = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const float kept = octavo::rules::from_residual(residual[i]);
    largest = std::fmax(largest, std::fabs(decoded[i] + kept - values[i]));
  }
  std::cout << "decoded + residual differs from the value by at most " << largest << '\n';
  return largest < 1e-3F ? 0 : 1;
}
