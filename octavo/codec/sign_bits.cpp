// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/sign_bits.h"

#include <ATen/ops/empty.h>

#include "octavo/device/dispatch.h"
#include "octavo/device/huge_pages.h"
#include "octavo/device/own_values.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/sign_bits.h"

namespace octavo {

namespace {

/// The fewest bytes of packed signs that a thread takes: those of 512 KiB of floats.
constexpr std::int64_t kGrainBytes = 1 << 14;

void require_dense(const at::Tensor& tensor, const char* where) {
  if (tensor.layout() == at::kStrided) return;
  fail(ErrorCode::wrong_type, where, "expected a dense tensor, got one of layout ", tensor.layout());
}

void require_signed_float(const at::Tensor& tensor) {
  require_dense(tensor, "codec.packbits");
  const auto dtype = tensor.scalar_type();
  if (c10::isFloatingType(dtype) && dtype != at::kFloat8_e8m0fnu && dtype != at::kFloat4_e2m1fn_x2) return;
  fail(ErrorCode::wrong_type, "codec.packbits", "expected a floating tensor with a sign bit, got ", toString(dtype));
}

void require_size(std::int64_t input_size, std::int64_t limit, const char* where, const char* limit_is) {
  if (input_size >= 0 && input_size <= limit) return;
  fail(ErrorCode::invalid_argument, where, "expected input_size from 0 to ", limit, " (", limit_is, "), got ",
       input_size);
}

void require_packed(const at::Tensor& packed) {
  require_dense(packed, "codec.unpackbits");
  if (packed.scalar_type() == at::kByte) return;
  fail(ErrorCode::wrong_type, "codec.unpackbits", "expected packed bits as uint8, got ",
       toString(packed.scalar_type()));
}

}  // namespace

at::Tensor packbits(at::Tensor tensor, std::int64_t input_size, std::int64_t) {
  require_signed_float(tensor);
  require_size(input_size, tensor.numel(), "codec.packbits", "the tensor's elements");
  const auto values = with_own_values(tensor).contiguous();
  const auto bytes = static_cast<std::int64_t>(rules::packed_sign_bytes(input_size));
  auto bits = at::empty({bytes}, tensor.options().dtype(at::kByte));

  const LaunchScope scope(tensor.device());
  const auto* source = static_cast<const char*>(values.const_data_ptr());
  auto* target = bits.mutable_data_ptr<std::uint8_t>();
  const std::int64_t width = values.element_size();
  for_parts(tensor.device(), bytes, kGrainBytes, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t count = std::min(8 * last, input_size) - 8 * first;
    scope.kernels().pack_sign_bits(scope.queue(), source + 8 * first * width, static_cast<unsigned>(width), count,
                                   target + first);
  });
  return bits;
}

at::Tensor unpackbits(at::Tensor packed, std::int64_t input_size, std::int64_t) {
  require_packed(packed);
  require_size(input_size, 8 * packed.numel(), "codec.unpackbits", "8 for each packed byte");
  auto values = at::empty({input_size}, packed.options().dtype(at::kFloat));
  advise_huge_pages(values);
  unpackbits_out(packed, values);
  return values;
}

void unpackbits_out(const at::Tensor& packed, at::Tensor& out) {
  require_packed(packed);
  if (!out.defined()) fail(ErrorCode::invalid_argument, "codec.unpackbits", "expected out as a tensor, got none");
  if (out.scalar_type() != at::kFloat || !out.is_contiguous() || out.device() != packed.device()) {
    fail(ErrorCode::invalid_argument, "codec.unpackbits", "expected out as contiguous float32 on ",
         packed.device().str(), ", got ", toString(out.scalar_type()), out.is_contiguous() ? "" : ", strided,", " on ",
         out.device().str());
  }
  const std::int64_t input_size = out.numel();
  require_size(input_size, 8 * packed.numel(), "codec.unpackbits", "8 for each packed byte");
  const auto bits = packed.contiguous();

  const LaunchScope scope(packed.device());
  const auto* source = bits.const_data_ptr<std::uint8_t>();
  auto* target = out.mutable_data_ptr<float>();
  const auto bytes = static_cast<std::int64_t>(rules::packed_sign_bytes(input_size));
  for_parts(packed.device(), bytes, kGrainBytes, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t count = std::min(8 * last, input_size) - 8 * first;
    scope.kernels().unpack_sign_bits(scope.queue(), source + first, count, target + 8 * first);
  });
}

}  // namespace octavo
