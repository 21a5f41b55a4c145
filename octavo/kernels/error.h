// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "octavo/export.h"

namespace octavo {

enum class ErrorCode {
  invalid_argument,  // ValueError in Python
  wrong_type,        // TypeError
  unsupported,       // NotImplementedError
  timeout,           // TimeoutError
  out_of_memory,     // MemoryError; from an operator, torch.OutOfMemoryError
  communication,     // RuntimeError: a peer failed; the process group and the handle must be rebuilt
  internal,          // RuntimeError: a defect of Octavo
};

/// The exception that every function of Octavo throws: one sentence that begins with `[module.function]`.
class OCTAVO_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// Throws Error with the sentence `[where] parts...`.
template <class... Parts>
[[noreturn]] void fail(ErrorCode code, std::string_view where, Parts&&... parts) {
  std::ostringstream sentence;
  sentence << '[' << where << "] ";
  (sentence << ... << std::forward<Parts>(parts));
  throw Error(code, sentence.str());
}

/// Returns a pointer that was given. Throws Error invalid_argument with the sentence for a null one.
template <class Pointer>
Pointer required(Pointer given, std::string_view where, std::string_view sentence) {
  if (!given) fail(ErrorCode::invalid_argument, where, sentence);
  return given;
}

}  // namespace octavo
