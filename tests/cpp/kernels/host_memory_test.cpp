// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr std::int64_t kMiB = 1 << 20;

TEST(HostMemory, OfThisProcess) {
  const HostMemory memory;
  memory.reset_peak_resident();
  const std::int64_t before = memory.peak_resident_bytes();
  std::vector<char>(64 * kMiB, 1);  // freed at once
  EXPECT_GE(memory.peak_resident_bytes(), before + 60 * kMiB);
  memory.reset_peak_resident();
  EXPECT_LE(memory.peak_resident_bytes(), memory.resident_bytes() + 16 * kMiB);
  EXPECT_LE(memory.available_bytes(), memory.total_bytes());
}

/// A system with 1000 KiB of RAM, 900 of them available, and the control groups that a test writes.
class System : public testing::Test {
 protected:
  void SetUp() override {
    // the directory is named after the process, since two processes may run these tests at once
    root_ = testing::TempDir() + "octavo_host_memory." + std::to_string(::getpid()) + "/";
    std::filesystem::remove_all(root_);
    write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 5 kB\nMemAvailable: 900 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(System, WithoutControlGroups) {
  EXPECT_EQ(HostMemory(root_).total_bytes(), 1000 * 1024);
  EXPECT_EQ(HostMemory(root_).available_bytes(), 900 * 1024);
  EXPECT_THROW(HostMemory(root_).resident_bytes(), Error);
}

TEST_F(System, TheTightestGroupOfVersion2Counts) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/memory.max", "300000\n");
  write("sys/fs/cgroup/outer/memory.current", "200000\n");
  write("sys/fs/cgroup/outer/memory.stat", "anon 150000\ninactive_file 40000\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  EXPECT_EQ(HostMemory(root_).total_bytes(), 300000);
  EXPECT_EQ(HostMemory(root_).available_bytes(), 300000 - 200000 + 40000);
  write("sys/fs/cgroup/outer/inner/memory.max", "100000\n");
  write("sys/fs/cgroup/outer/inner/memory.current", "120000\n");  // the limit was set below the current usage
  EXPECT_EQ(HostMemory(root_).total_bytes(), 100000);
  EXPECT_EQ(HostMemory(root_).available_bytes(), 0);
}

TEST_F(System, InAContainerOfVersion1ThePathIsTheHosts) {
  write("proc/self/cgroup", "5:cpu:/\n4:memory:/docker/0a1b\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  write("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 20000\n");
  EXPECT_EQ(HostMemory(root_).total_bytes(), 500000);
  EXPECT_EQ(HostMemory(root_).available_bytes(), 420000);
}

}  // namespace

}  // namespace octavo
