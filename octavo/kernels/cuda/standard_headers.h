// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/lanes/device_backend.h"

/// What device code uses of C++'s standard library, because NVRTC comes without it: one text for each header.
namespace octavo::cuda_backend {

inline constexpr lanes::SourceFile kStandardHeaders[] = {
    {"cstdint", R"(#pragma once
namespace std {
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long;
using uint64_t = unsigned long;
}
)"},
    {"cstddef", R"(#pragma once
namespace std {
using size_t = unsigned long;
}
)"},
    {"algorithm", R"(#pragma once
namespace std {
template <class T>
constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T>
constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
}
)"},
    {"limits", R"(#pragma once
namespace std {
template <class T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  static constexpr float min() { return 0x1p-126F; }
};
}
)"},
    {"type_traits", R"(#pragma once
namespace std {
template <bool kCondition, class Then, class Else>
struct conditional { using type = Then; };
template <class Then, class Else>
struct conditional<false, Then, Else> { using type = Else; };
template <bool kCondition, class Then, class Else>
using conditional_t = typename conditional<kCondition, Then, Else>::type;
}
)"},
};

}  // namespace octavo::cuda_backend
