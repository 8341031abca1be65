// What torch calls at each op on the device's tensors, without a line of Python on the way.
//
// Covers what `jgpu.device.recording.entry` and `viewing` write out: an op whose plan is known, and
// a view that was seen. Whatever else comes (a mode, a tensor of another kind, an argument of
// another type) goes on into Python as if this library were not there.
//
// It is built against one release of torch, for one Python (`jgpu.accelerator.building`).

#include "batchnorm.h"
#include "composed.h"
#include "cutting.h"
#include "draws.h"
#include "guard.h"
#include "inputs.h"
#include "number.h"
#include "places.h"
#include "quiet.h"
#include "recorded.h"
#include "shown.h"
#include "snapshots.h"
#include "storages.h"
#include "straight.h"
#include "switches.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <limits>

namespace jgpu {
namespace {

Guard guard;

// Torch's own way from the dispatcher into Python.
std::optional<c10::SafeKernelFunction> into_python;

// Calls that were carried out here, and that went on into Python with tensors of the device.
uint64_t carried_out = 0;
uint64_t left_to_python = 0;

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// What Python knows of an op; it may run other threads meanwhile.
Owned described(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return checked(PyObject_CallFunction(
      connected.described, "ss", name.name.c_str(), name.overload_name.c_str()));
}

// An op of torch's, as the dispatcher calls it for tensors that Python deals with. What kind of op
// it is for the device is asked at its first call with one of its tensors.
class Op final : public c10::OperatorKernel {
 public:
  void operator()(
      const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (!c10::impl::TorchDispatchModeTLS::any_modes_set()) {
      const Interpreter held;
      if (!is_asked_ && concerns_us(op, *stack)) {
        ask(op);
      }
      if (way_ != nullptr && way_->carry_out(stack)) {
        ++carried_out;
        return;
      }
      left_to_python += is_asked_ ? 1 : 0;
    }
    into_python->callBoxed(op, keys, stack);
  }

 private:
  static bool concerns_us(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    for (const auto& each : torch::jit::last(stack, op.schema().arguments().size())) {
      if (each.isTensor() && is_ours(each.toTensor())) {
        return static_cast<bool>(device_tensor(each.toTensor()));
      }
      if (each.isTensorList() && !each.toListRef().empty()) {
        const auto& first = each.toListRef()[0];
        return first.isTensor() && static_cast<bool>(device_tensor(first.toTensor()));
      }
    }
    return false;
  }

  void ask(const c10::OperatorHandle& op) {
    const auto& name = op.operator_name();
    if (name.name == Number::name) {
      is_asked_ = true;
      way_ = std::make_unique<Number>();
      return;
    }
    const Owned told = described(op);
    if (is_asked_) {
      return; // by another thread meanwhile
    }
    is_asked_ = true;
    if (told.get() == Py_None) {
      return;
    }
    if (PyTuple_Check(told.get()) && PyTuple_GET_SIZE(told.get()) == 0) {
      way_ = std::make_unique<BatchNorm>();
      return;
    }
    PyObject* info = nullptr;
    PyObject* lift = nullptr;
    int in_place = 0;
    int is_view = 0;
    if (PyArg_ParseTuple(
            told.get(), "OO!pp", &info, &PyTuple_Type, &lift, &in_place, &is_view) == 0) {
      raise();
    }
    Schema schema = schema_of(op, info, lift, in_place != 0);
    if (is_view != 0) {
      way_ = std::make_unique<Shown>(std::move(schema), full_name(name));
    } else {
      way_ = std::make_unique<Recorded>(std::move(schema));
    }
  }

  bool is_asked_ = false;
  std::unique_ptr<Way> way_;
};

// A factory of torch's, as the dispatcher calls it for the device. A mode that is left for a moment
// (its own code calls) is asked by the kernel in Python.
class Factory final : public c10::OperatorKernel {
 public:
  explicit Factory(c10::SafeKernelFunction in_python) : in_python_(std::move(in_python)) {}

  void operator()(
      const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (!c10::impl::TorchDispatchModeTLS::any_modes_set()) {
      const Interpreter held;
      if (!is_asked_) {
        ask(op);
      }
      if (way_ != nullptr && way_->carry_out(stack)) {
        ++carried_out;
        return;
      }
      ++left_to_python;
    }
    in_python_.callBoxed(op, keys, stack);
  }

 private:
  void ask(const c10::OperatorHandle& op) {
    const Owned told = described(op);
    if (is_asked_) {
      return; // by another thread meanwhile
    }
    is_asked_ = true;
    if (!PyTuple_Check(told.get()) || PyTuple_GET_SIZE(told.get()) != 4) {
      return;
    }
    Schema schema = schema_of(
        op, PyTuple_GET_ITEM(told.get(), 0), PyTuple_GET_ITEM(told.get(), 1), /*in_place=*/false);
    schema.of_default_dtype = true;
    way_ = std::make_unique<Recorded>(std::move(schema));
  }

  c10::SafeKernelFunction in_python_;
  bool is_asked_ = false;
  std::unique_ptr<Recorded> way_;
};

// All ops of torch that no other op is made of: before a notebook can call any, since the
// dispatcher's tables are read without a lock.
void take_over() {
  using c10::DispatchKey;
  // Never destroyed: at the process's end its ops would let go of Python's objects after Python.
  static auto& library = *new torch::Library(
      torch::Library::IMPL, "aten", DispatchKey::Python, __FILE__, __LINE__);
  static auto& snapshots =
      *new torch::Library(torch::Library::IMPL, "aten", snapshot_key, __FILE__, __LINE__);
  note_entries_of_common_ops(snapshots);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (name.name.rfind("aten::", 0) != 0 || !op.has_value() ||
        op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
        op->hasKernelForDispatchKey(DispatchKey::Python)) {
      continue;
    }
    library.impl(
        full_name(name).c_str(),
        torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Op>()));
  }
}

// -- what Python calls ----------------------------------------------------------------------------

PyObject* install_guard(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  c10::impl::registerDeviceGuard(device_type, &guard);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* connect(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  auto& to = connected;
  if (PyArg_ParseTuple(
          arguments,
          "O!OO!O!O!OOOOOOOO",
          &PyType_Type,
          &to.tensor,
          &to.current,
          &PyDict_Type,
          &to.plans,
          &PyDict_Type,
          &to.views,
          &PyDict_Type,
          &to.stretches,
          &to.new_handle,
          &to.settled,
          &to.partial,
          &to.note_large,
          &to.look,
          &to.cut_piece,
          &to.described,
          &to.number) == 0) {
    return nullptr;
  }
  to.large = std::numeric_limits<double>::infinity();
  Py_INCREF(arguments);
  install_parts(to.tensor);
  // An op that has no kernel of its own at this key shows the way.
  const auto shows = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  into_python.emplace(shows.getComputedKernelForDispatchKey(c10::DispatchKey::Python));
  take_over();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Torch tells of a kernel that takes another one's place, which is meant here.
class Silent final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Whether the composite comes here first; its kernel in Python, which is registered, has the rest.
PyObject* compose(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  using c10::DispatchKey;
  const char* name = nullptr;
  const char* composite = nullptr;
  PyObject* is_cuda = nullptr;
  PyObject* on_host = nullptr;
  if (PyArg_ParseTuple(
          arguments, "ssOO!", &name, &composite, &is_cuda, &PyDict_Type, &on_host) == 0) {
    return nullptr;
  }
  const auto rule = Composed::rule_of(name);
  if (!rule.has_value()) {
    Py_RETURN_FALSE;
  }
  connected.is_cuda = held(is_cuda).release();
  connected.on_host = held(on_host).release();
  const std::string full = std::string("aten::") + name;
  const size_t dot = full.find('.');
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      full.substr(0, dot).c_str(), dot == std::string::npos ? "" : full.substr(dot + 1).c_str());
  auto in_python = op.getComputedKernelForDispatchKey(DispatchKey::AutogradPrivateUse1);
  static auto& library = *new torch::Library(
      torch::Library::IMPL, "aten", DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard quietly(&silent);
  library.impl(
      name,
      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Composed>(
          *rule, c10::parseDispatchKey(composite), std::move(in_python))));
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// Has a factory come here first, whose kernel for the device is Python's so far.
PyObject* make_here(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  using c10::DispatchKey;
  const char* base = nullptr;
  const char* overload = nullptr;
  if (PyArg_ParseTuple(arguments, "ss", &base, &overload) == 0) {
    return nullptr;
  }
  const c10::OperatorName name(std::string("aten::") + base, overload);
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
  auto in_python = op.getComputedKernelForDispatchKey(DispatchKey::PrivateUse1);
  static auto& library = *new torch::Library(
      torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard quietly(&silent);
  library.impl(
      full_name(name).c_str(),
      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Factory>(std::move(in_python))));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* take_run(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 4 || !PyList_CheckExact(given[0]) || !PyDict_Check(given[3])) {
    PyErr_SetString(PyExc_TypeError, "take(entries, count, switches, known)");
    return nullptr;
  }
  const int64_t first = integer(given[1]);
  if (first < 0 || first > PyList_GET_SIZE(given[0])) {
    PyErr_SetString(PyExc_IndexError, "there are not so many entries");
    return nullptr;
  }
  return take(given[0], static_cast<Py_ssize_t>(first), integer(given[2]), given[3]);
  END_HANDLE_TH_ERRORS
}

PyObject* settle_outputs(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 4 || !PyList_CheckExact(given[0]) || !PyDict_CheckExact(given[3])) {
    PyErr_SetString(PyExc_TypeError, "settle(outputs, fresh, first, sizes)");
    return nullptr;
  }
  return settle(given[0], integer(given[1]), integer(given[2]), given[3]);
  END_HANDLE_TH_ERRORS
}

PyObject* bury_forgotten(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 3 || !PyList_CheckExact(given[0]) || !PyTuple_CheckExact(given[1]) ||
      !PyTuple_CheckExact(given[2])) {
    PyErr_SetString(PyExc_TypeError, "bury(graveyard, known, run)");
    return nullptr;
  }
  return bury(given[0], given[1], given[2]);
  END_HANDLE_TH_ERRORS
}

PyObject* read_switches(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject* calls = nullptr;
  PyObject* seen = nullptr;
  if (PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &calls, &PyTuple_Type, &seen) == 0) {
    return nullptr;
  }
  return read_all(calls, seen, at::globalContext());
  END_HANDLE_TH_ERRORS
}

PyObject* wrap_object(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count < 2 || count > 3 || connected.tensor == nullptr) {
    PyErr_SetString(PyExc_TypeError, "wrap(buffer, geometry, offset=0), once it is connected");
    return nullptr;
  }
  const int64_t offset = count == 3 ? integer(arguments[2]) : 0;
  PyObject* geometry = arguments[1];
  return THPVariable_Wrap(wrap(arguments[0], geometry, layout_of(geometry), offset));
  END_HANDLE_TH_ERRORS
}

PyObject* watch_large(PyObject*, PyObject* nbytes) {
  HANDLE_TH_ERRORS
  const double most = PyFloat_AsDouble(nbytes);
  if (most == -1.0 && PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  connected.large = most;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* assemble(PyObject*, PyObject* told) {
  HANDLE_TH_ERRORS
  return assembled(told);
  END_HANDLE_TH_ERRORS
}

bool is_row(PyObject* object) {
  return PyList_Check(object) || PyTuple_Check(object);
}

PyObject* run(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 8 || !is_row(given[2])) {
    PyErr_SetString(
        PyExc_TypeError, "run(program, inputs, parameters, generators, notes, tell, mark, stop)");
    return nullptr;
  }
  return run_assembled(given);
  END_HANDLE_TH_ERRORS
}

PyObject* new_stop(PyObject*, PyObject*) {
  return stop_made();
}

PyObject* stop(PyObject*, PyObject* capsule) {
  HANDLE_TH_ERRORS
  Stop* found = Stop::of(capsule);
  if (found == nullptr) {
    return nullptr;
  }
  stop_run(*found);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* variables(PyObject*, PyObject* capsule) {
  HANDLE_TH_ERRORS
  Stop* found = Stop::of(capsule);
  return found == nullptr ? nullptr : variables_of(*found).release();
  END_HANDLE_TH_ERRORS
}

// As `jgpu.broker.executor.memory.hostbytes`.
PyObject* bytes_of(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2 || !THPVariable_Check(arguments[0])) {
    PyErr_SetString(PyExc_TypeError, "bytes_of(tensor, most)");
    return nullptr;
  }
  const int64_t most = integer(arguments[1]);
  const c10::Storage& storage = THPVariable_Unpack(arguments[0]).storage();
  const auto nbytes = static_cast<int64_t>(storage.nbytes());
  if (!storage.device().is_cpu() || nbytes > most) {
    Py_RETURN_NONE;
  }
  return PyBytes_FromStringAndSize(static_cast<const char*>(storage.data()), nbytes);
  END_HANDLE_TH_ERRORS
}

PyObject* exchange_states_of(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "exchange_states(first, second)");
    return nullptr;
  }
  exchange_states(given[0], given[1]);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* new_tensor_of(PyObject*, PyObject* bytes) {
  HANDLE_TH_ERRORS
  return tensor_of(bytes);
  END_HANDLE_TH_ERRORS
}

PyObject* lay_over(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  return laid_over_by(arguments, count);
  END_HANDLE_TH_ERRORS
}

PyObject* new_inputs(PyObject*, PyObject* told) {
  HANDLE_TH_ERRORS
  return inputs_made(told);
  END_HANDLE_TH_ERRORS
}

PyObject* fitting(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 4 || !PyDict_Check(given[1]) || !is_row(given[2]) || !is_row(given[3])) {
    PyErr_SetString(PyExc_TypeError, "fitting(inputs, table, numbers, parameters)");
    return nullptr;
  }
  const Inputs* inputs = Inputs::of(given[0]);
  if (inputs == nullptr) {
    return nullptr;
  }
  Owned made = inputs->fitting(given[1], given[2], given[3]);
  return made ? made.release() : held(Py_None).release();
  END_HANDLE_TH_ERRORS
}

PyObject* seen_of(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 3 || !is_row(given[1]) || !is_row(given[2])) {
    PyErr_SetString(PyExc_TypeError, "seen_of(inputs, buffers, parameters)");
    return nullptr;
  }
  const Inputs* inputs = Inputs::of(given[0]);
  return inputs == nullptr ? nullptr : inputs->seen(given[1], given[2]).release();
  END_HANDLE_TH_ERRORS
}

PyObject* counts(PyObject*, PyObject*) {
  return Py_BuildValue("KK", carried_out, left_to_python);
}

// A function of Python's whose arguments come as they lie.
using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyCFunction fast(Fast function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"assemble", assemble, METH_O, "A program for `run`, of names, inputs, outputs, instructions."},
    {"bury", fast(bury_forgotten), METH_FASTCALL, "Say with a run what was forgotten."},
    {"bytes_of", fast(bytes_of), METH_FASTCALL, "What a small storage on the host holds."},
    {"compose", compose, METH_VARARGS, "Have a composite come here first; whether it does."},
    {"connect", connect, METH_VARARGS, "Hand over what is looked up; ops come here from now on."},
    {"counts", counts, METH_NOARGS, "Calls carried out here, and calls left to Python."},
    {"exchange_states", fast(exchange_states_of), METH_FASTCALL, "Two generators change states."},
    {"fitting", fast(fitting), METH_FASTCALL, "Buffers that fit a program; None if one does not."},
    {"install_guard", install_guard, METH_NOARGS, "Answer torch's questions about the device."},
    {"laid_over", fast(lay_over), METH_FASTCALL, "A tensor over a storage, of any type."},
    {"make_here", make_here, METH_VARARGS, "Have a factory come here first."},
    {"new_inputs", new_inputs, METH_O, "What a program is given, for `fitting` and `seen_of`."},
    {"new_stop", new_stop, METH_NOARGS, "What a run is stopped by."},
    {"quiet_of", quiet_of, METH_VARARGS, "A class of blocks that no signal's handler tears."},
    {"read_all", read_switches, METH_VARARGS, "What calls return; what was seen, if the same."},
    {"run", fast(run), METH_FASTCALL, "What a program returns; or step, variables, error."},
    {"seen_of", fast(seen_of), METH_FASTCALL, "The tensors that a program's ops see."},
    {"settle", fast(settle_outputs), METH_FASTCALL, "Give outputs that are held their ids."},
    {"stop", stop, METH_O, "Have the run begin no step more."},
    {"take", fast(take_run), METH_FASTCALL, "Take the first entries out of a log, as a run."},
    {"tensor_of", new_tensor_of, METH_O, "A tensor on the host that holds these bytes."},
    {"variables", variables, METH_O, "What a run that is stopped holds, by name."},
    {"watch_large", watch_large, METH_O, "Tell of new buffers of more bytes."},
    {"wrap", fast(wrap_object), METH_FASTCALL, "A tensor over a buffer, from an offset on."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "jgpu_accelerator",
    "Ops on the device's tensors, without Python.",
    -1,
    methods,
    nullptr,
    nullptr,
    nullptr,
    nullptr};

} // namespace
} // namespace jgpu

PyMODINIT_FUNC PyInit_jgpu_accelerator() {
  return jgpu::make_names() ? PyModule_Create(&jgpu::definition) : nullptr;
}
