// What of an `OpPlan` is looked at with each call and each cut, looked up once.

#pragma once

#include "wrappers.h"

#include <cmath>
#include <memory>
#include <vector>

namespace jgpu {

// The plan keeps it, as `native`, and lets go of it where it is corrected.
struct Planned {
  // What is returned: one new tensor, several of them or a list, the first argument, or what Python
  // makes of it.
  enum class Returns { unasked, one, several, list, first, nothing, other };

  // A new tensor; without a geometry an undefined one.
  struct Made {
    Owned geometry;
    const Layout* layout = nullptr;
  };

  // Numbers that the device's kernel takes for sure (`checks.ranges`).
  struct Interval {
    size_t place;
    double least, most;
    bool infinite;
    bool zero;
    // compared with a double, a bound of this size may be rounded: Python compares
    bool is_whole;
  };

  int64_t ident = 0;
  std::vector<Interval> intervals;
  // places of two numbers of which the second must not be less
  std::pair<size_t, size_t> ordered{0, 0};
  // bytes that its tensors show, in order
  std::vector<int64_t> given_nbytes;
  Returns returns = Returns::unasked;
  std::vector<Made> made;

  void make(PyObject* geometry) {
    if (geometry == Py_None) {
      made.emplace_back();
    } else {
      made.push_back({held(geometry), &layout_of(geometry)});
    }
  }

  void read_ranges(PyObject* plan) {
    const Owned ranges = attribute(plan, names.ranges);
    if (ranges.get() == Py_None) {
      return;
    }
    const Owned all = attribute(ranges.get(), names.intervals);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all.get()); ++i) {
      PyObject* each = PyTuple_GET_ITEM(all.get(), i);
      PyObject* least = PyTuple_GET_ITEM(each, 1);
      intervals.push_back(
          {static_cast<size_t>(integer(PyTuple_GET_ITEM(each, 0))), PyFloat_AsDouble(least),
           PyFloat_AsDouble(PyTuple_GET_ITEM(each, 2)), PyTuple_GET_ITEM(each, 3) == Py_True,
           PyTuple_GET_ITEM(each, 4) == Py_True, PyLong_Check(least) != 0});
    }
    const Owned two = attribute(ranges.get(), names.ordered);
    if (two.get() != Py_None) {
      ordered = {
          static_cast<size_t>(integer(PyTuple_GET_ITEM(two.get(), 0))),
          static_cast<size_t>(integer(PyTuple_GET_ITEM(two.get(), 1)))};
    }
  }

  // Whether the kernel takes these numbers; false where only Python can tell.
  template <typename Numbers>
  bool takes(const Numbers& numbers) const {
    for (const Interval& each : intervals) {
      double number = 0;
      if (!read(numbers[each.place], number) || (each.is_whole && std::abs(number) >= exact)) {
        return false;
      }
      if (!(each.least <= number && number <= each.most) &&
          !(each.infinite && !std::isfinite(number))) {
        return false;
      }
      if (number == 0 && !each.zero) {
        return false;
      }
    }
    if (ordered.first == ordered.second) {
      return true;
    }
    double low = 0;
    double high = 0;
    return read(numbers[ordered.first], low) && read(numbers[ordered.second], high) && low <= high;
  }

  bool none_is_lazy() const {
    return std::none_of(made.begin(), made.end(), [](const Made& each) {
      return each.layout != nullptr && each.layout->is_lazy();
    });
  }

 private:
  // whole numbers below are exact as doubles
  static constexpr double exact = 9007199254740992.0;

  static bool read(PyObject* number, double& value) {
    if (PyFloat_CheckExact(number)) {
      value = PyFloat_AS_DOUBLE(number);
      return true;
    }
    int overflow = 0;
    if (!PyLong_CheckExact(number)) {
      return false;
    }
    value = static_cast<double>(PyLong_AsLongLongAndOverflow(number, &overflow));
    return overflow == 0 && std::abs(value) < exact;
  }
};

inline Owned planned_made(PyObject* plan) {
  auto made = std::make_unique<Planned>();
  made->ident = integer(attribute(plan, names.ident).get());
  made->read_ranges(plan);
  const Owned geometries = attribute(plan, names.geometries);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(geometries.get()); ++i) {
    PyObject* each = PyTuple_GET_ITEM(geometries.get(), i);
    made->given_nbytes.push_back(integer(attribute(each, names.nbytes).get()));
  }
  Owned kept = checked(PyCapsule_New(made.get(), nullptr, [](PyObject* capsule) {
    delete static_cast<Planned*>(PyCapsule_GetPointer(capsule, nullptr));
  }));
  made.release();
  check(PyObject_SetAttr(plan, names.native, kept.get()));
  return kept;
}

// Lives until the plan is corrected: whoever uses it calls no Python meanwhile that might.
inline Planned& planned_of(PyObject* plan) {
  Owned kept = slots.plan.of(plan);
  if (kept.get() == Py_None) {
    kept = planned_made(plan);
  }
  return *static_cast<Planned*>(PyCapsule_GetPointer(kept.get(), nullptr));
}

} // namespace jgpu
