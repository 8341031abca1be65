// The cut of a log into a program's sequence: the loop of `ProgramRecorder.cut`, in C++.

#pragma once

#include "python.h"

#include <c10/util/flat_hash_map.h>
#include <c10/util/SmallVector.h>

namespace jgpu {

// Goes through entries, and gives each buffer its slot: inputs count up from 0 in order of first
// use, what is made inside counts down from -1.
class Cutting {
 public:
  explicit Cutting(PyObject* flags)
      : sequence_(checked(PyList_New(0))),
        inputs_(checked(PyList_New(0))),
        ids_(checked(PyList_New(0))),
        outputs_(checked(PyList_New(0))),
        params_(checked(PyList_New(0))),
        lines_(checked(PyList_New(0))) {
    append(sequence_, flags);
  }

  // (plan, buffers, offsets, outs, numbers, line)
  void take(PyObject* entry) {
    PyObject* plan = PyTuple_GET_ITEM(entry, 0);
    append(sequence_, attribute(plan, names.ident).get());
    const Owned geometries = attribute(plan, names.geometries);
    PyObject* buffers = PyTuple_GET_ITEM(entry, 1);
    PyObject* offsets = PyTuple_GET_ITEM(entry, 2);
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(buffers); ++k) {
      use(PySequence_Fast_GET_ITEM(buffers, k),
          PySequence_Fast_GET_ITEM(offsets, k),
          PyTuple_GET_ITEM(geometries.get(), k));
    }
    PyObject* outs = PyTuple_GET_ITEM(entry, 3);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(outs); ++k) {
      PyObject* buffer = PyTuple_GET_ITEM(outs, k);
      append(outputs_, buffer);
      slots_[buffer] = -PyList_GET_SIZE(outputs_.get());
    }
    PyObject* numbers = PyTuple_GET_ITEM(entry, 4);
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(numbers); ++k) {
      append(params_, PySequence_Fast_GET_ITEM(numbers, k));
    }
    append(lines_, PyTuple_GET_ITEM(entry, 5));
  }

  // (sequence, inputs' ids, outputs, params, lines)
  PyObject* result() const {
    const Owned key = checked(PyList_AsTuple(sequence_.get()));
    return PyTuple_Pack(
        5, key.get(), ids_.get(), outputs_.get(), params_.get(), lines_.get());
  }

 private:
  static void append(const Owned& list, PyObject* value) {
    check(PyList_Append(list.get(), value));
  }

  void use(PyObject* buffer, PyObject* offset, PyObject* geometry) {
    auto at = slots_.find(buffer);
    int64_t slot = 0;
    if (at == slots_.end()) {
      slot = PyList_GET_SIZE(inputs_.get());
      slots_[buffer] = slot;
      append(inputs_, buffer);
      append(ids_, attribute(buffer, names.id).get());
    } else {
      slot = at->second;
    }
    append(sequence_, integer_of(slot).get());
    if (slot < 0) {
      append(sequence_, offset);
    } else if (integer(offset) == 0 && is_whole(buffer, geometry)) {
      append(sequence_, offset);
    } else {
      append(sequence_, integer_of(-1).get());
      append(params_, offset);
    }
  }

  static bool is_whole(PyObject* buffer, PyObject* geometry) {
    return integer(attribute(geometry, names.nbytes).get()) ==
        integer(attribute(buffer, names.nbytes).get());
  }

  ska::flat_hash_map<PyObject*, int64_t> slots_;
  Owned sequence_, inputs_, ids_, outputs_, params_, lines_;
};

} // namespace jgpu
