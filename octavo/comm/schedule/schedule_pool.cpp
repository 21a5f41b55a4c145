// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/schedule_pool.h"

#include <algorithm>
#include <utility>

#include "octavo/comm/schedule/dense_sum.h"
#include "octavo/comm/schedule/hierarchical.h"
#include "octavo/comm/schedule/linear_sum.h"
#include "octavo/comm/schedule/one_phase.h"

namespace octavo {

namespace {

constexpr std::uint64_t kStepsBetweenShrinks = 8;

}  // namespace

SchedulePool::SchedulePool(Wire& wire, Wire* host, bool owners_keep_sums)
    : wire_(wire), host_(host), owners_keep_sums_(owners_keep_sums) {}

void SchedulePool::begin_step() {
  if (++steps_ % kStepsBetweenShrinks != 0) return;
  if (recent_bytes_ > 0 && recent_bytes_ < largest_bytes_ / 2) {
    idle_encoding_.clear();
    idle_dense_.clear();
    largest_bytes_ = recent_bytes_;
  }
  recent_bytes_ = 0;
}

std::unique_ptr<Schedule> SchedulePool::take(c10::Device device, bool is_encoded, std::uint64_t bucket_bytes) {
  largest_bytes_ = std::max(largest_bytes_, bucket_bytes);
  recent_bytes_ = std::max(recent_bytes_, bucket_bytes);
  auto& free = idle(is_encoded)[device];
  if (free.empty()) return make(device, is_encoded);
  std::unique_ptr<Schedule> schedule = std::move(free.back());
  free.pop_back();
  return schedule;
}

void SchedulePool::give_back(std::unique_ptr<Schedule> schedule, c10::Device device, bool is_encoded) {
  idle(is_encoded)[device].push_back(std::move(schedule));
}

std::unique_ptr<Schedule> SchedulePool::make(c10::Device device, bool is_encoded) {
  if (host_) return std::make_unique<Hierarchical>(*host_, wire_, seconds_, device);
  if (!is_encoded) return std::make_unique<DenseSum>(wire_, seconds_, device, owners_keep_sums_);
  if (owners_keep_sums_) return std::make_unique<OnePhase>(wire_, seconds_, device);
  return std::make_unique<LinearSum>(wire_, seconds_, device);
}

}  // namespace octavo
