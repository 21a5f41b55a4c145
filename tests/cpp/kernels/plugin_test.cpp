// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/plugin.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace octavo {

namespace {

/// Returns the loader's reason why a plug-in was not loaded.
std::string reason(const char* name) {
  EXPECT_EQ(plugin(name).table, nullptr) << name;
  return plugin(name).reason;
}

bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(Plugin, AWorkingOneGivesItsTableAndSaysWhereItIsFrom) {
  const Plugin& found = plugin("working");
  ASSERT_NE(found.table, nullptr) << found.reason;
  EXPECT_STREQ(found.table->name, "working");
  EXPECT_EQ(found.reason, "liboctavo_working.so");
  EXPECT_EQ(&plugin("working"), &found);
}

TEST(Plugin, AMissingDeviceSpeaksForItself) { EXPECT_EQ(reason("absent"), "there is no such device"); }

TEST(Plugin, OneOfAnotherTableIsNotCalled) { EXPECT_TRUE(says(reason("old"), "rebuild it")) << reason("old"); }

TEST(Plugin, ALibraryThatIsNoBackEndIsNotCalled) {
  EXPECT_TRUE(says(reason("foreign"), "is not an Octavo back end")) << reason("foreign");
}

TEST(Plugin, OneThatDoesNotLoadSaysWhichSymbolIsMissing) {
  EXPECT_TRUE(says(reason("broken"), "nobody_has_this")) << reason("broken");
}

TEST(Plugin, TheEnvironmentNamesAnotherFileAndThatAloneIsTried) {
  const std::string file = PLUGIN_FOLDER "/liboctavo_working.so";
  ASSERT_EQ(setenv("OCTAVO_RENAMED_PLUGIN", file.c_str(), 1), 0);
  ASSERT_NE(plugin("renamed").table, nullptr) << plugin("renamed").reason;
  EXPECT_EQ(plugin("renamed").table, plugin("working").table);
  EXPECT_EQ(plugin("renamed").reason, file);
  ASSERT_EQ(setenv("OCTAVO_ELSEWHERE_PLUGIN", "/nowhere/at_all.so", 1), 0);
  EXPECT_TRUE(says(reason("elsewhere"), "/nowhere/at_all.so, which the environment names, cannot be loaded"))
      << reason("elsewhere");
}

TEST(Plugin, OneThatIsNowhereIsNamed) { EXPECT_TRUE(says(reason("nowhere"), "liboctavo_nowhere.so")); }

}  // namespace

}  // namespace octavo
