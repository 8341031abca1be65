// What torch's getters say before each cut: `jgpu.device.flags.read_in_python`, in C++.
//
// Torch's own context is not read past them: what its getters make of it, and how it is laid out,
// is another in each release.

#pragma once

#include "python.h"

namespace jgpu {

inline bool is_same(PyObject* one, PyObject* other) {
  if (one == other) {
    return true;
  }
  const int outcome = PyObject_RichCompareBool(one, other, Py_EQ);
  check(outcome);
  return outcome != 0;
}

// `calls` are pairs of a function and what it is given; `seen` is what they returned before.
inline PyObject* read_all(PyObject* calls, PyObject* seen) {
  const Py_ssize_t count = PyTuple_GET_SIZE(calls);
  const Owned read = checked(PyTuple_New(count));
  bool is_as_seen = PyTuple_GET_SIZE(seen) == count;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* call = PyTuple_GET_ITEM(calls, i);
    PyObject* given = PyTuple_GET_ITEM(call, 1);
    Owned made = checked(PyObject_Vectorcall(
        PyTuple_GET_ITEM(call, 0),
        &PyTuple_GET_ITEM(given, 0),
        static_cast<size_t>(PyTuple_GET_SIZE(given)),
        nullptr));
    is_as_seen = is_as_seen && is_same(made.get(), PyTuple_GET_ITEM(seen, i));
    PyTuple_SET_ITEM(read.get(), i, made.release());
  }
  return held(is_as_seen ? seen : read.get()).release();
}

} // namespace jgpu
