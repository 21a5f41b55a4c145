// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/state_coding.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "octavo/device/dispatch.h"
#include "octavo/device/own_values.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"
#include "octavo/kernels/state_block.h"
#include "octavo/optim/flat.h"

namespace octavo {

namespace {

StateFormat format_of_codes(StateCode code, const char* where) {
  if (code.bits != 8 && code.bits != 4) {
    fail(ErrorCode::invalid_argument, where, "expected codes of 8 or 4 bits, got ", code.bits);
  }
  return code.bits == 8 ? StateFormat::bits8 : StateFormat::bits4;
}

void require_flat(const at::Tensor& tensor, at::ScalarType dtype, std::int64_t count, const char* where,
                  const char* what) {
  if (!tensor.defined()) fail(ErrorCode::invalid_argument, where, "expected ", what, " as a tensor, got none");
  if (tensor.scalar_type() == dtype && tensor.numel() == count && tensor.is_contiguous()) return;
  fail(ErrorCode::invalid_argument, where, "expected ", what, " as ", count, " elements of ", toString(dtype),
       ", row-major, got ", toString(tensor.scalar_type()), tensor.sizes(), " with strides ", tensor.strides());
}

void require_codes(const at::Tensor& codes, const at::Tensor& scales, std::int64_t count, StateFormat format,
                   const char* where) {
  if (count < 0) fail(ErrorCode::invalid_argument, where, "expected a count of at least 0, got ", count);
  const auto block = static_cast<std::int64_t>(codes_per_scale(format));
  require_flat(codes, at::kByte, static_cast<std::int64_t>(state_bytes(format, static_cast<std::uint64_t>(count))),
               where, "codes");
  require_flat(scales, at::kFloat, divide_up(count, block), where, "scales");
}

/// Calls part(view, first, size) for all blocks, on all threads; `Block` is a momentum's or a variance's.
template <class Block, class Part>
void for_state_blocks(const StateView& view, std::int64_t count, const Part& part) {
  constexpr auto kStep = static_cast<std::int64_t>(kStepBlock);
  for_parts(c10::kCPU, divide_up(count, kStep), kGrainElements / kStep, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin * kStep; first < std::min(end * kStep, count); first += kStep) {
      const auto size = static_cast<std::uint64_t>(std::min(kStep, count - first));
      Block block(view.from(static_cast<std::uint64_t>(first)), size);
      part(block, first, size);
    }
  });
}

template <class Block>
void encode_blocks(const float* values, const StateView& view, std::int64_t count) {
  for_state_blocks<Block>(view, count, [&](Block& block, std::int64_t first, std::uint64_t size) {
    for (std::uint64_t i = 0; i < size; ++i) block[i] = values[first + static_cast<std::int64_t>(i)];
    block.store();
  });
}

template <class Block>
void decode_blocks(const StateView& view, float* values, std::int64_t count) {
  for_state_blocks<Block>(view, count, [&](Block& block, std::int64_t first, std::uint64_t size) {
    for (std::uint64_t i = 0; i < size; ++i) values[first + static_cast<std::int64_t>(i)] = block[i];
  });
}

}  // namespace

void encode_state_(const at::Tensor& values, at::Tensor& codes, at::Tensor& scales, StateCode code) {
  constexpr const char* kWhere = "optim.encode_state";
  const StateFormat format = format_of_codes(code, kWhere);
  if (!values.defined()) fail(ErrorCode::invalid_argument, kWhere, "expected values as a tensor, got none");
  require_codes(codes, scales, values.numel(), format, kWhere);
  const at::Tensor floats = with_own_values(values.to(at::kCPU, at::kFloat)).contiguous();
  at::Tensor host_codes = codes.cpu(), host_scales = scales.cpu();
  const StateView view = {host_codes.mutable_data_ptr<std::uint8_t>(), host_scales.mutable_data_ptr<float>(), format};
  const auto encode = code.is_signed ? encode_blocks<MomentumBlock> : encode_blocks<VarianceBlock>;
  encode(floats.const_data_ptr<float>(), view, values.numel());
  if (!codes.is_cpu()) codes.copy_(host_codes);
  if (!scales.is_cpu()) scales.copy_(host_scales);
}

at::Tensor decode_state(const at::Tensor& codes, const at::Tensor& scales, std::int64_t count, StateCode code) {
  constexpr const char* kWhere = "optim.decode_state";
  const StateFormat format = format_of_codes(code, kWhere);
  require_codes(codes, scales, count, format, kWhere);
  at::Tensor host_codes = codes.cpu(), host_scales = scales.cpu();
  const StateView view = {host_codes.data_ptr(), host_scales.data_ptr<float>(), format};
  at::Tensor values = at::empty({count}, at::TensorOptions().dtype(at::kFloat));
  const auto decode = code.is_signed ? decode_blocks<MomentumBlock> : decode_blocks<VarianceBlock>;
  decode(view, values.mutable_data_ptr<float>(), count);
  return values.to(codes.device());
}

}  // namespace octavo
