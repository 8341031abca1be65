// A device tensor's `_b`, `_g` and `_o`, for Python: of a wrapper made here they are its own, of any
// other they are in its dictionary.

#pragma once

#include "wrappers.h"

namespace jgpu {

enum class Part : intptr_t { buffer, geometry, offset };

inline PyObject* name_of(Part part) {
  return part == Part::buffer ? names.b : part == Part::geometry ? names.g : names.o;
}

inline Wrapper* own_wrapper(PyObject* object) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  return tensor.defined() ? Wrapper::of(tensor) : nullptr;
}

inline PyObject* part_of(PyObject* object, void* closure) {
  HANDLE_TH_ERRORS
  const auto part = static_cast<Part>(reinterpret_cast<intptr_t>(closure));
  if (const Wrapper* wrapper = own_wrapper(object)) {
    const Place& place = wrapper->place;
    if (part == Part::offset) {
      return PyLong_FromLongLong(place.offset);
    }
    PyObject* found = part == Part::buffer ? place.buffer.get() : place.geometry.get();
    if (found != nullptr) {
      return held(found).release();
    }
  } else {
    const Owned dictionary = checked(PyObject_GenericGetDict(object, nullptr));
    if (Owned value = found(dictionary.get(), name_of(part))) {
      return value.release();
    }
    if (part == Part::offset) {
      return PyLong_FromLong(0);
    }
  }
  PyErr_SetObject(PyExc_AttributeError, name_of(part));
  return nullptr;
  END_HANDLE_TH_ERRORS
}

inline int set_part(PyObject* object, PyObject* value, void* closure) {
  HANDLE_TH_ERRORS
  const auto part = static_cast<Part>(reinterpret_cast<intptr_t>(closure));
  if (Wrapper* wrapper = own_wrapper(object)) {
    Place& place = wrapper->place;
    if (part == Part::offset) {
      place.offset = value == nullptr ? 0 : integer(value);
    } else {
      Owned& kept = part == Part::buffer ? place.buffer : place.geometry;
      Owned before = value == nullptr ? Owned() : held(value);
      std::swap(kept, before); // what was there goes last: its end may call anything
    }
    return 0;
  }
  const Owned dictionary = checked(PyObject_GenericGetDict(object, nullptr));
  return value == nullptr ? PyDict_DelItem(dictionary.get(), name_of(part))
                          : PyDict_SetItem(dictionary.get(), name_of(part), value);
  END_HANDLE_TH_ERRORS_RET(-1)
}

// Has the class ask here for them.
inline void install_parts(PyTypeObject* tensor) {
  const auto closure = [](Part part) { return reinterpret_cast<void*>(static_cast<intptr_t>(part)); };
  static PyGetSetDef parts[] = {
      {"_b", part_of, set_part, "The buffer.", closure(Part::buffer)},
      {"_g", part_of, set_part, "The geometry.", closure(Part::geometry)},
      {"_o", part_of, set_part, "The offset, in elements.", closure(Part::offset)},
  };
  for (PyGetSetDef& each : parts) {
    const Owned made = checked(PyDescr_NewGetSet(tensor, &each));
    check(PyObject_SetAttrString(
        reinterpret_cast<PyObject*>(tensor), each.name, made.get()));
  }
}

} // namespace jgpu
