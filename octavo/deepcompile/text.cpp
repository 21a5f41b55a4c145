// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/text.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "octavo/device/own_values.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

std::string tensorPtrToString(void* ptr, std::size_t size, c10::ScalarType datatype, std::size_t max_elem,
                              std::size_t max_str_len) {
  const std::size_t shown = std::min(size, max_elem);
  if (datatype == at::kUInt64) return tensorPtrToString(static_cast<std::uint64_t*>(ptr), shown, max_str_len);
  // converted to double or int64, which a stream writes as numbers, also for characters and all floating formats
  const at::Tensor values = at::from_blob(ptr, {static_cast<std::int64_t>(shown)}, at::dtype(datatype));
  if (at::isComplexType(datatype)) {
    const at::Tensor wide = values.to(at::kComplexDouble);
    return tensorPtrToString(wide.data_ptr<c10::complex<double>>(), shown, max_str_len);
  }
  if (at::isFloatingType(datatype)) {
    const at::Tensor wide = values.to(at::kDouble);
    return tensorPtrToString(wide.data_ptr<double>(), shown, max_str_len);
  }
  if (at::isIntegralType(datatype, /*includeBool=*/true)) {
    const at::Tensor wide = values.to(at::kLong);
    return tensorPtrToString(wide.data_ptr<std::int64_t>(), shown, max_str_len);
  }
  fail(ErrorCode::wrong_type, "deepcompile.text", "expected a dtype of numbers, got ", at::toString(datatype));
}

std::string tensorToString(const at::Tensor& t, std::size_t max_elem, std::size_t max_str_len) {
  if (!t.defined()) return "undefined";
  const auto count = static_cast<std::size_t>(t.numel()), shown = std::min(count, max_elem);
  const at::Tensor first =
      with_own_values(t.flatten().narrow(0, 0, static_cast<std::int64_t>(shown))).cpu().contiguous();
  const std::string values = tensorPtrToString(first.data_ptr(), shown, t.scalar_type(), shown, max_str_len);
  return c10::str(at::toString(t.scalar_type()), t.sizes(), " on ", t.device().str(), ": ", values,
                  shown < count ? ",..." : "");
}

std::string tensorDimToString(const at::Tensor& t) { return c10::str(t.sizes()); }

std::vector<std::int64_t> sizes_to_int_vector(at::IntArrayRef sizes) { return sizes.vec(); }

ncclDataType_t get_nccl_data_type(at::ScalarType scalar_type) {
  switch (scalar_type) {
    case at::kChar: return ncclInt8;
    case at::kByte:
    case at::kBool: return ncclUint8;
    case at::kInt: return ncclInt32;
    case at::kLong: return ncclInt64;
    case at::kHalf: return ncclFloat16;
    case at::kFloat: return ncclFloat32;
    case at::kDouble: return ncclFloat64;
    case at::kBFloat16: return ncclBfloat16;
    case at::kFloat8_e4m3fn: return ncclFloat8e4m3;
    case at::kFloat8_e5m2: return ncclFloat8e5m2;
    case at::kUInt32: return ncclUint32;
    case at::kUInt64: return ncclUint64;
    default: break;
  }
  fail(ErrorCode::wrong_type, "deepcompile.text", "NCCL has no dtype ", at::toString(scalar_type));
}

}  // namespace octavo::dc
