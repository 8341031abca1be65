// What each cut of the log does: the loops of `jgpu.device.recording.cuts.taking`, in C++.
//
// Invariant: what is returned here, and left behind, is what the plain forms return and leave.

#pragma once

#include "plans.h"

#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <string>

namespace jgpu {

// Goes through entries, and gives each buffer its slot: inputs count up from 0 in order of first
// use, what is made inside counts down from -1.
class Taking {
 public:
  Taking(int64_t switches, Py_ssize_t count)
      : outputs_(checked(PyList_New(0))), lines_(checked(PyList_New(count))) {
    sequence_.push_back(switches);
    slots_.reserve(static_cast<size_t>(2 * count));
  }
  Taking(const Taking&) = delete;
  Taking& operator=(const Taking&) = delete;
  ~Taking() {
    for (auto* list : {&ids_, &params_}) {
      for (PyObject* each : *list) {
        Py_DECREF(each);
      }
    }
  }

  // (plan, buffers, offsets, outs, numbers, line), which is the one at that place.
  void add(PyObject* entry, Py_ssize_t at) {
    const Planned& plan = planned_of(PyTuple_GET_ITEM(entry, 0));
    sequence_.push_back(plan.ident);
    PyObject* buffers = PyTuple_GET_ITEM(entry, 1);
    PyObject* offsets = PyTuple_GET_ITEM(entry, 2);
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(buffers); ++k) {
      use(PySequence_Fast_GET_ITEM(buffers, k),
          PySequence_Fast_GET_ITEM(offsets, k),
          plan.given_nbytes[static_cast<size_t>(k)]);
    }
    PyObject* outs = PyTuple_GET_ITEM(entry, 3);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(outs); ++k) {
      PyObject* buffer = PyTuple_GET_ITEM(outs, k);
      check(PyList_Append(outputs_.get(), buffer));
      slots_[buffer] = {-PyList_GET_SIZE(outputs_.get()), 0};
    }
    PyObject* numbers = PyTuple_GET_ITEM(entry, 4);
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(numbers); ++k) {
      params_.push_back(told(PySequence_Fast_GET_ITEM(numbers, k)).release());
    }
    PyList_SET_ITEM(lines_.get(), at, held(PyTuple_GET_ITEM(entry, 5)).release());
  }

  // What names the program.
  Owned key() const {
    return checked(PyBytes_FromStringAndSize(
        reinterpret_cast<const char*>(sequence_.data()),
        static_cast<Py_ssize_t>(sequence_.size() * sizeof(int64_t))));
  }

  // (key, what is known by it, inputs' ids, outputs, numbers, lines); nothing is kept here.
  PyObject* result(const Owned& key, PyObject* known) {
    const Owned ids = tuple_of(ids_);
    const Owned params = tuple_of(params_);
    return PyTuple_Pack(
        6, key.get(), known, ids.get(), outputs_.get(), params.get(), lines_.get());
  }

 private:
  using List = c10::SmallVector<PyObject*, 16>;

  struct Slot {
    int64_t number = 0;
    int64_t nbytes = 0; // of an input
  };

  // `nbytes`: what is seen of it
  void use(PyObject* buffer, PyObject* offset, int64_t nbytes) {
    auto at = slots_.find(buffer);
    if (at == slots_.end()) {
      const Slot made{
          static_cast<int64_t>(ids_.size()), integer(attribute(buffer, names.nbytes).get())};
      ids_.push_back(attribute(buffer, names.id).release());
      at = slots_.emplace(buffer, made).first;
    }
    const Slot& slot = at->second;
    const int64_t place = integer(offset);
    sequence_.push_back(slot.number);
    if (slot.number < 0) {
      sequence_.push_back(place);
    } else if (place == 0 && nbytes == slot.nbytes) {
      sequence_.push_back(0);
    } else {
      sequence_.push_back(-1);
      params_.push_back(held(offset).release());
    }
  }

  // A number as a message has it.
  static Owned told(PyObject* number) {
    if (!PyComplex_CheckExact(number)) {
      return held(number);
    }
    const Py_complex value = PyComplex_AsCComplex(number);
    return checked(Py_BuildValue("(dd)", value.real, value.imag));
  }

  ska::flat_hash_map<PyObject*, Slot> slots_;
  c10::SmallVector<int64_t, 64> sequence_;
  List ids_, params_;
  Owned outputs_, lines_;
};

// `take_in_python`
inline PyObject* take(PyObject* entries, Py_ssize_t count, int64_t switches, PyObject* known) {
  Taking taking(switches, count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    taking.add(PyList_GET_ITEM(entries, i), i);
  }
  const Owned key = taking.key();
  const Owned program = found(known, key.get());
  if (program) {
    check(PyList_SetSlice(entries, 0, count, nullptr));
  }
  return taking.result(key, program ? program.get() : Py_None);
}

// `settle_in_python`
inline PyObject* settle(PyObject* outputs, int64_t fresh, int64_t first, PyObject* sizes) {
  const Py_ssize_t count = PyList_GET_SIZE(outputs);
  std::string live(static_cast<size_t>((fresh + 7) >> 3), '\0');
  int64_t sum = 0;
  for (Py_ssize_t at = 0; at < count; ++at) {
    PyObject* buffer = PyList_GET_ITEM(outputs, at);
    if (Py_REFCNT(buffer) == 1) {
      continue; // the list's own
    }
    const Owned number = integer_of(first + at);
    checked(PyObject_CallMethodOneArg(buffer, names.settle, number.get()));
    const Owned nbytes = attribute(buffer, names.nbytes);
    check(PyDict_SetItem(sizes, number.get(), nbytes.get()));
    sum += integer(nbytes.get());
    auto& bits = live.at(static_cast<size_t>(at >> 3));
    bits = static_cast<char>(static_cast<unsigned char>(bits) | (1U << (at & 7)));
  }
  check(PyList_SetSlice(outputs, 0, count, nullptr));
  const Owned bits =
      checked(PyBytes_FromStringAndSize(live.data(), static_cast<Py_ssize_t>(live.size())));
  return PyTuple_Pack(2, bits.get(), integer_of(sum).get());
}

} // namespace jgpu
