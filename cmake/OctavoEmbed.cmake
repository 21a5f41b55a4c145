# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=... -DOUT=FILE.cpp -DFILES="a;b" -P OctavoEmbed.cmake: writes the C++ file that holds the device's source as
# string literals, by the names under which it is included.
set(files "")
foreach(file IN LISTS FILES)
  file(READ "${ROOT}/${file}" text)
  string(APPEND files "    {\"${file}\", R\"__octavo__(${text})__octavo__\"},\n")
endforeach()
file(WRITE "${OUT}" "// Written by the build.
#include \"octavo/kernels/lanes/device_backend.h\"

namespace octavo::lanes {

const std::vector<SourceFile> embedded_files = {
${files}};
}  // namespace octavo::lanes
")
