// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/codec_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

template <class Number>
bool read_number(std::string_view option, Number& number) {
  const auto [end, error] = std::from_chars(option.data(), option.data() + option.size(), number);
  return error == std::errc() && end == option.data() + option.size();
}

}  // namespace

CodecText CodecText::parse(std::string_view plan, std::string_view codec) {
  CodecText text{plan, codec.substr(0, codec.find(':')), {}};
  for (std::size_t at = text.name.size(); at < codec.size();) {
    const std::size_t next = std::min(codec.find(':', at + 1), codec.size());
    text.options.push_back(codec.substr(at + 1, next - at - 1));
    at = next;
  }
  return text;
}

std::uint64_t CodecText::whole_number(std::string_view option, std::uint64_t least, std::uint64_t most,
                                      std::string_view expected) const {
  std::uint64_t number = 0;
  if (!read_number(option, number) || number < least || number > most) refuse(expected);
  return number;
}

double CodecText::fraction(std::string_view option, std::string_view expected) const {
  const double read = number(option, expected);
  if (!(read > 0) || read > 1) refuse(expected);
  return read;
}

double CodecText::number(std::string_view option, std::string_view expected) const {
  double read = 0;
  if (!read_number(option, read) || !std::isfinite(read)) refuse(expected);
  return read;
}

void CodecText::refuse(std::string_view because) const {
  constexpr std::size_t kShown = 200;
  std::size_t length = std::min(plan.size(), kShown);
  while (length > 0 && length < plan.size() && (static_cast<unsigned char>(plan[length]) & 0xC0U) == 0x80)
    --length;  // UTF-8
  const char* const rest = length < plan.size() ? "..." : "";
  fail(ErrorCode::invalid_argument, "comm.plan", "'", plan.substr(0, length), rest, "' is no plan: ", because,
       ". Plans are for example int4+ef, sign:1024+ef, int8:stochastic, delta+int4 and dgc:0.001");
}

std::string shortest(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

}  // namespace octavo
