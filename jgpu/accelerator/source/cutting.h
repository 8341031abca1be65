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
          static_cast<int64_t>(ids_.size()), integer(slots.nbytes.of(buffer).get())};
      ids_.push_back(slots.id.of(buffer).release());
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

inline Owned bytes_made(const std::string& told) {
  return checked(PyBytes_FromStringAndSize(told.data(), static_cast<Py_ssize_t>(told.size())));
}

// Most tensors, results and numbers of one program, unless its first op has more:
// `taking.MOST_REFERENCES`.
constexpr Py_ssize_t most_references = 8192;

// `fitting_in_python`
inline Py_ssize_t fitting(PyObject* entries, Py_ssize_t count) {
  Py_ssize_t references = 0;
  for (Py_ssize_t at = 0; at < count; ++at) {
    PyObject* entry = PyList_GET_ITEM(entries, at);
    references += PySequence_Fast_GET_SIZE(PyTuple_GET_ITEM(entry, 1)) +
        PyTuple_GET_SIZE(PyTuple_GET_ITEM(entry, 3)) +
        PySequence_Fast_GET_SIZE(PyTuple_GET_ITEM(entry, 4));
    if (references > most_references && at > 0) {
      return at;
    }
  }
  return count;
}

// `take_in_python`
inline PyObject* take(PyObject* entries, Py_ssize_t count, int64_t switches, PyObject* known) {
  count = fitting(entries, count);
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

// The executor knows the buffer by this id from here on: `BufferHandle.settle`.
inline void settle_one(PyObject* buffer, PyObject* number) {
  if (connected.settled == nullptr) { // nothing was handed over
    checked(PyObject_CallMethodOneArg(buffer, names.settle, number));
    return;
  }
  const Owned graveyard = slots.graveyard.of(buffer);
  const Owned append = attribute(graveyard.get(), names.append);
  PyObject* given[] = {append.get(), number};
  const Owned bury = checked(PyObject_Vectorcall(connected.partial, given, 2, nullptr));
  check(PyObject_SetAttr(buffer, names.id, number));
  check(PyObject_SetAttr(buffer, names.bury, bury.get()));
  check(PyObject_SetAttr(buffer, names.of_class, connected.settled));
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
    settle_one(buffer, number.get());
    const Owned nbytes = slots.nbytes.of(buffer);
    check(PyDict_SetItem(sizes, number.get(), nbytes.get()));
    sum += integer(nbytes.get());
    auto& bits = live.at(static_cast<size_t>(at >> 3));
    bits = static_cast<char>(static_cast<unsigned char>(bits) | (1U << (at & 7)));
  }
  check(PyList_SetSlice(outputs, 0, count, nullptr));
  return PyTuple_Pack(2, bytes_made(live).get(), integer_of(sum).get());
}

// What a dictionary had for a key, which it has no more; none where it had nothing.
inline Owned popped(PyObject* dictionary, PyObject* key) {
  Owned value = found(dictionary, key);
  if (value) {
    check(PyDict_DelItem(dictionary, key));
  }
  return value;
}

// `bury_in_python`
inline PyObject* bury(PyObject* graveyard, PyObject* known, PyObject* run) {
  PyObject* sizes = PyTuple_GET_ITEM(known, 0);
  PyObject* inputs = PyTuple_GET_ITEM(run, 0);
  const int64_t first = integer(PyTuple_GET_ITEM(run, 1));
  const int64_t fresh = integer(PyTuple_GET_ITEM(run, 2));
  PyObject* told = PyTuple_GET_ITEM(run, 3);
  std::string live(PyBytes_AS_STRING(told), static_cast<size_t>(PyBytes_GET_SIZE(told)));
  const auto given = static_cast<size_t>(PyTuple_GET_SIZE(inputs));
  std::string dead;
  ska::flat_hash_map<int64_t, size_t> places;
  int64_t nbytes = 0;
  const Py_ssize_t count = PyList_GET_SIZE(graveyard);
  // Taken out first: to let go of anything below may bury more.
  const Owned buried = checked(PyList_GetSlice(graveyard, 0, count));
  check(PyList_SetSlice(graveyard, 0, count, nullptr));
  const Owned free = checked(PyList_New(0));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* number = PyList_GET_ITEM(buried.get(), i);
    for (Py_ssize_t k = 1; k < PyTuple_GET_SIZE(known); ++k) {
      popped(PyTuple_GET_ITEM(known, k), number);
    }
    if (const Owned size = popped(sizes, number)) {
      nbytes += integer(size.get());
    }
    const int64_t id = integer(number);
    if (first <= id && id < first + fresh) { // forgotten since it was settled
      const auto at = static_cast<size_t>(id - first);
      auto& bits = live.at(at >> 3);
      bits = static_cast<char>(static_cast<unsigned char>(bits) & ~(1U << (at & 7)));
      continue;
    }
    if (places.empty()) {
      places.reserve(given);
      for (size_t at = 0; at < given; ++at) {
        places[integer(PyTuple_GET_ITEM(inputs, static_cast<Py_ssize_t>(at)))] = at;
      }
    }
    const auto found = places.find(id);
    if (found == places.end()) {
      check(PyList_Append(free.get(), number));
      continue;
    }
    dead.resize((given + 7) >> 3);
    auto& bits = dead.at(found->second >> 3);
    bits = static_cast<char>(static_cast<unsigned char>(bits) | (1U << (found->second & 7)));
  }
  const Owned others = checked(PyList_AsTuple(free.get()));
  return PyTuple_Pack(
      4, bytes_made(live).get(), bytes_made(dead).get(), others.get(), integer_of(nbytes).get());
}

} // namespace jgpu
