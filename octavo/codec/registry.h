// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "octavo/codec/codec.h"
#include "octavo/codec/codec_text.h"
#include "octavo/codec/linear_map.h"
#include "octavo/export.h"

/// Finds codecs by the names that plans use for them.
namespace octavo {

/// Makes the codec that a text asks for, or refuses it.
using CodecFactory = std::function<CodecPtr(const CodecText& text)>;

/// Makes `name` the name of a codec in plans, in this process; all ranks of a job must do so. A later registration of
/// the name takes the place of the first one, so that a library may be built and loaded again; plans that exist keep
/// their codecs. A library that has registered a codec must stay loaded. Thread-safe. Throws Error invalid_argument for
/// a name of Octavo's own codecs, and for one that is not made of letters, digits and '-'.
OCTAVO_API void register_codec(const std::string& name, CodecFactory factory);

OCTAVO_API CodecPtr make_codec(const CodecText& text);
/// Makes the linear map that a text asks for; null where there is none of that name.
OCTAVO_API LinearMapPtr make_map(const CodecText& text);
/// Returns all names: of Octavo's own codecs, then of other codecs, then of maps.
OCTAVO_API std::vector<std::string> codec_names();

}  // namespace octavo
