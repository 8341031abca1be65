// A program that the broker's executor knows, run op by op without Python.
//
// Invariant: an instruction does what the line does that `running.compile` writes for it, calls the
// same op with the same arguments and fails where that fails. Registers are the function's
// variables; one that was deleted is empty.

#pragma once

#include "instructions.h"

#include <ATen/ATen.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace jgpu {

constexpr auto held_with = "jgpu.straight";
constexpr auto stopped_with = "jgpu.stop";
// more than these torch looks at faster
constexpr int64_t most_looked_at = 4096;

class Run;

// What another thread stops a run by, and looks into it. The run stores each step before it looks
// whether it is to stop, and who stops it has said so before the step is read: so a step that was
// read as begun may not have been, and none that was not has.
struct Stop {
  std::atomic<bool> is_asked{false};
  // of the run's registers; whoever holds it waits for nobody
  std::mutex registers;
  const Run* run = nullptr;

  static Stop* of(PyObject* capsule) {
    return capsule == Py_None ? nullptr
                              : static_cast<Stop*>(PyCapsule_GetPointer(capsule, stopped_with));
  }
};

// Lets other threads have the interpreter while ops are done.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  ~Released() {
    PyEval_RestoreThread(state_);
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

  // Has it back for as long as this lives.
  class Held {
   public:
    explicit Held(Released& released) : released_(released) {
      PyEval_RestoreThread(released_.state_);
    }
    ~Held() {
      released_.state_ = PyEval_SaveThread();
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    Released& released_;
  };

 private:
  PyThreadState* state_;
};

// One run of a program.
class Run {
 public:
  using Variables = std::vector<std::pair<PyObject*, at::Tensor>>;

  Run(const Straight& program, PyObject* const* given)
      : program_(program),
        params_(given[1]),
        generators_(given[2]),
        notes_(given[3]),
        tell_(given[4]),
        stop_(Stop::of(given[6])),
        registers_(program.registers.size()) {
    PyObject* inputs = given[0];
    TORCH_CHECK(
        PyList_Check(inputs) &&
            PyList_GET_SIZE(inputs) == static_cast<Py_ssize_t>(program.taken.size()),
        "a program is given another number of inputs");
    for (size_t i = 0; i < program.taken.size(); ++i) {
      registers_[static_cast<size_t>(program.taken[i])] =
          THPVariable_Unpack(PyList_GET_ITEM(inputs, static_cast<Py_ssize_t>(i)));
    }
    check(PyList_SetSlice(inputs, 0, PyList_GET_SIZE(inputs), nullptr));
    check(PyObject_GetBuffer(given[5], &mark_, PyBUF_WRITABLE));
    if (stop_ != nullptr) {
      const std::lock_guard guard(stop_->registers);
      stop_->run = this;
    }
  }
  ~Run() {
    if (stop_ != nullptr) {
      const std::lock_guard guard(stop_->registers);
      stop_->run = nullptr;
    }
    PyBuffer_Release(&mark_);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // A list of what is returned; or (step, variables by name, why), which is the error, None if a
  // step returned something else than it claims, or True if the step was not begun.
  PyObject* done() {
    End end = End::whole;
    std::exception_ptr error;
    {
      Released released;
      try {
        end = run(released);
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (end == End::whole && !error) {
      return returned();
    }
    Owned said = held(end == End::stopped ? Py_True : Py_None);
    if (error) {
      said = said_of(error);
    }
    return Py_BuildValue("(LNN)", static_cast<long long>(step_), by_name(variables()).release(), said.release());
  }

  // Registers that hold something and have a name.
  Variables variables() const {
    Variables found;
    for (size_t i = 0; i < registers_.size(); ++i) {
      PyObject* name = program_.registers[i].get();
      if (name != Py_None && registers_[i].defined()) {
        found.emplace_back(name, registers_[i]);
      }
    }
    return found;
  }

  static Owned by_name(const Variables& found) {
    Owned made = checked(PyDict_New());
    for (const auto& [name, tensor] : found) {
      check(PyDict_SetItem(made.get(), name, wrapped(tensor).get()));
    }
    return made;
  }

 private:
  enum class End { whole, unlike, stopped };

  End run(Released& released) {
    auto* const mark = static_cast<volatile int64_t*>(mark_.buf);
    for (const Instruction& each : program_.instructions) {
      step_ = each.step;
      switch (each.kind) {
        case Instruction::mark:
          *mark = each.step;
          if (stop_ != nullptr) {
            std::atomic_thread_fence(std::memory_order_seq_cst);
            if (stop_->is_asked.load(std::memory_order_seq_cst)) {
              return End::stopped;
            }
          }
          break;
        case Instruction::op:
          if (!do_op(each, released)) {
            return End::unlike;
          }
          break;
        case Instruction::look:
          if (lies_within(each)) {
            break;
          }
          [[fallthrough]]; // which says what is wrong, if anything is
        case Instruction::call: {
          const Released::Held held(released);
          if (!call(each)) {
            return End::unlike;
          }
          break;
        }
        case Instruction::view:
          put(each.reg,
              at::as_strided(
                  registers_[each.base], each.claim.sizes, each.claim.strides, each.claim.offset));
          break;
        case Instruction::check:
          if (!each.claim.fits(registers_[each.reg])) {
            return End::unlike;
          }
          break;
        case Instruction::zero:
          registers_[each.reg].zero_();
          break;
        case Instruction::tell: {
          const Released::Held held(released);
          const Owned slot = integer_of(static_cast<int64_t>(each.base));
          const Owned tensor = wrapped(registers_[each.reg]);
          PyObject* arguments[] = {slot.get(), tensor.get()};
          checked(PyObject_Vectorcall(tell_, arguments, 2, nullptr));
          break;
        }
        case Instruction::lay:
          put(each.reg, laid_out(registers_[each.reg], each));
          break;
        case Instruction::drop:
          for (const int64_t place : each.places) {
            put(static_cast<size_t>(place), at::Tensor());
          }
          break;
      }
    }
    return End::whole;
  }

  // A copy in a storage of its own, whose gaps are zero.
  static at::Tensor laid_out(const at::Tensor& made, const Instruction& lay) {
    const at::Tensor base = at::zeros({lay.count}, made.options());
    return base.as_strided(lay.claim.sizes, lay.claim.strides, lay.claim.offset).copy_(made);
  }

  std::unique_lock<std::mutex> guarded() const {
    return stop_ == nullptr ? std::unique_lock<std::mutex>() : std::unique_lock(stop_->registers);
  }

  // What was there goes when nobody is kept from the registers: its end may wait for Python.
  void put(size_t place, at::Tensor made) {
    const auto guard = guarded();
    std::swap(registers_[place], made);
  }

  // Whether a few whole numbers, row by row on the host, are all within; false says nothing.
  bool lies_within(const Instruction& look) const {
    const at::Tensor& index = registers_[look.reg];
    if (!index.defined() || !index.is_cpu() || index.numel() > most_looked_at ||
        !index.is_contiguous() || index.is_neg()) { // negated by a bit: memory has other numbers
      return false;
    }
    switch (index.scalar_type()) {
      case at::kLong:
        return lie_within(index.const_data_ptr<int64_t>(), index.numel(), look);
      case at::kInt:
        return lie_within(index.const_data_ptr<int32_t>(), index.numel(), look);
      default:
        return false;
    }
  }

  template <typename Number>
  static bool lie_within(const Number* numbers, int64_t count, const Instruction& look) {
    bool found = true;
    for (int64_t i = 0; i < count; ++i) {
      found &= numbers[i] >= look.low && numbers[i] < look.high;
    }
    return found;
  }

  bool do_op(const Instruction& op, Released& released) {
    stack_.clear();
    for (const Operand& each : op.operands) {
      stack_.push_back(value_of(op, each, released));
    }
    op.handle->callBoxed(stack_);
    size_t place = 0;
    for (const auto& each : stack_) {
      if (each.isTensor()) {
        if (!fill(op, place++, each.toTensor())) {
          return false;
        }
      } else if (each.isTensorList()) {
        for (const at::Tensor& item : each.toTensorVector()) {
          if (!fill(op, place++, item)) {
            return false;
          }
        }
      }
    }
    stack_.clear();
    return op.places.empty() || place == op.places.size();
  }

  // Nobody asks for what an op without places returns.
  bool fill(const Instruction& step, size_t place, const at::Tensor& made) {
    if (step.places.empty()) {
      return true;
    }
    if (place >= step.places.size()) {
      return false;
    }
    const int64_t to = step.places[place];
    if (to >= 0) {
      put(static_cast<size_t>(to), made);
    }
    return true;
  }

  c10::IValue value_of(const Instruction& op, const Operand& operand, Released& released) {
    switch (operand.kind) {
      case Operand::constant:
        return operand.value;
      case Operand::reg:
        return registers_[operand.index];
      case Operand::number:
        return number(op, operand, released);
      case Operand::several:
        return list_of(op, operand, released);
      case Operand::generator: {
        const Released::Held held(released);
        return torch::jit::toIValue(object_of(operand).get(), operand.type, std::nullopt);
      }
      default:
        TORCH_CHECK(false, "an op is given what calls alone are given");
    }
  }

  c10::IValue number(const Instruction& op, const Operand& operand, Released& released) {
    PyObject* given = PySequence_Fast_GET_ITEM(params_, static_cast<Py_ssize_t>(operand.index));
    const bool is_plain = operand.type->kind() == c10::TypeKind::FloatType ||
        operand.type->kind() == c10::TypeKind::NumberType;
    if (is_plain && PyFloat_CheckExact(given)) {
      return PyFloat_AS_DOUBLE(given);
    }
    const Released::Held held(released);
    const torch::jit::ToIValueAllowNumbersAsTensors allowed(op.takes_numbers);
    return torch::jit::toIValue(given, operand.type, std::nullopt);
  }

  c10::IValue list_of(const Instruction& op, const Operand& operand, Released& released) {
    const auto& element = operand.type->expectRef<c10::ListType>().getElementType();
    if (element->kind() == c10::TypeKind::TensorType) {
      c10::List<at::Tensor> made;
      made.reserve(operand.items.size());
      for (const Operand& each : operand.items) {
        made.push_back(value_of(op, each, released).toTensor());
      }
      return made;
    }
    c10::impl::GenericList made(element);
    made.reserve(operand.items.size());
    for (const Operand& each : operand.items) {
      made.push_back(value_of(op, each, released));
    }
    return made;
  }

  bool call(const Instruction& step) {
    std::vector<Owned> held_arguments;
    std::vector<PyObject*> arguments;
    for (const Operand& each : step.operands) {
      held_arguments.push_back(object_of(each));
      arguments.push_back(held_arguments.back().get());
    }
    const auto names = PyTuple_GET_SIZE(step.names.get());
    const Owned made = checked(PyObject_Vectorcall(
        step.callable.get(),
        arguments.data(),
        arguments.size() - static_cast<size_t>(names),
        names != 0 ? step.names.get() : nullptr));
    if (step.places.empty()) {
      return true;
    }
    if (made.get() == Py_None || THPVariable_Check(made.get())) {
      return step.places.size() == 1 && fill_object(step, 0, made.get());
    }
    const Owned several =
        checked(PySequence_Fast(made.get(), "an op returned neither tensors nor nothing"));
    if (PySequence_Fast_GET_SIZE(several.get()) != static_cast<Py_ssize_t>(step.places.size())) {
      return false;
    }
    for (size_t i = 0; i < step.places.size(); ++i) {
      if (!fill_object(
              step, i, PySequence_Fast_GET_ITEM(several.get(), static_cast<Py_ssize_t>(i)))) {
        return false;
      }
    }
    return true;
  }

  bool fill_object(const Instruction& step, size_t place, PyObject* made) {
    if (made == Py_None) {
      return fill(step, place, at::Tensor());
    }
    return THPVariable_Check(made) && fill(step, place, THPVariable_Unpack(made));
  }

  Owned object_of(const Operand& operand) {
    switch (operand.kind) {
      case Operand::constant:
        return held(operand.object.get());
      case Operand::reg:
        return wrapped(registers_[operand.index]);
      case Operand::number:
        return held(PySequence_Fast_GET_ITEM(params_, static_cast<Py_ssize_t>(operand.index)));
      case Operand::generator:
        return checked(
            PyObject_GetItem(generators_, integer_of(static_cast<int64_t>(operand.index)).get()));
      case Operand::notes:
        return held(notes_);
      case Operand::several: {
        Owned made = checked(PyList_New(static_cast<Py_ssize_t>(operand.items.size())));
        for (size_t i = 0; i < operand.items.size(); ++i) {
          PyList_SET_ITEM(
              made.get(), static_cast<Py_ssize_t>(i), object_of(operand.items[i]).release());
        }
        return made;
      }
    }
    return held(Py_None);
  }

  static Owned wrapped(const at::Tensor& tensor) {
    return tensor.defined() ? checked(THPVariable_Wrap(tensor)) : held(Py_None);
  }

  PyObject* returned() const {
    Owned made = checked(PyList_New(static_cast<Py_ssize_t>(program_.returned.size())));
    for (size_t i = 0; i < program_.returned.size(); ++i) {
      PyList_SET_ITEM(
          made.get(),
          static_cast<Py_ssize_t>(i),
          wrapped(registers_[static_cast<size_t>(program_.returned[i])]).release());
    }
    return made.release();
  }

  static Owned said_of(const std::exception_ptr& error) {
    torch::translate_exception_to_python(error);
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    const Owned held_type(type), held_trace(trace);
    return Owned(value);
  }

  const Straight& program_;
  PyObject *params_, *generators_, *notes_, *tell_;
  Stop* const stop_; // none where nobody stops it
  std::vector<at::Tensor> registers_;
  torch::jit::Stack stack_;
  Py_buffer mark_{};
  int64_t step_ = 0;
};

// Ops go straight to their kernels, as in `running.callables.below_autograd`.
inline const c10::DispatchKeySet above_kernels{
    c10::DispatchKey::ADInplaceOrView,
    c10::DispatchKey::AutogradCPU,
    c10::DispatchKey::AutogradCUDA,
    c10::DispatchKey::AutogradMeta,
    c10::DispatchKey::AutogradOther};

inline PyObject* assembled(PyObject* told) {
  auto made = std::make_unique<Straight>(told);
  PyObject* capsule = PyCapsule_New(made.get(), held_with, [](PyObject* object) {
    delete static_cast<Straight*>(PyCapsule_GetPointer(object, held_with));
  });
  if (capsule != nullptr) {
    made.release();
  }
  return capsule;
}

inline PyObject* stop_made() {
  return PyCapsule_New(new Stop, stopped_with, [](PyObject* capsule) {
    delete Stop::of(capsule);
  });
}

// No step of the run is begun from here on that is not read as begun afterwards.
inline void stop_run(Stop& stop) {
  stop.is_asked.store(true, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Of a run that was stopped; it goes on with its last step meanwhile, and does not end.
inline Owned variables_of(Stop& stop) {
  Run::Variables found;
  {
    const std::lock_guard guard(stop.registers);
    if (stop.run != nullptr) {
      found = stop.run->variables();
    }
  }
  return Run::by_name(found);
}

// The program, inputs, parameters, generators, notes, `tell`, mark, stop
inline PyObject* run_assembled(PyObject* const* given) {
  const auto* program = static_cast<Straight*>(PyCapsule_GetPointer(given[0], held_with));
  if (program == nullptr) {
    return nullptr;
  }
  const c10::impl::ExcludeDispatchKeyGuard below(above_kernels);
  const at::AutoGradMode with_gradients(true);
  return Run(*program, given + 1).done();
}

} // namespace jgpu
