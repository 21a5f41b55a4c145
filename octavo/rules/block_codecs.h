// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/rules/majority_vote.h"
#include "octavo/rules/mini_float.h"
#include "octavo/rules/plain_float.h"
#include "octavo/rules/scaled_sign.h"
#include "octavo/rules/sign_of_two.h"
#include "octavo/rules/symmetric_int.h"
#include "octavo/rules/ternary.h"

/// All block codecs, one line each: a new codec needs a file for its rule and a line here. X(name, the name in a plan,
/// rule)
///
/// int4 has one scale per 64 values. With 256, a block of an embedding held several rows, the scale of a frequent token
/// was too coarse for a rare one, and training could stop at a plateau (docs/quality/experiments.md).
#define OCTAVO_BLOCK_CODECS(X)                                  \
  X(fp32, "fp32", rules::Fp32)                                  \
  X(bf16, "bf16", rules::Bfloat16)                              \
  X(fp16, "fp16", rules::Fp16)                                  \
  X(fp8, "fp8", rules::ScaledFloat<rules::E4M3, 256>)           \
  X(fp8_e5m2, "fp8-e5m2", rules::ScaledFloat<rules::E5M2, 256>) \
  X(e3m0, "e3m0", rules::ScaledFloat<rules::E3M0, 64>)          \
  X(int8, "int8", rules::SymmetricInt<8, 256>)                  \
  X(int7, "int7", rules::SymmetricInt<7, 128>)                  \
  X(int6, "int6", rules::SymmetricInt<6, 64>)                   \
  X(int5, "int5", rules::SymmetricInt<5, 64>)                   \
  X(int4, "int4", rules::SymmetricInt<4, 64>)                   \
  X(int3, "int3", rules::SymmetricInt<3, 64>)                   \
  X(int2, "int2", rules::SymmetricInt<2, 64>)                   \
  X(sign2, "sign2", rules::SignOfTwo)                           \
  X(ternary, "ternary", rules::Ternary)                         \
  X(sign, "sign", rules::ScaledSign)                            \
  X(sign_vote, "sign-vote", rules::MajorityVote)

namespace octavo {

enum class BlockCodec : std::uint8_t {
#define OCTAVO_ENUMERATOR(name, text, ...) name,
  OCTAVO_BLOCK_CODECS(OCTAVO_ENUMERATOR)
#undef OCTAVO_ENUMERATOR
};

/// RuleOf<BlockCodec::int4>::type is the rule of int4.
template <BlockCodec codec>
struct RuleOf;
#define OCTAVO_RULE_OF(name, text, ...) \
  template <>                           \
  struct RuleOf<BlockCodec::name> {     \
    using type = __VA_ARGS__;           \
  };
OCTAVO_BLOCK_CODECS(OCTAVO_RULE_OF)
#undef OCTAVO_RULE_OF

#define OCTAVO_COUNT(...) +1
inline constexpr std::size_t kBlockCodecs = OCTAVO_BLOCK_CODECS(OCTAVO_COUNT);
#undef OCTAVO_COUNT

}  // namespace octavo
