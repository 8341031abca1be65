// Signals' handlers, put off to the end of a block: `jgpu.device.interrupts.quiet` in C++.
//
// Invariant: a handler is put off, never lost. The state is the main thread's, and nothing of
// Python's runs between asking and changing it.

#pragma once

#include "python.h"

#include <bit>

namespace jgpu {

// What is handed over once, by `quiet_of`, and how deep the main thread is in such blocks.
struct Interrupts {
  unsigned long main = 0; // the thread's number, as Python has it
  PyObject* install = nullptr; // wraps all handlers
  PyObject* handler = nullptr; // tells who deals with a signal
  bool installed = false;
  int64_t depth = 0;
  uint64_t struck = 0; // the signals that came meanwhile: a bit each, the first for number 1
};

inline Interrupts interrupts{};

// A block; whether it is counted, which is so in the main thread.
struct Quiet {
  PyObject_HEAD
  bool counts;
};

inline PyObject* quiet_enter(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  auto& all = interrupts;
  auto* block = reinterpret_cast<Quiet*>(self);
  block->counts = PyThread_get_thread_ident() == all.main;
  if (block->counts) {
    if (!all.installed) {
      checked(PyObject_CallNoArgs(all.install));
      all.installed = true;
    }
    ++all.depth;
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Calls the handler of one signal that was put off; Python calls those of the others.
inline PyObject* quiet_deal() {
  auto& all = interrupts;
  const uint64_t struck = std::exchange(all.struck, 0);
  const int first = std::countr_zero(struck) + 1;
  PyObject* outcome = nullptr;
  const Owned handler(PyObject_CallFunction(all.handler, "i", first));
  if (handler) {
    // Not sent once more: an event loop is told of each signal that comes.
    auto* frame = reinterpret_cast<PyObject*>(PyEval_GetFrame());
    outcome = PyCallable_Check(handler.get()) == 0
        ? Py_NewRef(Py_None)
        : PyObject_CallFunction(handler.get(), "iO", first, frame == nullptr ? Py_None : frame);
  }
  for (int number = first + 1; number <= 64; ++number) {
    if ((struck >> (number - 1) & 1) != 0) {
      PyErr_SetInterruptEx(number);
    }
  }
  return outcome;
}

inline PyObject* quiet_exit(PyObject* self, PyObject* const*, Py_ssize_t) {
  auto& all = interrupts;
  if (reinterpret_cast<Quiet*>(self)->counts) {
    --all.depth;
    if (all.struck != 0 && all.depth == 0) {
      const Owned outcome(quiet_deal());
      if (!outcome) {
        return nullptr;
      }
    }
  }
  Py_RETURN_NONE;
}

inline PyObject* quiet_put_off(PyObject*, PyObject* number) {
  auto& all = interrupts;
  if (all.depth == 0) {
    Py_RETURN_FALSE;
  }
  const long bit = PyLong_AsLong(number) - 1;
  if (bit < 0 || bit >= 64) {
    PyErr_SetString(PyExc_ValueError, "There is no such signal.");
    return nullptr;
  }
  all.struck |= uint64_t{1} << bit;
  Py_RETURN_TRUE;
}

inline PyObject* quiet_depth(PyObject*, PyObject*) {
  return PyLong_FromLongLong(interrupts.depth);
}

inline void quiet_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// The class, for this thread's number and what `jgpu.device.interrupts` does with signals.
inline PyObject* quiet_class() {
  static PyMethodDef methods[] = {
      {"__enter__", quiet_enter, METH_NOARGS, nullptr},
      {"__exit__",
       reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(quiet_exit)),
       METH_FASTCALL,
       nullptr},
      {"put_off", quiet_put_off, METH_O | METH_STATIC, "Whether a signal has to wait."},
      {"depth", quiet_depth, METH_NOARGS | METH_STATIC, "How many blocks are open."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("Put signals' handlers off to the end of a block.")},
      {Py_tp_dealloc, reinterpret_cast<void*>(quiet_dealloc)},
      {Py_tp_methods, methods},
      {0, nullptr}};
  static PyType_Spec spec = {
      "jgpu_accelerator.quiet", sizeof(Quiet), 0, Py_TPFLAGS_DEFAULT, slots};
  return PyType_FromSpec(&spec);
}

inline PyObject* quiet_of(PyObject*, PyObject* arguments) {
  auto& all = interrupts;
  if (PyArg_ParseTuple(arguments, "kOO", &all.main, &all.install, &all.handler) == 0) {
    return nullptr;
  }
  Py_INCREF(arguments); // as long as the process
  return quiet_class();
}

} // namespace jgpu
