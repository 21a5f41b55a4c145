// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/comm/feedback/feedback.h"
#include "octavo/rules/residual.h"

namespace octavo {

// What a rank could not send of its contributions, and of the sums that it owns.
inline constexpr Role kWorkerResidual = {
    .name = "worker", .extent = Extent::sent, .dtype = at::kBFloat16, .is_owed = true};
inline constexpr Role kOwnerResidual = {
    .name = "owner", .extent = Extent::owned, .dtype = at::kBFloat16, .is_owed = true};
// What codes left out of its contributions to the sums that it owns, where these contributions are encoded, too.
inline constexpr Role kOwnResidual = {
    .name = "own", .extent = Extent::own_contribution, .dtype = at::kBFloat16, .is_owed = true};

/// `+ef`, error feedback (EF14: Seide et al. 2014, Karimireddy et al. 2019) on both ways: what codes leave out of a
/// value is kept, and added to the next step's value. Encoders do it in the same pass (EncodeInput::residual). For a
/// way whose codec leaves no error nothing is kept.
///
/// With `+ef:DECAY` a rank multiplies what it could not send, e, before it adds it to its contribution d: it sends a
/// code of v = DECAY*e + d and keeps v less what the code decodes to (SparseLoCo: Sarfi et al. 2025, with 0.95). What
/// is not sent for long is forgotten, so that a sparse codec does not send stale values. What an owner could not send
/// of its sums does not decay.
///
/// `+ef:8bit` and `+ef:DECAY:8bit` keep the same in 8 bits instead of bfloat16, which takes half the memory and more
/// passes over a tensor (PackedOwed).
class OCTAVO_API Ef14 final : public Feedback {
 public:
  enum class Kept { bfloat16, in_8_bits };
  /// `decay`: above 0, at most 1.
  explicit Ef14(double decay = 1, Kept kept = Kept::bfloat16) : decay_(decay), kept_(kept) {}
  std::string text() const override;
  std::vector<Role> roles() const override;
  void require_fit(const CodecText& text, const Codec& codec) const override;
  bool fits_exact_way() const override { return true; }
  void require_fit(const CodecText& text, const LinearMap& map) const override;
  bool fits_kept_sums() const override { return true; }
  bool keeps_own_residual() const override { return true; }
  std::shared_ptr<FeedbackMemory> remember(StateStore& store, std::size_t parameter) const override;
  FeedbackPtr with_decay(double decay) const override { return std::make_shared<Ef14>(decay, kept_); }
  bool knows_owed_share() const override { return true; }
  OwedByRange owed(const KeptByRole& kept, const ParameterInfo& parameter, int rank, int world_size) const override;

 private:
  double decay_;
  Kept kept_;
};

/// Makes the feedback of `ef[:DECAY][:8bit]`.
FeedbackPtr make_ef14(const CodecText& text);

/// What is owed of one tensor, for each way, with one element for each that is sent.
template <class Element>
class OCTAVO_API Owed {
 public:
  /// `worker` is of Extent::sent, `owner` of Extent::owned.
  Owed(Versioned& worker, Versioned& owner, int rank, int world_size)
      : worker_(worker), owner_(owner), rank_(rank), world_size_(world_size) {}

  /// Opens what is owed. A way whose codec leaves no error has nothing, unless an earlier plan left something, which is
  /// then sent.
  void begin(c10::Device device, const Contribution& tensor);

  /// What is owed of a part: `now`, what the last step left over, and `next`, where to keep what this step leaves over.
  /// Null: there is nothing yet.
  struct Place {
    const Element* now = nullptr;
    Element* next = nullptr;
  };
  Place at(const SentPart& part) const;

 private:
  Versioned &worker_, &owner_;
  int rank_, world_size_;
  OthersRanges others_;
  Place up_, down_;
};

extern template class Owed<rules::Residual>;
extern template class Owed<float>;
using Residuals = Owed<rules::Residual>;

class OCTAVO_API Ef14Memory final : public FeedbackMemory {
 public:
  /// `decay`: for what the worker owes. `own`: the state of kOwnResidual; null: a rank's own values are not encoded.
  Ef14Memory(Versioned& worker, Versioned& owner, int rank, int world_size, float decay = 1.0F,
             Versioned* own = nullptr)
      : residuals_(worker, owner, rank, world_size), own_(own), rank_(rank), world_size_(world_size), decay_(decay) {}
  void begin(c10::Device device, const Contribution& tensor, float power) override;
  void encode(const SentPart& part, const EncodeInput& input) override;

 private:
  Residuals::Place at(const SentPart& part) const;

  Residuals residuals_;
  Versioned* own_;
  int rank_, world_size_;
  float decay_;
  float owed_share_ = 1.0F;
  Range own_range_;
  Residuals::Place of_own_;
};

}  // namespace octavo
