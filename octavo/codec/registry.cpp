// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/registry.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <mutex>
#include <utility>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/count_sketch.h"
#include "octavo/codec/lsh.h"
#include "octavo/codec/power_sgd.h"
#include "octavo/codec/random_k.h"
#include "octavo/codec/threshold.h"
#include "octavo/codec/top_k.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

struct Entry {
  std::string name;
  CodecFactory factory;
  bool is_extensions = false;
};

/// Each codec is a line here; block codecs are lines in rules/block_codecs.h.
std::vector<Entry> own_codecs() {
  std::vector<Entry> entries;
  for (const BlockCodec codec : all_block_codecs()) {
    entries.push_back({plan_name(codec), [codec](const CodecText& text) { return make_block_coding(codec, text); }});
  }
  entries.push_back({"topk", make_top_k});
  entries.push_back({"threshold", make_threshold});
  entries.push_back({"randomk", make_random_k});
  entries.push_back({"lsh", make_lsh});
  return entries;
}

struct Map {
  std::string_view name;
  LinearMapPtr (*make)(const CodecText& text);
};

/// Each linear map is a line here.
constexpr Map kMaps[] = {{"powersgd", make_power_sgd}, {"sketch", make_count_sketch}};

constexpr std::string_view kPlanNames[] = {"auto", "delta", "dgc"};  // comm/parameter_plan.cpp reads these itself

struct Registry {
  std::mutex mutex;
  std::vector<Entry> entries = own_codecs();

  static Registry& get() {
    static auto* const registry = new Registry;  // exists as long as the process: extensions may use it late
    return *registry;
  }
  Entry* find(std::string_view name) {
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.name == name; });
    return found == entries.end() ? nullptr : &*found;
  }
};

bool is_name(const std::string& name) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; };
  return !name.empty() && std::all_of(name.begin(), name.end(), fits);
}

bool is_map(std::string_view name) {
  return std::any_of(std::begin(kMaps), std::end(kMaps), [&](const Map& map) { return map.name == name; });
}

/// Refuses what is no codec but a linear map, or a plan of more than a codec. Plans take their own parts off before.
void require_codec(const CodecText& text) {
  const auto has_parts = [](std::string_view piece) { return piece.find_first_of("+;") != std::string_view::npos; };
  bool is_plan = text.name == "auto" || (text.name == "dgc" && !text.options.empty()) || has_parts(text.name);
  std::size_t size = text.name.size();
  for (const std::string_view option : text.options) {
    is_plan = is_plan || has_parts(option);
    size += 1 + option.size();
  }
  if (!is_plan && !is_map(text.name)) return;
  if (size < text.plan.size()) {
    text.refuse("in the place of " + std::string(text.name) + " there must be a codec, such as int8");
  }
  fail(ErrorCode::invalid_argument, "codec.make_codec", "expected a codec, such as int8, got ",
       is_plan ? "a plan, which Plan::parse() reads: " : "a linear map, which make_map() makes: ", text.plan);
}

[[noreturn]] void refuse_name(const CodecText& text) {
  if (text.name == "dgc") text.refuse("it needs a share of the values, as in dgc:0.001");
  if (text.name == "delta") text.refuse("it needs a codec, as in delta+int4");
  std::string names;
  for (const std::string_view own : kPlanNames) names.append(own).append(", ");
  for (const std::string& known : codec_names()) names.append(known).append(", ");
  names.resize(names.size() - 2);
  text.refuse("there is no codec of this name; there are " + names);
}

}  // namespace

void register_codec(const std::string& name, CodecFactory factory) {
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  const auto is_it = [&](std::string_view other) { return other == name; };
  Entry* const known = registry.find(name);
  const bool is_taken = is_map(name) || std::any_of(std::begin(kPlanNames), std::end(kPlanNames), is_it) ||
                        (known != nullptr && !known->is_extensions);
  if (!factory)
    fail(ErrorCode::invalid_argument, "codec.register_codec", "expected a factory for '", name, "', got none");
  if (!is_name(name) || is_taken) {
    fail(ErrorCode::invalid_argument, "codec.register_codec",
         "a codec's name is made of letters, digits and '-', and is none of Octavo's own in plans: got '", name, "'");
  }
  if (known != nullptr) {
    known->factory = std::move(factory);
  } else {
    registry.entries.push_back({name, std::move(factory), /*is_extensions=*/true});
  }
}

CodecPtr make_codec(std::string_view text) { return make_codec(CodecText::parse(text, text)); }

CodecPtr make_codec(const CodecText& text) {
  require_codec(text);
  CodecFactory factory;
  {
    Registry& registry = Registry::get();
    const std::lock_guard lock(registry.mutex);
    if (const Entry* const entry = registry.find(text.name)) factory = entry->factory;
  }
  if (!factory) refuse_name(text);
  CodecPtr codec = factory(text);
  const std::string name(text.name);
  if (!codec) text.refuse("the factory of the codec " + name + " has returned none");
  if (CodecText::parse(codec->text(), codec->text()).name != name) {
    text.refuse("the codec " + name + " calls itself " + codec->text() +
                ", which is read as another one: its text must begin with its name");
  }
  return codec;
}

LinearMapPtr make_map(const CodecText& text) {
  for (const Map& map : kMaps) {
    if (map.name == text.name) return map.make(text);
  }
  return nullptr;
}

std::vector<std::string> codec_names() {
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  std::vector<std::string> names;
  for (const Entry& entry : registry.entries) names.push_back(entry.name);
  for (const Map& map : kMaps) names.emplace_back(map.name);
  return names;
}

}  // namespace octavo
