// SPDX-License-Identifier: Apache-2.0
#include "octavo/outer/fragment.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "octavo/device/dispatch.h"
#include "octavo/device/finite.h"
#include "octavo/device/host_alias.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"
#include "octavo/optim/flat.h"

namespace octavo {

namespace {

constexpr const char* kFragmentWhere = "outer.Fragment";

std::uint64_t count_of(const at::Tensor& tensor) { return static_cast<std::uint64_t>(tensor.numel()); }

std::vector<ParameterInfo> infos_of(const std::vector<OuterParameter>& parameters,
                                    const std::vector<FragmentPart>& parts) {
  std::vector<ParameterInfo> infos;
  for (const FragmentPart& part : parts) {
    const OuterParameter& whole = parameters[part.parameter];
    infos.push_back({whole.name, part.range.count, whole.exempt, part.rows});
  }
  return infos;
}

/// Calls `body` for pieces of `count` elements, one after another. On the CPU, what one operation makes of a piece is
/// still in the cache when the next operation takes it; a device gets all elements at once.
template <class Body>
void for_pieces(c10::Device device, std::uint64_t count, const Body& body) {
  constexpr std::uint64_t kPieceOfThread = 1U << 18;
  const std::uint64_t most = device.is_cpu() ? kPieceOfThread * static_cast<unsigned>(at::get_num_threads()) : count;
  for (std::uint64_t first = 0; first < count; first += most) body(Range{first, std::min(most, count - first)});
}

}  // namespace

OuterParameter::OuterParameter(std::string name, at::Tensor tensor, bool exempt)
    : name(std::move(name)),
      tensor(std::move(tensor)),
      exempt(exempt),
      layout(this->tensor.defined()
                 ? at::empty_strided(this->tensor.sizes(), this->tensor.strides(), at::device(at::kMeta))
                 : at::Tensor()) {}

void OuterParameter::require_as_at_first() const {
  if (tensor.sizes() == layout.sizes() && tensor.strides() == layout.strides()) return;
  fail(ErrorCode::invalid_argument, kFragmentWhere, name, " now has the sizes ", tensor.sizes(), " and strides ",
       tensor.strides(), ", and had ", layout.sizes(), " and ", layout.strides(),
       ": build Outer after the model has its form, also its memory format");
}

at::Tensor elements_of(const at::Tensor& tensor, Range range) {
  return tensor.detach().as_strided({static_cast<std::int64_t>(range.count)}, {1},
                                    tensor.storage_offset() + static_cast<std::int64_t>(range.first));
}

std::vector<std::vector<FragmentPart>> cut_into_fragments(const std::vector<OuterParameter>& parameters,
                                                          std::uint64_t count) {
  std::uint64_t total = 0, before = 0;
  for (const OuterParameter& parameter : parameters) total += count_of(parameter.tensor);
  const auto begin_of = [&](std::uint64_t fragment) { return divide_up(fragment * total, count); };
  std::vector<std::vector<FragmentPart>> fragments(count);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const std::uint64_t rows = rows_of(parameters[p].tensor.sizes()), row = count_of(parameters[p].tensor) / rows;
    const auto first_row_in = [&](std::uint64_t fragment) {
      const std::uint64_t begin = begin_of(fragment);
      return begin <= before || row == 0 ? 0 : std::min(rows, divide_up(begin - before, row));
    };
    for (std::uint64_t f = 0; f < count; ++f) {
      const std::uint64_t first = first_row_in(f), last = f + 1 < count ? first_row_in(f + 1) : rows;
      if (first < last && row > 0) fragments[f].push_back({p, {first * row, (last - first) * row}, last - first});
    }
    before += rows * row;
  }
  for (const auto& parts : fragments) {
    if (!parts.empty()) continue;
    if (before == 0) fail(ErrorCode::invalid_argument, kFragmentWhere, "no parameter that is trained has an element");
    fail(ErrorCode::invalid_argument, kFragmentWhere, "the rows of these ", parameters.size(),
         " parameters cannot be divided into ", count, " fragments of equal size: ask for fewer");
  }
  return fragments;
}

Fragment::Fragment(const std::vector<OuterParameter>& parameters, std::vector<FragmentPart> parts,
                   std::unique_ptr<Wire> wire, const Plan& plan, CompressorOptions options, bool has_momentum)
    : parameters_(parameters),
      parts_(std::move(parts)),
      compressor_(std::make_unique<Compressor>(std::move(wire), plan.coding_own(), infos_of(parameters_, parts_),
                                               std::move(options))) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    offsets_.push_back(count);
    slots_.push_back({i, static_cast<std::uint64_t>(count)});
    count += static_cast<std::int64_t>(parts_[i].range.count);
  }
  const auto like = at::TensorOptions(at::kFloat).device(parameters_[parts_[0].parameter].tensor.device());
  anchor_ = at::empty({count}, like);
  if (has_momentum) momentum_ = at::zeros({count}, like);
  for (std::size_t i = 0; i < parts_.size(); ++i) all_of(anchor_, i).copy_(own(parts_[i]));
}

at::Tensor Fragment::own(const FragmentPart& part) const {
  const OuterParameter& parameter = parameters_[part.parameter];
  parameter.require_as_at_first();
  if (parameter.tensor.device() != anchor_.device()) {
    fail(ErrorCode::invalid_argument, kFragmentWhere, parameter.name, " is now on ", parameter.tensor.device().str(),
         ", and was on ", anchor_.device().str(), ": build Outer after the model was moved");
  }
  return elements_of(parameter.tensor, part.range);
}

/// Indexed by part.
std::vector<at::Tensor> Fragment::all_own() const {
  std::vector<at::Tensor> all;
  for (const FragmentPart& part : parts_) all.push_back(own(part));
  return all;
}

at::Tensor Fragment::all_of(const at::Tensor& flat, std::size_t part) const {
  return flat.narrow(0, offsets_[part], static_cast<std::int64_t>(parts_[part].range.count));
}

at::Tensor& Fragment::difference() {
  if (!difference_.defined()) difference_ = at::empty_like(anchor_);
  return difference_;
}

void Fragment::drift(double multiple) {
  const std::vector<at::Tensor> mine = all_own();
  for (std::size_t i = 0; i < parts_.size(); ++i) mine[i].sub_(all_of(momentum_, i), multiple);
  drifted_.now += multiple;
}

void Fragment::begin_round() {
  drifted_.sent = drifted_.now;
  at::Tensor& all = difference();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const at::Tensor whole = own(parts_[i]), differences = all_of(all, i);
    const OwedByRange owed = this->owed(i);
    for_pieces(whole.device(), parts_[i].range.count, [&](Range piece) {
      const at::Tensor from = start(i, owed, piece), mine = elements_of(whole, piece);
      at::Tensor to = elements_of(differences, piece);
      if (mine.scalar_type() == at::kFloat) {
        at::sub_out(to, from, mine);
      } else {  // from the start as the rank had it: what rounding took from it is no step of the rank's
        to.copy_(from.to(mine.scalar_type())).sub_(mine);
      }
    });
  }
}

/// Returns what this rank's start lacks of the anchor; null: nothing.
OwedByRange Fragment::owed(std::size_t part) const {
  return starts_at_anchor_ ? OwedByRange() : compressor_->owed(part);
}

/// Returns the start and what ranks have drifted since, in float32: a view of the anchor, or another tensor.
at::Tensor Fragment::start(std::size_t part, const OwedByRange& owed, Range piece) const {
  at::Tensor from = elements_of(all_of(anchor_, part), piece);
  if (owed) {
    at::Tensor lacking = owed(piece).to(from.device());
    from = at::sub_out(lacking, from, lacking);
  }
  return drifted_.now == 0 ? from : from.sub(elements_of(all_of(momentum_, part), piece), drifted_.now);
}

bool Fragment::exchange(std::uint64_t mark) {
  gave_finite_values_ = all_finite(difference_);
  compressor_->begin_step(mark);
  try {
    compressor_->reduce(where_kernels_run(difference_), slots_);
  } catch (...) {
    compressor_->abandon_step();
    throw;
  }
  return compressor_->end_step();
}

void Fragment::end_round(rules::OuterStep step) {
  const std::vector<at::Tensor> mine = all_own();  // before anything has moved, because a parameter may be refused
  starts_at_anchor_ = step.own_share > 0;
  if (step.is_spread) step.momentum = static_cast<float>(drifted_.sent / -step.minus_lr);
  drifted_ = {};
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const OwedByRange owed = this->owed(i);
    for_pieces(mine[i].device(), parts_[i].range.count, [&](Range piece) {
      const at::Tensor values = elements_of(mine[i], piece);
      move_anchor(step, i, piece, values);
      if (owed) values.copy_(start(i, owed, piece));  // otherwise they are at their start already
    });
    mine[i].unsafeGetTensorImpl()->bump_version();
    // The anchor, because this rank's own values may be NaN for other reasons, and all ranks must throw together.
    if (mine[i].scalar_type() == at::kHalf) require_in_range(i, all_of(anchor_, i).to(at::kHalf));
  }
}

/// Throws where values of a part that were made of the anchor are not finite. In end_round() all ranks throw together,
/// in return_to_start() perhaps this one alone.
void Fragment::require_in_range(std::size_t part, const at::Tensor& values) const {
  if (all_finite(values)) return;
  fail(ErrorCode::invalid_argument, kFragmentWhere, "the anchor of ", parameters_[parts_[part].parameter].name,
       " has left the range of ", toString(values.scalar_type()), ", so that no rank can continue from it: train with ",
       values.scalar_type() == at::kHalf ? "parameters in bfloat16 or float32, or " : "", "a smaller learning rate");
}

/// Moves the anchor and `values`, this rank's own, for one piece of a part.
void Fragment::move_anchor(const rules::OuterStep& step, std::size_t part, Range piece, const at::Tensor& values) {
  const auto floats_of = [&](const at::Tensor& all) {
    return elements_of(all_of(all, part), piece).mutable_data_ptr<float>();
  };
  Flat parameter(values, values);
  const float* const difference = floats_of(difference_);
  // without a momentum the step writes the difference to the momentum's place, which may be where it is
  float* const momentum = floats_of(momentum_.defined() ? momentum_ : difference_);
  float *const anchor = floats_of(anchor_), *const own = parameter.data();
  for_elements(values, [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    scope.kernels().outer_step(scope.queue(), step, size, difference + first, momentum + first, anchor + first,
                               own + first);
  });
  parameter.write_back();
}

void Fragment::return_to_start() {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const at::Tensor mine = own(parts_[i]);
    const OwedByRange owed = this->owed(i);
    for_pieces(mine.device(), parts_[i].range.count,
               [&](Range piece) { elements_of(mine, piece).copy_(start(i, owed, piece)); });
    require_in_range(i, mine);
  }
}

void Fragment::return_to_anchor() {
  starts_at_anchor_ = true;
  drifted_ = {};
  return_to_start();
}

Fragment::Views Fragment::owed_of(const std::map<std::string, at::Tensor>& residuals, int rank, int world_size) const {
  Views all;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const OwedByRange owed = compressor_->owed_of(i, residuals, rank, world_size);
    if (owed) all.emplace_back(parts_[i], owed({0, parts_[i].range.count}));
  }
  return all;
}

bool Fragment::own_values_are_finite() const {
  return std::all_of(parts_.begin(), parts_.end(), [&](const FragmentPart& part) { return all_finite(own(part)); });
}

Fragment::Views Fragment::differences() { return views_of(difference()); }

Fragment::Views Fragment::views_of(const at::Tensor& flat) const {
  Views views;
  for (std::size_t i = 0; i < parts_.size(); ++i) views.emplace_back(parts_[i], all_of(flat, i));
  return views;
}

std::uint64_t Fragment::dense_bytes() const {
  std::uint64_t bytes = 0;
  for (const FragmentPart& part : parts_) {
    bytes += part.range.count * parameters_[part.parameter].tensor.element_size();
  }
  return ring_bytes(bytes, compressor_->peer_count());
}

}  // namespace octavo
