// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cuda/compile.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "octavo/kernels/cuda/driver.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/block_codecs.h"
#include "tests/cpp/refusal.h"

/// Compiles device source by NVRTC itself, which needs neither a GPU nor a driver.
namespace octavo::cuda_backend {
namespace {

/// Machine code is an ELF file of machine 190 (EM_CUDA).
bool is_machine_code(const std::string& compiled) {
  return compiled.starts_with(
             "\x7F"
             "ELF") &&
         compiled.size() > 64 && static_cast<unsigned char>(compiled[18]) == 190;
}

std::string step_options(int parameter, int gradient, int state) {
  return "-DOCTAVO_PARAMETER_FORMAT=" + std::to_string(parameter) +
         " -DOCTAVO_GRADIENT_FORMAT=" + std::to_string(gradient) + " -DOCTAVO_STATE_FORMAT=" + std::to_string(state);
}

/// Returns the programs of a codec: without error feedback, with it, and with everything.
std::vector<std::string> codec_options(const std::string& name, bool has_scale) {
  const std::string options = "-DOCTAVO_CODEC=" + name + " -DOCTAVO_HAS_SCALE=" + (has_scale ? "1" : "0");
  return {options, options + " -DOCTAVO_INPUT_HAS=9", options + " -DOCTAVO_INPUT_HAS=31"};
}

/// Returns every program at least once: all codecs, and steps of each format of states.
std::vector<lanes::KernelName> programs() {
  static std::deque<std::string> stems;
  std::vector<lanes::KernelName> all;
  for (const lanes::SourceFile& file : lanes::embedded_files) {
    const std::filesystem::path path = file.name;
    if (path.extension() != ".kernel" || path.stem() == "block_codec") continue;
    all.push_back({stems.emplace_back(path.stem()).c_str(), ""});
  }
  for (const char* step : {"adamw", "lion"}) {
    for (const int state : {0, 1, 2}) all.push_back({step, "", step_options(state, 0, state)});
  }
#define OCTAVO_ADD(name, text, ...)                                                                  \
  for (const std::string& options : codec_options(#name, RuleOf<BlockCodec::name>::type::kHasScale)) \
    all.push_back({"block_codec", "", options});
  OCTAVO_BLOCK_CODECS(OCTAVO_ADD)
#undef OCTAVO_ADD
  return all;
}

/// A folder for compiled programs, which is empty at first.
class CompileTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/octavo_cuda_cache.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    setenv("OCTAVO_CUDA_CACHE", name, /*overwrite=*/1);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::vector<std::filesystem::path> files() const {
    const std::filesystem::directory_iterator all(folder_);
    return {begin(all), end(all)};
  }

  std::filesystem::path folder_;
};

TEST_F(CompileTest, EveryProgramBecomesMachineCode) {
  for (const lanes::KernelName& name : programs()) {
    EXPECT_TRUE(is_machine_code(compile(name, 90))) << name.program << ' ' << name.options;
  }
}

TEST_F(CompileTest, ProgramsCompileForOldAndNewArchitectures) {
  for (const int architecture : {75, 80, 120}) {
    EXPECT_TRUE(is_machine_code(compile({"top_k", ""}, architecture))) << architecture;
    EXPECT_TRUE(is_machine_code(compile({"adamw", "", step_options(2, 2, 1)}, architecture))) << architecture;
  }
}

TEST_F(CompileTest, AnArchitectureAfterAllThatNvrtcKnowsGetsPtx) {
  EXPECT_NE(compile({"residual", ""}, 999).find(".target sm_"), std::string::npos);
}

TEST_F(CompileTest, AnArchitectureBeforeAllThatNvrtcKnowsIsRefused) {
  const std::string sentence = refusal_of([] { compile({"residual", ""}, 35); }, ErrorCode::unsupported);
  EXPECT_NE(sentence.find("the device has 3.5: install an older nvidia-cuda-nvrtc"), std::string::npos) << sentence;
}

TEST_F(CompileTest, SourceThatDoesNotCompileIsNamedWithItsFirstError) {
  const lanes::KernelName broken = {"residual", "", "-Dfloat=nothing"};
  const std::string sentence = refusal_of([&] { compile(broken, 90); }, ErrorCode::internal);
  EXPECT_NE(sentence.find("octavo/kernels/lanes/residual.kernel does not compile for compute capability 9.0: "),
            std::string::npos)
      << sentence;
  EXPECT_NE(sentence.find("error: "), std::string::npos) << sentence;
}

TEST_F(CompileTest, WhatWasCompiledIsTakenFromItsFile) {
  const std::string compiled = compile({"residual", ""}, 90);
  ASSERT_EQ(files().size(), 1);
  const auto long_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  std::filesystem::last_write_time(files()[0], long_ago);
  EXPECT_EQ(compile({"residual", ""}, 90), compiled);
  EXPECT_EQ(std::filesystem::last_write_time(files()[0]), long_ago);  // compiled again, it would be written again
  compile({"residual", ""}, 80);
  EXPECT_EQ(files().size(), 2);
}

TEST_F(CompileTest, AFileThatWasDamagedIsCompiledAgain) {
  const std::string compiled = compile({"residual", ""}, 90);
  std::fstream file(files().at(0), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-100, std::ios::end);
  const char changed = static_cast<char>(compiled[compiled.size() - 100] ^ 1);
  file.write(&changed, 1);
  file.close();
  EXPECT_EQ(compile({"residual", ""}, 90), compiled);
}

TEST_F(CompileTest, AFolderInTheFilesPlaceOnlyCostsTime) {
  const std::string compiled = compile({"residual", ""}, 90);
  const std::filesystem::path file = files().at(0);
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_EQ(compile({"residual", ""}, 90), compiled);
  EXPECT_EQ(files().size(), 1);  // nothing is left of the attempt to save
}

TEST_F(CompileTest, AFileThatWasCutIsCompiledAgain) {
  const std::string compiled = compile({"residual", ""}, 90);
  const std::filesystem::path file = files().at(0);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_EQ(compile({"residual", ""}, 90), compiled);
}

TEST_F(CompileTest, AFolderThatCannotBeWrittenOnlyCostsTime) {
  setenv("OCTAVO_CUDA_CACHE", "/proc/octavo", 1);
  EXPECT_TRUE(is_machine_code(compile({"residual", ""}, 90)));
  setenv("OCTAVO_CUDA_CACHE", "", 1);
  EXPECT_TRUE(is_machine_code(compile({"residual", ""}, 90)));
}

}  // namespace
}  // namespace octavo::cuda_backend
