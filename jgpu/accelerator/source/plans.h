// What of an `OpPlan` is looked at with each call and each cut, looked up once.

#pragma once

#include "wrappers.h"

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

  int64_t ident = 0;
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

  bool none_is_lazy() const {
    return std::none_of(made.begin(), made.end(), [](const Made& each) {
      return each.layout != nullptr && each.layout->is_lazy();
    });
  }
};

inline Owned planned_made(PyObject* plan) {
  auto made = std::make_unique<Planned>();
  made->ident = integer(attribute(plan, names.ident).get());
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
