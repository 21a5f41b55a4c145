// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "octavo/comm/compressor.h"
#include "octavo/export.h"
#include "octavo/rules/outer_step.h"

namespace octavo {

/// A parameter that ranks move by themselves between rounds.
struct OCTAVO_API OuterParameter {
  /// `tensor`: of a floating dtype, dense in any memory order; it belongs to the caller and is changed in place.
  /// `exempt`: it is sent in float32.
  OuterParameter(std::string name, at::Tensor tensor, bool exempt);

  std::string name;
  at::Tensor tensor;
  bool exempt;
  at::Tensor layout;  // without memory: the sizes and strides of the tensor as they were at first

  /// Throws Error invalid_argument where the tensor has other sizes or strides by now, because anchors have its memory
  /// order.
  void require_as_at_first() const;
};

/// Consecutive elements of a parameter, in its memory order: whole rows of it where that order is row-major.
struct FragmentPart {
  std::size_t parameter;  // index
  Range range;
  std::uint64_t rows;
};

/// Cuts the parameters, one after another, at rows into `count` fragments of equal size. A parameter of one dimension
/// is one row. Throws Error invalid_argument where a fragment would get nothing.
OCTAVO_API std::vector<std::vector<FragmentPart>> cut_into_fragments(const std::vector<OuterParameter>& parameters,
                                                                     std::uint64_t count);

/// A part of the model that is exchanged in rounds of its own: its anchor, the outer optimizer's momentum, and the
/// compressor of how far ranks have moved from the anchor. Not thread-safe, except that exchange() may run on another
/// thread between begin_round() and end_round().
///
/// Where the momentum is spread (OuterOptions), a rank moves by a part of it after each of its steps. Such moves are no
/// progress of the rank's own: they are not sent. The anchor moves by their mean over ranks.
///
/// A rank begins a round at its start: the anchor, less what it still owes (Compressor::owed). What codes have left out
/// of its progress stays in its own values, so that its next gradients know of it. If it began at the anchor itself, it
/// would make the same progress once more, and send it beside what it owes (docs/quality/experiments.md).
class OCTAVO_API Fragment {
 public:
  /// `parameters` must outlive this object. Their current values become the anchor.
  Fragment(const std::vector<OuterParameter>& parameters, std::vector<FragmentPart> parts, std::unique_ptr<Wire> wire,
           const Plan& plan, CompressorOptions options, bool has_momentum);

  /// Moves this rank's values by `multiple` of the momentum, against it, as the anchor moves. Throws as begin_round()
  /// does, before anything has moved.
  void drift(double multiple);
  /// Takes the difference between this rank's start and its values, without what it has drifted. Throws Error
  /// invalid_argument where a parameter has another shape, other strides or another device than at first.
  void begin_round();
  /// Makes the difference the mean over ranks. Returns whether the mean is finite, the same on all ranks; if it is not,
  /// nothing that was sent counts. Throws what Wire throws, and Error communication where ranks have other marks.
  bool exchange(std::uint64_t mark);
  /// Whether what this rank gave to the last exchange was finite.
  bool gave_finite_values() const { return gave_finite_values_; }
  /// Moves the anchor along the mean, and this rank's values to its next start. With a spread momentum the anchor moves
  /// along it by drifted().sent, which must be the mean over ranks by then, and `step.momentum` is not used. The rank
  /// keeps the share of its own values that `step` says; what it owes is then a part of them, and its start is the
  /// anchor. Throws as begin_round() does, before anything has moved, and Error invalid_argument where the anchor has
  /// left the range of a float16 parameter.
  void end_round(rules::OuterStep step);
  /// Sets this rank's values to where they would be if it had made no step of its own since its start: to the start and
  /// what all ranks have drifted since. Throws Error invalid_argument where the parameter's dtype cannot hold it.
  void return_to_start();
  /// Sets this rank's values to the anchor, which then is the start, too.
  void return_to_anchor();
  bool own_values_are_finite() const;

  /// Each part with its values: float32, one dimension. There are no momenta where there is no momentum. Differences
  /// are those of the last begin_round(), or after exchange() the means.
  using Views = std::vector<std::pair<FragmentPart, at::Tensor>>;
  Views anchors() const { return views_of(anchor_); }
  Views momenta() const { return momentum_.defined() ? views_of(momentum_) : Views(); }
  Views differences();
  /// Returns what a rank that did not start at the anchor has in its values beside the anchor and its progress.
  /// `residuals`: those of its compressor, in a world of `world_size` ranks.
  Views owed_of(const std::map<std::string, at::Tensor>& residuals, int rank, int world_size) const;

  /// Whether this rank's start is the anchor. It must be restored with the residuals.
  bool starts_at_anchor() const { return starts_at_anchor_; }
  void set_starts_at_anchor(bool starts_there) { starts_at_anchor_ = starts_there; }
  /// How far ranks have drifted since their start, as a multiple of the momentum: now, and when they last sent.
  struct Drifted {
    double now = 0, sent = 0;
  };
  const Drifted& drifted() const { return drifted_; }
  void set_drifted(const Drifted& drifted) { drifted_ = drifted; }
  Compressor& compressor() { return *compressor_; }
  const std::vector<FragmentPart>& parts() const { return parts_; }
  std::uint64_t dense_bytes() const;  // what a ring sends for its gradients

 private:
  Views views_of(const at::Tensor& flat) const;
  at::Tensor own(const FragmentPart& part) const;
  std::vector<at::Tensor> all_own() const;
  OwedByRange owed(std::size_t part) const;
  void require_in_range(std::size_t part, const at::Tensor& values) const;
  at::Tensor start(std::size_t part, const OwedByRange& owed, Range piece) const;
  void move_anchor(const rules::OuterStep& step, std::size_t part, Range piece, const at::Tensor& values);
  at::Tensor& difference();
  at::Tensor all_of(const at::Tensor& flat, std::size_t part) const;

  const std::vector<OuterParameter>& parameters_;
  std::vector<FragmentPart> parts_;
  std::vector<std::int64_t> offsets_;  // offsets of the parts in the flat tensors
  std::vector<Slot> slots_;
  std::unique_ptr<Compressor> compressor_;
  at::Tensor anchor_, momentum_, difference_;  // float32, flat; momentum_ is undefined where there is none
  bool gave_finite_values_ = true;
  bool starts_at_anchor_ = true;
  Drifted drifted_;
};

/// Returns a view of consecutive elements of a dense tensor, in its memory order, as one dimension.
OCTAVO_API at::Tensor elements_of(const at::Tensor& tensor, Range range);

}  // namespace octavo
