// Ctrl-C, put off to the end of a block: `jgpu.device.interrupts.quiet`, written out in C++.
//
// Invariant: an interrupt is put off, never lost. The state is the main thread's, and nothing of
// Python's runs between asking and changing it.

#pragma once

#include "python.h"

namespace jgpu {

// What is handed over once, by `quiet_of`, and how deep the main thread is in such blocks.
struct Interrupts {
  unsigned long main = 0; // the thread's number, as Python has it
  PyObject* number = nullptr; // of SIGINT
  PyObject* handler = nullptr; // tells who deals with a signal
  PyObject* unwrapped = nullptr; // Python's own handler of SIGINT
  PyObject* strike = nullptr; // sends a signal
  PyObject* install = nullptr; // wraps the handler that there is
  int64_t depth = 0;
  bool struck = false; // Ctrl-C came meanwhile
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
    const Owned handler = checked(PyObject_CallOneArg(all.handler, all.number));
    if (handler.get() == all.unwrapped) { // somebody has set it anew
      checked(PyObject_CallNoArgs(all.install));
    }
    ++all.depth;
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

inline PyObject* quiet_exit(PyObject* self, PyObject* const*, Py_ssize_t) {
  auto& all = interrupts;
  if (reinterpret_cast<Quiet*>(self)->counts) {
    --all.depth;
    if (all.struck && all.depth == 0) {
      all.struck = false;
      return PyObject_CallOneArg(all.strike, all.number);
    }
  }
  Py_RETURN_NONE;
}

inline PyObject* quiet_put_off(PyObject*, PyObject*) {
  interrupts.struck = interrupts.struck || interrupts.depth != 0;
  return PyBool_FromLong(interrupts.depth != 0);
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
      {"put_off", quiet_put_off, METH_NOARGS | METH_STATIC, "Whether Ctrl-C has to wait."},
      {"depth", quiet_depth, METH_NOARGS | METH_STATIC, "How many blocks are open."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("Put Ctrl-C off to the end of a block, in the main thread.")},
      {Py_tp_dealloc, reinterpret_cast<void*>(quiet_dealloc)},
      {Py_tp_methods, methods},
      {0, nullptr}};
  static PyType_Spec spec = {
      "jgpu_accelerator.quiet", sizeof(Quiet), 0, Py_TPFLAGS_DEFAULT, slots};
  return PyType_FromSpec(&spec);
}

inline PyObject* quiet_of(PyObject*, PyObject* arguments) {
  auto& all = interrupts;
  if (PyArg_ParseTuple(
          arguments,
          "kOOOOO",
          &all.main,
          &all.number,
          &all.handler,
          &all.unwrapped,
          &all.strike,
          &all.install) == 0) {
    return nullptr;
  }
  Py_INCREF(arguments); // as long as the process
  return quiet_class();
}

} // namespace jgpu
