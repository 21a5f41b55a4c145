// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/counter_random.h"

namespace octavo {

std::uint64_t fingerprint_of(const std::string& text) {
  std::uint64_t fingerprint = text.size();
  for (const char c : text) fingerprint = rules::derive_key(fingerprint, static_cast<unsigned char>(c));
  return fingerprint;
}

void for_each_part(c10::Device device, std::uint64_t granule, const PayloadPart& whole,
                   const std::function<void(const PayloadPart& part, std::uint64_t first)>& body) {
  const std::uint64_t count = whole.part.count, granules = divide_up(count, granule);
  const std::uint64_t grain = std::max<std::uint64_t>(1, kGrainValues / granule);
  for_parts(device, static_cast<std::int64_t>(granules), static_cast<std::int64_t>(grain),
            [&](std::int64_t from, std::int64_t to) {
              const std::uint64_t first = static_cast<std::uint64_t>(from) * granule;
              const std::uint64_t last = std::min(static_cast<std::uint64_t>(to) * granule, count);
              body({whole.payload, whole.count, {whole.part.first + first, last - first}, whole.key}, first);
            });
}

Codec::Codec(std::string text, CodecTraits traits)
    : text_(std::move(text)), fingerprint_(fingerprint_of(text_)), traits_(traits) {
  if (traits_.granule > 0) return;
  fail(ErrorCode::invalid_argument, "codec.codec", "expected a granule of at least 1 value of ", text_, ", got 0");
}

std::uint64_t Codec::pack(const std::uint8_t* payload, std::uint64_t count, std::uint8_t* packed) const {
  std::memcpy(packed, payload, payload_bytes(count));
  return payload_bytes(count);
}

std::optional<std::uint64_t> Codec::unpack(std::span<const std::uint8_t> packed, std::uint64_t count,
                                           std::uint8_t* payload) const {
  const std::uint64_t bytes = payload_bytes(count);
  if (packed.size() < bytes) return std::nullopt;
  std::memcpy(payload, packed.data(), bytes);
  return bytes;
}

std::uint64_t Codec::reused(const std::uint8_t*, std::uint64_t) const { return 0; }

}  // namespace octavo
