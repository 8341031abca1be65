// Python's objects, held as C++ holds things, and what this library looks up in Python.
//
// Whoever calls anything here holds the interpreter's lock.

#pragma once

#include <torch/csrc/Exceptions.h>

#include <Python.h>
#include <structmember.h>

#include <cstdint>
#include <utility>

namespace jgpu {

// An owned reference to an object, or none.
class Owned {
 public:
  Owned() = default;
  explicit Owned(PyObject* object) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    Py_XDECREF(object_);
  }

  PyObject* get() const {
    return object_;
  }
  PyObject* release() {
    return std::exchange(object_, nullptr);
  }
  explicit operator bool() const {
    return object_ != nullptr;
  }

 private:
  PyObject* object_ = nullptr;
};

// Whether Python is at its end, or past it.
inline bool is_ending() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

// Holds the interpreter's lock, which torch gives up around its ops.
class Interpreter {
 public:
  Interpreter() : state_(PyGILState_Ensure()) {}
  ~Interpreter() {
    PyGILState_Release(state_);
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

 private:
  PyGILState_STATE state_;
};

// The Python error that is set, as torch carries one through its own code.
[[noreturn]] inline void raise() {
  python_error error;
  error.persist();
  throw error;
}

inline Owned checked(PyObject* made) {
  if (made == nullptr) {
    raise();
  }
  return Owned(made);
}

inline void check(int outcome) {
  if (outcome < 0) {
    raise();
  }
}

inline Owned held(PyObject* borrowed) {
  Py_INCREF(borrowed);
  return Owned(borrowed);
}

inline Owned attribute(PyObject* object, PyObject* name) {
  return checked(PyObject_GetAttr(object, name));
}

// What a class keeps in a slot (`__slots__`): where it lies is looked up once a class, and it is read
// there. Of an object that has it elsewhere the attribute is asked for.
class Slot {
 public:
  explicit Slot(PyObject* const& name) : name_(name) {}

  Owned of(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    Py_ssize_t offset = 0;
    if (type == last_) {
      offset = at_;
    } else if (type == before_) { // as of a buffer, whose class changes once
      std::swap(last_, before_);
      std::swap(at_, at_before_);
      offset = at_;
    } else {
      offset = look(type);
    }
    if (offset != 0) {
      if (PyObject* value = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset)) {
        return held(value);
      }
    }
    return attribute(object, name_);
  }

 private:
  // 0 where it is in no slot.
  Py_ssize_t look(PyTypeObject* type) {
    const Owned found(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name_));
    Py_ssize_t offset = 0;
    if (!found) {
      PyErr_Clear();
    } else if (Py_TYPE(found.get()) == &PyMemberDescr_Type) {
      const auto* member = reinterpret_cast<PyMemberDescrObject*>(found.get())->d_member;
      offset = member->type == T_OBJECT_EX ? member->offset : 0;
    }
    Py_INCREF(type); // for ever: another one in its place would be taken for it
    before_ = std::exchange(last_, type);
    at_before_ = std::exchange(at_, offset);
    return offset;
  }

  PyObject* const& name_;
  PyTypeObject *last_ = nullptr, *before_ = nullptr;
  Py_ssize_t at_ = 0, at_before_ = 0;
};

inline int64_t integer(PyObject* object) {
  const int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    raise();
  }
  return value;
}

inline Owned integer_of(int64_t value) {
  return checked(PyLong_FromLongLong(value));
}

// What a dictionary has for a key; none where it has nothing.
inline Owned found(PyObject* dictionary, PyObject* key) {
  PyObject* value = PyDict_GetItemWithError(dictionary, key);
  if (value == nullptr) {
    if (PyErr_Occurred() != nullptr) {
      raise();
    }
    return Owned();
  }
  return held(value);
}

// A tuple of what the list owns, which owns nothing afterwards.
template <typename List>
Owned tuple_of(List& owned) {
  Owned made = checked(PyTuple_New(static_cast<Py_ssize_t>(owned.size())));
  for (size_t i = 0; i < owned.size(); ++i) {
    PyTuple_SET_ITEM(made.get(), static_cast<Py_ssize_t>(i), owned[i]);
  }
  owned.clear();
  return made;
}

// Names of attributes, made once (`make_names`).
struct Names {
  PyObject *b, *g, *o;
  PyObject *session, *buffers, *graveyard, *poisoned, *log, *entries, *frame, *limit;
  PyObject *nbytes, *id, *bits, *shape, *stride, *dtype, *itemsize, *native;
  PyObject *connection, *phase, *ready;
  PyObject *single, *several, *many, *writes_first, *ident, *geometries;
  PyObject *ranges, *intervals, *ordered;
  PyObject *settle, *append, *bury, *of_class;
  PyObject *poison, *base, *seen, *views, *view, *private_view;
  PyObject *true_text, *false_text;
};

inline Names names{};

// Of buffers, plans, geometries, the log and what the session knows: read with each op.
struct Slots {
  Slot id{names.id}, nbytes{names.nbytes}, graveyard{names.graveyard};
  Slot plan{names.native}, geometry{names.native};
  Slot frame{names.frame}, limit{names.limit}, sessions_graveyard{names.graveyard};
};

inline Slots slots{};

inline bool make_names() {
  const struct {
    PyObject** where;
    const char* text;
  } all[] = {
      {&names.b, "_b"},
      {&names.g, "_g"},
      {&names.o, "_o"},
      {&names.session, "session"},
      {&names.buffers, "buffers"},
      {&names.graveyard, "graveyard"},
      {&names.poisoned, "poisoned"},
      {&names.log, "log"},
      {&names.entries, "entries"},
      {&names.frame, "frame"},
      {&names.limit, "limit"},
      {&names.nbytes, "nbytes"},
      {&names.id, "id"},
      {&names.bits, "bits"},
      {&names.shape, "shape"},
      {&names.stride, "stride"},
      {&names.dtype, "dtype"},
      {&names.itemsize, "itemsize"},
      {&names.native, "native"},
      {&names.connection, "connection"},
      {&names.phase, "phase"},
      {&names.ready, "ready"},
      {&names.single, "single"},
      {&names.several, "several"},
      {&names.many, "many"},
      {&names.writes_first, "writes_first"},
      {&names.ident, "ident"},
      {&names.geometries, "geometries"},
      {&names.ranges, "ranges"},
      {&names.intervals, "intervals"},
      {&names.ordered, "ordered"},
      {&names.settle, "settle"},
      {&names.append, "append"},
      {&names.bury, "_bury"},
      {&names.of_class, "__class__"},
      {&names.poison, "poison"},
      {&names.base, "base"},
      {&names.seen, "_seen"},
      {&names.views, "_views"},
      {&names.view, "view"},
      {&names.private_view, "private_view"},
      {&names.true_text, "True"},
      {&names.false_text, "False"},
  };
  for (const auto& each : all) {
    *each.where = PyUnicode_InternFromString(each.text);
    if (*each.where == nullptr) {
      return false;
    }
  }
  return true;
}

// What is handed over once, by `connect`, and lives as long as the process.
struct Connected {
  PyTypeObject* tensor; // DeviceTensor
  PyObject* current; // the module that has the session
  PyObject* plans; // of ops, by key
  PyObject* views; // what views show, by key
  PyObject* stretches; // what rows and slices show, by key
  PyObject* new_handle; // BufferHandle
  PyObject* settled; // SettledBuffer
  PyObject* partial; // of functools
  double large; // bytes of a buffer that is told of (`watch_large`)
  PyObject* note_large; // called with such a buffer
  PyObject* look; // the log's frame, looked for
  PyObject* cut_piece; // called with a session whose piece is full
  PyObject* described; // what is known of an op, by its name
  PyObject* number; // reads the number of a tensor of one element
  PyObject* is_cuda; // whether the session's executor is CUDA
  PyObject* on_host; // whether the host takes flash attention, by question
};

inline Connected connected{};

} // namespace jgpu
