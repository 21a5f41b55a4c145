// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
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

/// Makes the codec that a text asks for, such as "int8" or "topk:0.01"; the text is not needed afterwards. A codec of
/// Octavo's own can be used as long as the process exists, one of a library as long as that is loaded. Throws Error
/// invalid_argument for a text that names no codec, also where it is a linear map (make_map) or a plan of more than a
/// codec, such as "int4+ef" or "auto" (Plan::parse). Thread-safe.
OCTAVO_API CodecPtr make_codec(std::string_view text);
/// Does the same for a text that is part of a plan, which errors then show.
OCTAVO_API CodecPtr make_codec(const CodecText& text);
/// Makes the linear map that a text asks for; null where there is none of that name.
OCTAVO_API LinearMapPtr make_map(const CodecText& text);
/// Returns all names: of Octavo's own codecs, then of other codecs, then of maps.
OCTAVO_API std::vector<std::string> codec_names();

}  // namespace octavo
