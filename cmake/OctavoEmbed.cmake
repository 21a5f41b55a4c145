# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=... -DOUT=FILE.cpp -DHEADERS="a;b" -DKERNELS="x;y" -P OctavoEmbed.cmake: writes the C++ file that holds the
# device's source as string literals: headers by the name under which they are included, kernels likewise.
set(files "")
set(program "#include <sycl/sycl.hpp>\\n")
foreach(file IN LISTS HEADERS KERNELS)
  file(READ "${ROOT}/${file}" text)
  string(APPEND files "    {\"${file}\", R\"__octavo__(${text})__octavo__\"},\n")
endforeach()
foreach(file IN LISTS KERNELS)
  string(APPEND program "#include \\\"${file}\\\"\\n")
endforeach()
file(WRITE "${OUT}" "// Written by the build.
#include \"octavo/kernels/sycl/program.h\"

namespace octavo::sycl_backend {

const std::vector<SourceFile> embedded_files = {
${files}};
const char* const program_text = \"${program}\";

}  // namespace octavo::sycl_backend
")
