// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

namespace octavo {

/// Deletes an object with the GIL released: its destructor may wait for a thread that needs the GIL to release a tensor
/// which Python knows. Every class whose destructor joins a thread needs it, also where torch owns the object.
struct WithoutGil {
  template <class Object>
  void operator()(Object* object) const {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
      const pybind11::gil_scoped_release released;
      delete object;
    } else {
      delete object;
    }
  }
};

template <class Object>
using WithoutGilPtr = std::unique_ptr<Object, WithoutGil>;

template <class Object, class... Arguments>
WithoutGilPtr<Object> make_without_gil(Arguments&&... arguments) {
  return WithoutGilPtr<Object>(new Object(std::forward<Arguments>(arguments)...));
}

}  // namespace octavo
