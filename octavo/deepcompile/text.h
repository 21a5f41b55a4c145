// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "octavo/export.h"

/// The helpers of DeepSpeed's deepcompile.h, for messages and for programs that were written for it.
namespace octavo::dc {

template <class K, class V>
bool hasKey(const std::unordered_map<K, V>& map, const std::type_identity_t<K>& key) {
  return map.contains(key);
}

/// Returns a value as a stream writes it.
template <class T>
std::string to_string(const T& v) {
  std::ostringstream text;
  text << v;
  return text.str();
}

/// Joins the elements with `delim` between them; null: with nothing. Where `maxlen` is not 0, cuts the text to `maxlen`
/// bytes and "...", or to fewer where a character of UTF-8 would be cut.
template <class T>
std::string join_as_str(const T& v, const char* delim = ",", const std::size_t maxlen = 0) {
  std::ostringstream text;
  const char* between = "";
  for (const auto& element : v) {
    text << between << element;
    if (delim) between = delim;
  }
  const std::string all = text.str();
  if (maxlen == 0 || all.size() <= maxlen) return all;
  std::size_t end = maxlen;
  while (end > 0 && (static_cast<unsigned char>(all[end]) & 0xC0U) == 0x80U) --end;  // a byte inside of a character
  return all.substr(0, end) + "...";
}

/// Joins `size` values of the host's memory, as join_as_str() does with `str_len`.
template <class T>
std::string tensorPtrToString(T* ptr, std::size_t size, std::size_t str_len = 100) {
  return join_as_str(std::span(ptr, size), ",", str_len);
}

/// Joins at most `max_elem` values of a dtype that is known at run time. Throws Error wrong_type for a dtype without
/// values that can be written.
OCTAVO_API std::string tensorPtrToString(void* ptr, std::size_t size, c10::ScalarType datatype,
                                         std::size_t max_elem = 20, std::size_t max_str_len = 100);

/// Returns the first values of a tensor of any device, which is waited for.
OCTAVO_API std::string tensorToString(const at::Tensor& t, std::size_t max_elem = 20, std::size_t max_str_len = 100);

/// Returns the sizes, as in "[2, 3]".
OCTAVO_API std::string tensorDimToString(const at::Tensor& t);

/// Returns the product of the sizes; 1 where there are none.
template <class L>
std::size_t productDim(const L& dim) {
  std::size_t product = 1;
  for (const auto size : dim) product *= static_cast<std::size_t>(size);
  return product;
}

/// Returns a copy of the sizes.
OCTAVO_API std::vector<std::int64_t> sizes_to_int_vector(at::IntArrayRef sizes);

/// NCCL's numbers of dtypes. Nothing in Octavo calls NCCL; programs that do can cast.
enum ncclDataType_t : int {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
};

/// Throws Error wrong_type for a dtype that NCCL lacks.
OCTAVO_API ncclDataType_t get_nccl_data_type(at::ScalarType scalar_type);

}  // namespace octavo::dc
